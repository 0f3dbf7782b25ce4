"""What a model lacks: which effect at which tap explains recordings that disagree, as a formula or a network."""

from knuckle.sysid.discover.discover import discover
from knuckle.sysid.discover.result import Discovery

__all__ = ["Discovery", "discover"]
