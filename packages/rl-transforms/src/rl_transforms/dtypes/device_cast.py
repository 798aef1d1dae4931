"""Moving tensordicts to another device."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_specs import Composite
from rl_tensordict.arguments import as_device
from rl_transforms.transform import Transform


class DeviceCastTransform(Transform):
    """Moves everything to a device on its way out, and back on its way in.

    Args:
        device: outside.
        orig_device: inside; None if nothing is to be moved back.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> DeviceCastTransform("cpu")(trajectories([3])).device
        device(type='cpu')
    """

    def __init__(
        self, device: torch.device | str, orig_device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        self.device = as_device("device", device)
        self.orig_device = None if orig_device is None else as_device("orig_device", orig_device)

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Move sampled or rolled-out rows out."""
        return _moved(batch, self.device)

    def inv(self, batch: TensorDictBase) -> TensorDictBase:
        """Move data in."""
        return batch if self.orig_device is None else _moved(batch, self.orig_device)

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Move what a reset returned out."""
        return _moved(root, self.device)

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Move what a step returned out."""
        return _moved(after, self.device)

    def extra_repr(self) -> str:
        """Name the devices."""
        return f"device={self.device}, orig_device={self.orig_device}"

    def _outward(self, spec: Composite) -> Composite:
        moved: Any = spec.to(self.device)
        return moved  # type: ignore[no-any-return]

    def _inward(self, spec: Composite) -> Composite:
        return self._outward(spec)  # actions and states are put in from outside


def _moved(batch: TensorDictBase, device: torch.device) -> TensorDictBase:
    moved: TensorDictBase = batch.to(device)
    return moved
