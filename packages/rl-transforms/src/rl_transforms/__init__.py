"""Changes of tensordicts, for environments and for buffers."""

from rl_transforms.compose import CallableTransform, Compose, as_transform
from rl_transforms.transform import Place, Transform

__all__ = [
    "CallableTransform",
    "Compose",
    "Place",
    "Transform",
    "as_transform",
]
