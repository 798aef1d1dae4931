"""Consecutive numbers for hashes."""

from __future__ import annotations

import numpy as np
import torch

from rl_tensordict.arguments import check_integer, shown
from rl_trees.table.key_table import KeyTable


class HashToInt(torch.nn.Module):
    """Numbers different hashes 0, 1, ... in the order in which they come.

    Only hashes are compared. Where two keys may have the same hash and must not be one, use a
    `QueryModule` or a `TensorDictMap`, which compare keys. `state_dict` holds the hashes in order.

    Example:
        >>> import torch
        >>> numbers = HashToInt()
        >>> numbers(torch.tensor([70, -5, 70]))
        tensor([0, 1, 0])
        >>> numbers(torch.tensor([-5]), extend=False)
        tensor([1])
    """

    def __init__(self) -> None:
        super().__init__()
        self._table = KeyTable(1)

    def __len__(self) -> int:
        return len(self._table)

    def forward(
        self, hashes: torch.Tensor, extend: bool = True, default: int | None = None
    ) -> torch.Tensor:
        """Numbers hashes.

        Args:
            hashes: int64, any shape.
            extend: Give unknown hashes numbers.
            default: What unknown hashes are without `extend`.

        Returns:
            int64 of the same shape, on the same device.

        Raises:
            KeyError: An unknown hash, without `extend` and `default`.
            TypeError: Hashes that are no int64 tensor, or a default that is no whole number.
        """
        _check_hashes("hashes", hashes)
        if default is not None:
            check_integer("default", default)
        flat = hashes.detach().cpu().reshape(-1).contiguous().numpy().view(np.uint64)
        if extend:
            numbers = self._table.insert(flat[:, None], flat)[0]
        else:
            numbers = self._table.find(flat[:, None], flat)
            unknown = numbers < 0
            if default is None and unknown.any():
                first = int(unknown.argmax())
                raise KeyError(
                    f"{int(unknown.sum())} of {len(flat)} hashes are unknown, the first at index "
                    f"{first}: pass extend=True to number it, or default=."
                )
            numbers[unknown] = default or 0
        return torch.from_numpy(numbers).reshape(hashes.shape).to(hashes.device)

    def clear(self) -> None:
        """Forgets all hashes."""
        self._table.clear()

    def get_extra_state(self) -> torch.Tensor:
        """The hashes in the order of their numbers, int64 `[n]`."""
        return torch.from_numpy(self._table.hashes.view(np.int64).copy())

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Numbers the hashes of a state instead of those there are."""
        _check_hashes("state", state)
        self.clear()
        self(state)


def _check_hashes(name: str, hashes: object) -> None:
    if not isinstance(hashes, torch.Tensor) or hashes.dtype != torch.int64:
        raise TypeError(
            f"{name}: expected a tensor of int64, as hash modules return it, got {shown(hashes)}."
        )
