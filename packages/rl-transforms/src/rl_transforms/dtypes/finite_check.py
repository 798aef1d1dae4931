"""A check that numbers are finite."""

from __future__ import annotations

from tensordict import TensorDictBase
from torch import Tensor

from rl_tensordict import as_key, leaves
from rl_transforms.transform import Transform


class FiniteTensorDictCheck(Transform):
    """Refuses NaN and infinite numbers, in steps and resets, in samples and in what is stored.

    Steps of a rollout are looked at together, at its end. On a device this waits for it.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> batch = TensorDict({"observation": torch.tensor([[1.0], [torch.inf]])}, [2])
        >>> try:
        ...     FiniteTensorDictCheck()(batch)
        ... except ValueError as error:
        ...     print(error)
        FiniteTensorDictCheck: 'observation' has 1 of 2 numbers NaN or infinite.
    """

    online = False

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Look at all entries.

        Raises:
            ValueError: a number is not finite.
        """
        for key, value in leaves(batch):
            if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
                _check(key, value)
        return batch

    def inv(self, batch: TensorDictBase) -> TensorDictBase:
        """Look at all entries of data going in."""
        return self.forward(batch)

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Look at what a reset returned."""
        return self.forward(root)

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Look at what a step returned."""
        return self.forward(after)


def _check(key: tuple[str, ...], value: Tensor) -> None:
    finite = value.isfinite()
    if not bool(finite.all()):
        bad = f"{int((~finite).sum())} of {value.numel()}"
        msg = f"FiniteTensorDictCheck: {as_key(key)!r} has {bad} numbers NaN or infinite."
        raise ValueError(msg)
