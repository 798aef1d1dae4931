"""The elementwise maximum of the last frames."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import RowSource, keys
from rl_layout.keys import next_key
from rl_tensordict import NestedKey
from rl_tensordict.arguments import check_whole
from rl_transforms.entries import check_mask, not_reset, required, with_entries
from rl_transforms.history.frame_history import read_stored
from rl_transforms.history.walk import numbered_rows, walk
from rl_transforms.transform import Keys, Transform


class TimeMaxPool(Transform):
    """Takes the maximum of the last T frames, entry by entry, as for screens that flicker.

        pooled[t] = max(frame[t], frame[t - 1], ..., frame[t - T + 1])

    over the frames of the same trajectory. In an environment the transform itself keeps the last
    T - 1 frames of each key, as part of `state_dict`; batches do not hold them.

    Stored single frames are pooled when they are sampled: earlier frames come from the sample or
    from the buffer, as far as the markers prove them. Frames that cannot be read, for example
    overwritten ones, are left out of the maximum.

    Args:
        in_keys: frames; ``["observation"]`` by default.
        out_keys: pooled frames; the same keys by default.
        T: number of frames to pool, at least 1.

    Raises:
        ValueError: T is less than 1.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> rows = trajectories([4, 2])
        >>> rows["screen"] = torch.tensor([5.0, 3, 4, 1, 0, 2])
        >>> TimeMaxPool(["screen"], T=2)(rows)["screen"]
        tensor([5., 5., 4., 4., 0., 2.])
    """

    needs_rows = True

    def __init__(self, in_keys: Keys = None, out_keys: Keys = None, T: int = 1) -> None:
        super().__init__(["observation"] if in_keys is None else in_keys, out_keys)
        check_whole("T", T, 1)
        self.T = T
        self._recent: dict[NestedKey, Tensor] = {}  # [T - 1, *B, ...], the newest last

    def forward(self, batch: TensorDictBase, source: RowSource | None = None) -> TensorDictBase:
        """Pool the frames of sampled rows, at the root and under ``"next"``.

        Args:
            batch: TED rows ``[N]`` or ``[*B, T]`` with markers.
            source: the rows of the buffer, by their write numbers.

        Returns:
            The rows; ``("next", key)`` is pooled with the frames at the root.

        Raises:
            KeyError: a frame is missing at the root, or there are no markers; or a source is there
                and ``("collector", "row")`` is not.
            ValueError: they are n-step rows; or the stored frames have another form than those of
                the sample, which a transform in front has changed.
        """
        for key in self.in_keys:
            required(self, batch, key)
        if self.T == 1 and self.in_keys == self.out_keys:
            return batch
        far = batch.get(keys.STEPS_TO_NEXT_OBS, None)
        if far is not None and bool((far > 1).any()):
            msg = "TimeMaxPool: these are n-step rows: pool ahead of MultiStep."
            raise ValueError(msg)
        earlier = []
        if self.T > 1:  # a pool of one frame needs no markers
            near = numbered_rows(self, batch, source)
            earlier = [self._earlier(batch, *near, k) for k in range(1, self.T)]
        changes: dict[NestedKey, Tensor] = {}
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            own = batch[key].reshape(batch.batch_size.numel(), *batch[key].shape[batch.ndim :])
            before = [(frames[key], had) for frames, had in earlier]
            changes[out] = _pooled(own, before).reshape(batch[key].shape)
            after = batch.get(next_key(key), None)
            if after is not None:
                # under "next" the frame at the root is one of the T - 1 earlier ones
                there = torch.ones(len(own), dtype=torch.bool, device=own.device)
                last = [(own, there), *before][: self.T - 1]
                flat = after.reshape(own.shape)
                changes[next_key(out)] = _pooled(flat, last).reshape(after.shape)
        return with_entries(batch, changes)

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Restart in the rows that were reset: the pool of a first frame is that frame.

        Args:
            root: ``[*B]``, after the reset.
            mask: bool ``[*B]``, the rows that were reset; None if all were.

        Returns:
            The root with the frames; rows outside the mask keep their pooled ones.

        Raises:
            KeyError: a frame is missing.
        """
        for key in self.in_keys:
            frame = required(self, root, key)
            kept = self._recent.get(key)
            if kept is None or mask is None or kept.shape[1:] != frame.shape:
                # the first frame T - 1 times: the maximum over them is the frame itself
                self._recent[key] = frame.unsqueeze(0).repeat(self.T - 1, *[1] * frame.ndim)
            else:
                check_mask(mask, frame.shape)
                self._recent[key] = kept.clone()
                self._recent[key][:, mask] = frame[mask]
        return super().reset(root, mask)

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Pool the frame of a step with those before it.

        Args:
            root: ``[*B]``, what the step started from.
            after: ``[*B]`` with the frames.

        Returns:
            The new ``after``.

        Raises:
            KeyError: a frame is missing, or there are none before it: `reset` was not called.
        """
        changes: dict[NestedKey, Tensor] = {}
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            frame, before = required(self, after, key), self._recent.get(key)
            if before is None:
                raise not_reset(self, key, root)
            both = torch.cat([before, frame.unsqueeze(0)])
            # [T, *B, ...] -> [*B, ...]
            changes[out] = both.amax(0)
            self._recent[key] = both[1:]
        return with_entries(after, changes)

    def _earlier(
        self, batch: TensorDictBase, source: RowSource, numbers: Tensor, k: int
    ) -> tuple[dict[NestedKey, Tensor], Tensor]:
        """The frames k steps before each row ``[N, ...]`` by key, and which exist, bool ``[N]``."""
        rows, proved = walk(source, numbers, -k)
        frames, stored = read_stored(source, rows, self.in_keys)
        for key in self.in_keys:
            form, own = frames[key], batch[key]
            if (form.shape[1:], form.dtype) != (own.shape[batch.ndim :], own.dtype):
                msg = (
                    f"TimeMaxPool: {key!r} is stored as {list(form.shape[1:])}, {form.dtype}, and "
                    f"comes as {list(own.shape[batch.ndim :])}, {own.dtype}: put the transforms "
                    "that change it after this one."
                )
                raise ValueError(msg)
        return {key: frames[key] for key in self.in_keys}, proved & stored.to(proved.device)

    def get_extra_state(self) -> dict[str, Any]:
        """Return the last T - 1 frames, by the index of their key."""
        named = enumerate(self._recent.get(key) for key in self.in_keys)
        return {str(i): recent.clone() for i, recent in named if recent is not None}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the frames that `get_extra_state` returned."""
        self._recent = {self.in_keys[int(i)]: recent.clone() for i, recent in state.items()}


def _pooled(frame: Tensor, earlier: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """The maximum of frames ``[N, ...]`` and of those earlier ones that exist."""
    pooled = frame
    for before, had in earlier:
        exists = had.to(frame.device).reshape(-1, *[1] * (frame.ndim - 1))
        pooled = torch.where(exists, torch.maximum(pooled, before.to(frame.device)), pooled)
    return pooled
