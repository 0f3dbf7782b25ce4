"""What a model lacks: which effect at which tap explains recordings that disagree, as a formula or a network."""

from knuckle.sysid.discovery.discover import discover
from knuckle.sysid.discovery.result import Discovery

__all__ = ["Discovery", "discover"]
