"""PyTorch: physics as a module, and any function of arrays as one that autograd knows; native code inside."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("kn.torch needs PyTorch, which is not installed: pip install 'knuckle[torch]'") from error

from knuckle.torch.bridge import wrap
from knuckle.torch.physics import Physics

__all__ = ["Physics", "wrap"]
