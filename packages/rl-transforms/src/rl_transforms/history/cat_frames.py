"""Frame stacks: the last N frames of a trajectory, concatenated."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import BatchRows, RowSource, keys
from rl_layout.keys import next_key
from rl_specs import Bounded, Composite, TensorSpec
from rl_tensordict import CPU, NestedKey, as_tuple, sibling
from rl_tensordict.arguments import check_choice, check_number, check_whole, key_list
from rl_transforms.described import described
from rl_transforms.entries import not_reset, required, with_entries, without_entries
from rl_transforms.episodes.groups import next_done
from rl_transforms.episodes.step_counter import since_reset
from rl_transforms.history.frame_history import FrameHistory, read_stored
from rl_transforms.history.walk import numbered_rows
from rl_transforms.transform import Keys, Transform


class CatFrames(Transform):
    """Stacks the last N frames of a trajectory along one dimension, the newest last.

    A frame and its stack have different keys. An environment writes the stack at every step, for
    the policy. A buffer drops stacks on write and rebuilds them in every sample from earlier rows,
    which its `rl_layout.RowSource` proves: each frame is stored once, and the stack has the same
    bits as in the environment, for any sampler. Without a buffer, earlier rows are those of the
    batch.

    Before the first step of a trajectory the stack is padded, with the first frame or a constant.
    A frame that existed but cannot be read (overwritten, lost or ahead of the batch) is padded the
    same way, and the row is marked in bool ``("collector", "history_missing")`` ``[*B, T]``, for
    the root and ``"next"`` together.

    If a collector cuts a trajectory and the environment continues, marked by
    ``("collector", "mid_episode")``, the policy's stack spans the cut and a rebuilt one does not:
    the rows that lack a frame are marked.

    Args:
        N: number of frames, at least 1.
        dim: dimension to stack along, negative: -3 for the channels of ``[C, H, W]``.
        in_keys: frames; ``["pixels"]`` by default.
        out_keys: stacks; by default ``"stacked_"`` before the last part of each key.
        padding: ``"same"`` to repeat the first frame, ``"constant"`` for `padding_value`.
        padding_value: the constant, representable in the dtype of the frames.

    Raises:
        ValueError: N, dim or padding is out of range, or a stack has the name of its frame.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> rows = trajectories([3])  # observation: (id, step)
        >>> stacks = CatFrames(3, -1, ["observation"])(rows)
        >>> stacks["stacked_observation"].tolist()[1]
        [7.0, 0.0, 7.0, 0.0, 7.0, 1.0]
        >>> stacks["collector", "history_missing"]
        tensor([False, False, False])
    """

    needs_rows = True

    def __init__(
        self,
        N: int,
        dim: int,
        in_keys: Keys = None,
        out_keys: Keys = None,
        padding: Literal["same", "constant"] = "same",
        padding_value: float = 0,
    ) -> None:
        read = ["pixels"] if in_keys is None else key_list("in_keys", in_keys)
        if out_keys is None:
            out_keys = [sibling(key, f"stacked_{as_tuple(key)[-1]}") for key in read]
        super().__init__(read, out_keys)
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            if as_tuple(key) == as_tuple(out):
                msg = f"{key!r} is both frame and stack: a frame is stored once, and its stack "
                raise ValueError(msg + "rebuilt from it, so the two need two names. Pass out_keys.")
        check_whole("N", N, 1)
        check_whole("dim", dim)
        check_number("padding_value", padding_value)
        if dim >= 0:
            msg = f"dim: expected a negative number, counted from the end of a leaf: got {dim}."
            raise ValueError(msg + " Batches have any number of dimensions in front.")
        check_choice("padding", padding, ("same", "constant"))
        self.num_frames, self.dim = N, dim
        self.padding, self.padding_value = padding, padding_value

    def forward(self, batch: TensorDictBase, source: RowSource | None = None) -> TensorDictBase:
        """Stack the frames of sampled or rolled-out rows.

        Args:
            batch: TED rows ``[*B, T]``, with ``traj_step`` or ``is_init``, which say where
                trajectories begin; if there is only ``is_init`` and no source, it must not mark
                slices.
            source: the rows of the buffer, by their write numbers.

        Returns:
            The rows with stacks at the root, and under ``"next"`` if there are frames, and
            ``("collector", "history_missing")``.

        Raises:
            KeyError: a frame or a marker is missing.
            ValueError: a frame has too few dimensions; or frames of the sample differ from the
                stored ones, because a transform ahead of this one changed them.
        """
        for key in self.in_keys:
            self._check_layout(key, required(self, batch, key).shape[batch.ndim :])
        near = numbered_rows(self, batch, source)
        history = FrameHistory.of(self, batch, near, self.num_frames)
        stacks, is_whole = self._stacks(batch, near[0], history)
        changes: dict[NestedKey, Tensor] = dict(zip(self.out_keys, stacks, strict=True))
        afters, is_whole_after = self._stacks_after(batch, near, history, changes)
        has = batch[self.in_keys[0]].device if batch.device is None else batch.device
        is_missing = ~(is_whole & is_whole_after)
        changes[keys.HISTORY_MISSING] = is_missing.reshape(batch.batch_size).to(has)
        return with_entries(batch, {**changes, **afters})

    def inv(self, batch: TensorDictBase) -> TensorDictBase:
        """Drop the stacks of rows to be stored; an environment's inputs are unchanged."""
        if batch.get(keys.NEXT, None) is None:
            return batch
        return without_entries(batch, [*self.out_keys, *map(next_key, self.out_keys)])

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Begin a stack in the rows that were reset.

        Args:
            root: ``[*B]`` with frames, after the reset.
            mask: bool ``[*B]``, the rows that were reset; None if all were.

        Returns:
            The root with stacks; rows outside the mask keep theirs.

        Raises:
            KeyError: a frame is missing.
            ValueError: one has too few dimensions.
        """
        for key in self.in_keys:
            self._check_layout(key, required(self, root, key).shape[root.ndim :])
        return super().reset(root, mask)

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Push the frame of a step into the stack that the step started from.

        Args:
            root: ``[*B]`` with stacks.
            after: ``[*B]`` with frames.

        Returns:
            The new ``after``, with stacks.

        Raises:
            KeyError: a frame is missing, or a stack is: `reset` was not called.
        """
        changes = {}
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            frame, stack = required(self, after, key), root.get(out, None)
            if stack is None:
                raise not_reset(self, out, root)
            changes[out] = self._pushed(stack, frame)
        return with_entries(after, changes)

    def rows(self, batch: TensorDictBase, last: TensorDictBase | None = None) -> TensorDictBase:
        """Stack the frames of finished rows, continuing from the column before.

        Args:
            batch: ``[*B, T]`` in the order of collection.
            last: ``[*B]``, the column before these as this method returned it; None if the
                first follows a reset.

        Returns:
            The rows with stacks, as steps would have written them.

        Raises:
            KeyError: a frame or a done flag is missing.
        """
        time, oldest = batch.ndim - 1, self.num_frames - 1
        start = None if last is None else oldest * ~next_done(self, last, ())[..., 0]
        age = since_reset(next_done(self, batch, ())[..., 0], time, start).clamp_max(oldest)
        # Frames of an environment are read from [earlier frames, frames], of length N - 1 + T: the
        # frame of step t is at t + N - 1. A row never reads past its reset, age steps back.
        steps = torch.arange(batch.shape[-1], device=age.device)
        back = torch.arange(oldest, -1, -1, device=age.device)
        # `back` is N - 1 ... 0, oldest first; frames before the reset repeat the first one
        held = torch.minimum(back, age.unsqueeze(-1))  # [*B, T, N]
        length = batch.shape[-1] + oldest
        env = torch.arange(age[..., 0].numel(), device=age.device) * length
        places = env.reshape(*age.shape[:-1], 1, 1) + (steps + oldest).unsqueeze(-1) - held
        changes: dict[NestedKey, Tensor] = {}
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            frames, after = (required(self, batch, name) for name in (key, next_key(key)))
            known = torch.cat([self._earlier(frames, time, last, out), frames], time)
            found = known.flatten(0, time)[places.flatten(0, time)]  # [R, N, ...]
            stack = self._concatenated(found, (back > age.unsqueeze(-1)).flatten(0, time))
            changes[out] = stack.reshape(*batch.shape, *stack.shape[1:])
            changes[next_key(out)] = self._pushed(changes[out], after)
        return with_entries(batch, changes)

    def apply_leaf(self, value: Tensor) -> Tensor:
        """Make the stack of a first frame ``[*B, ...]``."""
        if self.padding == "same":
            return torch.cat([value] * self.num_frames, self.dim)
        blank = torch.full_like(value, self._constant(value.dtype))
        return torch.cat([*[blank] * (self.num_frames - 1), value], self.dim)

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """Describe the stack of such frames.

        Raises:
            ValueError: a frame has too few dimensions.
        """
        if len(spec.shape) < -self.dim:
            msg = f"spec: dim={self.dim} wants frames of {-self.dim} dimensions or more: got "
            raise ValueError(f"{msg}{list(spec.shape)}.")
        made = described(spec, lambda value: torch.cat([value] * self.num_frames, self.dim))
        if self.padding == "same" or not isinstance(made, Bounded):
            return made
        pad = self._constant(made.low.dtype)
        low, high = made.low.clamp_max(pad), made.high.clamp_min(pad)
        return Bounded(low, high, dtype=made.dtype, device=made.device)

    def transform_observation_spec(self, spec: Composite) -> Composite:
        """Add the stacks.

        Raises:
            ValueError: a frame has too few dimensions.
        """
        for key in self.in_keys:
            if key in spec:
                self._check_layout(key, spec[key].shape[len(spec.shape) :])
        return super().transform_observation_spec(spec)

    @property
    def carried(self) -> list[NestedKey]:
        """The stacks."""
        return self.out_keys

    def extra_repr(self) -> str:
        """List the settings and the keys."""
        return f"N={self.num_frames}, dim={self.dim}, {super().extra_repr()}"

    def _stacks(
        self, batch: TensorDictBase, source: RowSource, history: FrameHistory
    ) -> tuple[list[Tensor], Tensor]:
        """The stack of every row ``[*B, T, ...]``, and which are complete, bool ``[R]``."""
        frames_by_key, stored = read_stored(source, history.places, self.in_keys)
        is_stored, oldest = stored.all(1), self.num_frames - 1
        back = torch.arange(oldest, -1, -1, device=history.ages.device)
        is_pad = back > history.ages[:, None]
        stacks = []
        for key in self.in_keys:
            own, frames = batch[key], frames_by_key[key]
            if not isinstance(source, BatchRows):
                self._check_stored(key, own, frames[:, -1], stored[:, -1])
            stack = self._concatenated(frames, is_pad.to(frames.device)).to(own.device)
            stack = stack.reshape(*batch.shape, *stack.shape[1:])
            if not bool(is_stored.all()):  # rows overwritten since the sample was drawn
                gone = (~is_stored).to(own.device).reshape(batch.shape)
                stack[gone] = self.apply_leaf(own[gone])
            stacks.append(stack)
        return stacks, history.is_whole & is_stored.to(history.ages.device)

    def _stacks_after(
        self,
        batch: TensorDictBase,
        near: tuple[RowSource, Tensor],
        history: FrameHistory,
        stacks: dict[NestedKey, Tensor],
    ) -> tuple[dict[NestedKey, Tensor], Tensor]:
        """The same under ``"next"``, one step or several later."""
        far, is_whole = batch.get(keys.STEPS_TO_NEXT_OBS, None), history.is_whole
        earlier = None
        if far is not None and self.num_frames > 1 and bool((far != 1).any()):
            steps = far.reshape(-1).to(history.ages.device)
            places, is_whole = history.ahead(near, steps)
            earlier, there = read_stored(near[0], places, self.in_keys)
            is_whole = is_whole & there.all(1).to(is_whole.device)
            back = torch.arange(self.num_frames - 1, 0, -1, device=steps.device)
            # frames [R, N - 1] older than the first step of the trajectory
            is_pad = back - steps[:, None] > history.ages[:, None]
        made: dict[NestedKey, Tensor] = {}
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            frame = batch.get(next_key(key), None)
            if frame is None:
                continue
            if earlier is None:
                made[next_key(out)] = self._pushed(stacks[out], frame)
            else:
                older = self._concatenated(earlier[key], is_pad.to(earlier[key].device))
                older = older.to(frame.device).reshape(*batch.shape, *older.shape[1:])
                made[next_key(out)] = torch.cat([older, frame], self.dim)
        return made, is_whole

    def _pushed(self, stack: Tensor, frame: Tensor) -> Tensor:
        size = frame.shape[self.dim]
        return torch.cat(
            [stack.narrow(self.dim, size, stack.shape[self.dim] - size), frame], self.dim
        )

    def _concatenated(self, frames: Tensor, is_pad: Tensor) -> Tensor:
        """Merge ``[R, N, ...]`` into ``[R, ...]``; a mask ``[R, N]`` says if there are none."""
        if self.padding == "constant" and bool(is_pad.any()):
            where = is_pad.reshape(*is_pad.shape, *[1] * (frames.ndim - 2))
            frames = frames.masked_fill(where, self._constant(frames.dtype))
        # `dim` is negative; a frame has one dimension fewer than `frames`
        place = frames.ndim - 1 + self.dim
        merged: Tensor = frames.movedim(1, place).flatten(place, place + 1)
        return merged

    def _earlier(
        self, frames: Tensor, time: int, last: TensorDictBase | None, out: NestedKey
    ) -> Tensor:
        """The N - 1 frames before the first column ``[*B, N - 1, ...]``; arbitrary if not read."""
        if last is None:
            first = frames.narrow(time, 0, 1)
            return first.repeat_interleave(self.num_frames - 1, time)
        stack: Tensor = last[next_key(out)]
        each: Tensor = stack.unflatten(self.dim, (self.num_frames, -1)).movedim(self.dim - 1, time)
        return each.narrow(time, 0, self.num_frames - 1)

    def _constant(self, dtype: torch.dtype) -> float:
        held = torch.tensor(self.padding_value, dtype=dtype, device=CPU).item()
        is_held = held == self.padding_value
        if not (dtype.is_floating_point or dtype.is_complex or is_held):
            msg = f"padding_value={self.padding_value} is no number of {dtype}, as the frames are."
            raise ValueError(msg)
        return self.padding_value

    def _check_layout(self, key: NestedKey, shape: torch.Size) -> None:
        """Raise for frames with too few dimensions, where `dim` would be a batch dimension."""
        if len(shape) < -self.dim:
            msg = f"{key!r}: dim={self.dim} wants frames of {-self.dim} dimensions or more: got "
            raise ValueError(msg + f"{list(shape)} after the batch size.")

    def _check_stored(self, key: NestedKey, own: Tensor, stored: Tensor, there: Tensor) -> None:
        """Raise for frames ``[*B, T, ...]`` of a sample unlike the stored ones ``[R, ...]``."""
        shape = own.shape[own.ndim + 1 - stored.ndim :]
        if (shape, own.dtype) == (stored.shape[1:], stored.dtype):
            flat, held = own.reshape(stored.shape), stored.to(own.device)
            if _are_equal(held, flat):
                return
            is_nan = (held != held) & (flat != flat)
            odd = ((held != flat) & ~is_nan).flatten(1).any(1)
            if not bool((odd & there.to(odd.device)).any()):
                return
        msg = f"{key!r} of the sample is not what the buffer holds, {list(shape)} of {own.dtype} "
        msg += (
            f"alongside {list(stored.shape[1:])} of {stored.dtype}: earlier frames are read there. "
        )
        msg += "Put CatFrames ahead of what changes frames, or change them in the environment, so "
        raise ValueError(msg + "that they are stored as they are stacked.")


def _are_equal(one: Tensor, other: Tensor) -> bool:
    if one.device.type != "cpu" or one.dtype == torch.bfloat16:
        return torch.equal(one, other)
    # ten times as fast as torch.equal on strided rows, such as the newest frames of stacks
    return bool(np.array_equal(one.detach().numpy(), other.detach().numpy()))
