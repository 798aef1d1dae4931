"""Random windows of time, cropped out of trajectories."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_tensordict import CPU, NestedKey, UnfitValue, as_tuple, device_of_data, names_of, require
from rl_tensordict.arguments import check_type, check_whole
from rl_transforms.transform import Transform


class RandomCropTensorDict(Transform):
    """Takes a random window of each row, every window that fits with the same chance.

    A row of L steps has L - sub_seq_len + 1 windows, the last of which ends with its last step.

    Args:
        sub_seq_len: steps of a window.
        sample_dim: the batch dimension to crop along; the last one by default.
        mask_key: bool ``[*B, T]``, real steps, True up to a row's end; windows hold real steps
            only. None if all are.
        generator: where random numbers come from; torch's default one if None.

    Raises:
        ValueError: the window has no step.

    Example:
        >>> from rl_layout.testing import EndKind, environments
        >>> batch = environments(3, 7, [9], [EndKind.TERMINATED])
        >>> RandomCropTensorDict(4)(batch).batch_size
        torch.Size([3, 4])
    """

    online = False
    places = frozenset({"buffer"})

    def __init__(
        self,
        sub_seq_len: int,
        sample_dim: int = -1,
        mask_key: NestedKey | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_whole("sub_seq_len", sub_seq_len, 1)
        check_whole("sample_dim", sample_dim)
        if mask_key is not None:
            as_tuple(mask_key)
        check_type("generator", generator, torch.Generator | None, "a torch.Generator or None")
        self.sub_seq_len = sub_seq_len
        self.sample_dim = sample_dim
        self.mask_key = mask_key
        self.generator = generator

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Crop one window out of every row.

        Args:
            batch: rows ``[*B, T]``, T along `sample_dim`.

        Returns:
            The windows, `sub_seq_len` long along that dimension; leaves are copies.

        Raises:
            ValueError: there is no such dimension, or a row is shorter than the window; or the
                mask has another shape than the batch, or a hole.
            KeyError: there is no mask under `mask_key`.
            TypeError: the mask is not boolean.
        """
        dim = self.sample_dim + batch.ndim if self.sample_dim < 0 else self.sample_dim
        if not 0 <= dim < batch.ndim:
            msg = f"no dimension {self.sample_dim} in a batch {list(batch.batch_size)}."
            raise UnfitValue(msg)
        if not batch.batch_size.numel():
            msg = f"expected at least one row: got batch size {list(batch.batch_size)}."
            raise ValueError(msg)
        lengths = self._lengths(batch, dim)  # [R]
        if int(lengths.min()) < self.sub_seq_len:
            msg = f"a row of {int(lengths.min())} steps is shorter than {self.sub_seq_len}."
            raise UnfitValue(msg)
        starts = self._starts(lengths - self.sub_seq_len + 1)
        window = starts[:, None] + torch.arange(self.sub_seq_len, device=starts.device)  # [R, sub]
        return _gather_steps(batch, window, dim)

    def _lengths(self, batch: TensorDictBase, dim: int) -> Tensor:
        num_steps = batch.batch_size[dim]
        if self.mask_key is None:
            num_rows = batch.batch_size.numel() // num_steps
            return torch.full((num_rows,), num_steps, device=device_of_data(batch))
        mask = require(batch, self.mask_key)
        if mask.shape != batch.batch_size:
            msg = f"{self.mask_key!r}: expected shape {list(batch.batch_size)}, "
            msg += f"got {list(mask.shape)}."
            raise ValueError(msg)
        if mask.dtype != torch.bool:
            msg = f"{self.mask_key!r}: expected torch.bool, got {mask.dtype}. Call .bool()."
            raise TypeError(msg)
        rows = mask.transpose(dim, -1).reshape(-1, num_steps)
        if (rows[:, 1:] & ~rows[:, :-1]).any():
            msg = f"{self.mask_key!r} has a real step after padding: put padding at the end."
            raise ValueError(msg)
        lengths: Tensor = rows.sum(1)
        return lengths

    def _starts(self, counts: Tensor) -> Tensor:
        """A start below each count, uniformly."""
        device = CPU if self.generator is None else self.generator.device
        size = counts.shape
        drawn = torch.rand(size, generator=self.generator, dtype=torch.float64, device=device)
        return (drawn.to(counts.device) * counts).to(torch.int64)


def _gather_steps(batch: TensorDictBase, window: Tensor, dim: int) -> TensorDictBase:
    """Gather the steps ``[R, sub]`` of every row along `dim`."""
    others = [*batch.batch_size[:dim], *batch.batch_size[dim + 1 :]]
    places: list[Tensor] = []
    for i, size in enumerate(others):
        shape = [1] * (len(others) + 1)
        shape[i if i < dim else i + 1] = size
        places.append(torch.arange(size, device=window.device).reshape(shape))
    # rows R are counted with the cropped dimension and the last one swapped, as _lengths does
    swapped = list(batch.batch_size)
    swapped[dim], swapped[-1] = swapped[-1], swapped[dim]
    steps = window.reshape(*swapped[:-1], -1).transpose(dim, -1)
    index = (*places[:dim], steps, *places[dim:])
    taken: TensorDictBase = batch[index]
    if names := names_of(batch):
        taken.names = names
    return taken
