"""TED batches with every observation stored once, and back, bit for bit.

A leaf that is both at the root and under ``"next"`` is stored once per step, plus the one
that follows the last step of each trajectory, provided that it is the same, bit for bit,
wherever one step follows another. Every other leaf is stored as it is. Nothing is assumed, so
the way back is exact for any dtype, for n-step rows and after a running normaliser.

The compact form of a batch of N rows in S trajectories is a tensordict without batch size:

==================  ==============================================================
``"shared"``        leaves ``[N + S, ...]``, or jagged ``[S, j + 1, ...]``
``"steps"``         the other leaves ``[N, ...]``, or jagged ``[S, j, ...]``
``"lengths"``       int64 ``[S]``, steps of each trajectory
``"batch_shape"``   int64, ``[N]`` or ``[*B, T]``
``"dimensions"``    uint8, JSON: names of the dimensions, and what groups have of their own
==================  ==============================================================
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_layout.arguments import check_keys
from rl_layout.segments.flat_views import bits
from rl_layout.segments.segments import Segments
from rl_tensordict import Dimensions, Group, NestedKey, as_tuple, build, nest, require, tensors
from rl_tensordict.arguments import check_collection, check_type
from rl_tensordict.types import LeafTensors


class TED2Flat:
    """Store a TED batch with every observation once.

    Attributes:
        shift: distance of the oldest row from the front of a full ring; 0 by default.
        is_full: whether the batch is a full ring; recorded for the reader.

    Args:
        done_key: cut after this flag alone; every marker by default.
        shift_key: entry that records ``shift``.
        is_full_key: entry that records ``is_full``.
        done_keys: flags that are kept for every step in any case, by their last names; None for
            none, since what repeats is found by comparison.
        reward_keys: further leaves that are.

    Raises:
        TypeError: these are no keys.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> flat = TED2Flat()(batch := trajectories([2, 3]))
        >>> flat["shared", "observation"].shape, bool((Flat2TED()(flat) == batch).all())
        (torch.Size([7, 2]), True)
    """

    def __init__(
        self,
        done_key: NestedKey | None = None,
        shift_key: str = "shift",
        is_full_key: str = "is_full",
        done_keys: Sequence[NestedKey] | None = None,
        reward_keys: Sequence[NestedKey] | None = None,
    ) -> None:
        self.done_key = done_key
        named = [*_listed("done_keys", done_keys), *_listed("reward_keys", reward_keys)]
        self._apart = frozenset(key[-1] for key in named)
        self.shift_key = shift_key
        self.is_full_key = is_full_key
        self.shift = 0
        self.is_full = False

    def __call__(
        self, data: TensorDictBase, path: str | os.PathLike[str] | None = None
    ) -> TensorDict:
        """Compact a batch.

        Args:
            data: a TED tensordict ``[N]`` or ``[*B, T]``; it is not changed.
            path: a folder to keep the compact form in, memory-mapped; dense forms only.

        Returns:
            The compact form, as the module describes it.

        Raises:
            KeyError: no marker, or not the given one, is there.
            ValueError: the batch is empty, or a marker does not fit it.
            TypeError: a leaf is not a tensor.
        """
        check_collection("data", data)
        # the oldest row first: trajectories that span the seam of the ring are whole
        batch = _roll(data, -self.shift)
        segments = _rows_of(batch, self.done_key)
        leaves = {key: segments.gather(value) for key, value in tensors(batch).items()}
        shared = [
            key
            for key in leaves
            if key[-1] not in self._apart and _is_shared(key, leaves, segments)
        ]
        firsts, lasts = _places(segments)
        once = {}
        for key in shared:
            root, after = leaves.pop(key), leaves.pop(keys.next_key(key))
            # the N steps and one more row for each of the S trajectories: its last next one
            both = root.new_empty((segments.num_rows + len(segments), *root.shape[1:]))
            bits(both)[firsts] = bits(root)
            bits(both)[lasts] = bits(after)[segments.lasts]
            once[key] = both
        packed = self._pack(once, leaves, segments)
        packed.set("dimensions", _as_json(Dimensions.of(data)))
        return packed if path is None else self._kept(packed, path)

    def _kept(self, packed: TensorDict, path: str | os.PathLike[str]) -> TensorDict:
        check_type("path", path, str | os.PathLike, "the name of a folder")
        kept: TensorDict = packed.memmap(os.fspath(path))
        return kept

    def _pack(self, once: LeafTensors, steps: LeafTensors, segments: Segments) -> TensorDict:
        rows = segments.num_rows
        return TensorDict(
            {
                "shared": build(nest(once), torch.Size([rows + len(segments)])),
                "steps": build(nest(steps), torch.Size([rows])),
                "lengths": segments.lengths.clone(),  # the caller may change them
                "batch_shape": torch.tensor(segments.batch_shape, device="cpu"),
                self.shift_key: torch.tensor(self.shift, device="cpu"),
                self.is_full_key: torch.tensor(self.is_full, device="cpu"),
            }
        )


def _listed(name: str, given: Any) -> list[tuple[str, ...]]:
    """Some keys, of which one may come by itself."""
    given = [given] if isinstance(given, str) else given
    check_type(name, given, Sequence | None, "a list of keys")
    listed = [*(given or ())]
    check_keys(**{name: listed})
    return [as_tuple(key) for key in listed]


class Flat2TED:
    """Bring a batch back that `TED2Flat` compacted.

    The arguments are those of `TED2Flat`. A compact form says itself which leaves are kept once, so
    that of all of them `shift_key` alone matters.

    Args:
        done_key: not asked for.
        shift_key: entry that records the shift.
        is_full_key: not asked for.
        done_keys: not asked for.
        reward_keys: not asked for.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> batch = trajectories([2, 3])
        >>> Flat2TED()(TED2Flat()(batch))["next", "observation"].shape
        torch.Size([5, 2])
    """

    def __init__(
        self,
        done_key: NestedKey | None = None,
        shift_key: str = "shift",
        is_full_key: str = "is_full",
        done_keys: Sequence[NestedKey] | None = None,
        reward_keys: Sequence[NestedKey] | None = None,
    ) -> None:
        del done_key, is_full_key, done_keys, reward_keys
        self.shift_key = shift_key

    def __call__(self, data: TensorDictBase, out: TensorDictBase | None = None) -> TensorDict:
        """Expand a compact batch.

        Args:
            data: what `TED2Flat` returned.
            out: a batch of the same leaves and shape to write to, in place.

        Returns:
            `out` if it is given, else the TED tensordict that it was made of, with the names of
            its dimensions and the batch sizes of its groups; the last dimension is named ``"time"``
            where nothing says so.

        Raises:
            KeyError: an entry of the compact form is missing.
            ValueError: the numbers of rows contradict the lengths.
        """
        _check_parts(data, self.shift_key)
        shape = torch.Size(data["batch_shape"].tolist())
        once, steps = tensors(data["shared"]), tensors(data["steps"])
        segments = Segments.from_lengths(data["lengths"])
        _check_rows(shape, once, steps, segments)
        firsts, _ = _places(segments)
        for key, both in once.items():
            steps[key] = both.index_select(0, firsts)
            steps[keys.next_key(key)] = both.index_select(0, firsts + 1)
        whole = {key: value.reshape(*shape, *value.shape[1:]) for key, value in steps.items()}
        names = [*[None] * (len(shape) - 1), keys.TIME]
        made = _roll(build(nest(whole), shape, names), int(data[self.shift_key]))
        written = data.get("dimensions", None)
        made = made if written is None else _with_dimensions(made, written)
        return made if out is None else _written(made, out)


class TED2Nested(TED2Flat):
    """Store a TED batch with every observation once, one trajectory per row of jagged leaves.

    Takes what `TED2Flat` takes. Shared leaves of a trajectory of j steps have j + 1 rows.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> nested = TED2Nested()(trajectories([2, 3]))
        >>> [len(row) for row in nested["shared", "observation"].unbind()]
        [3, 4]
    """

    def _kept(self, packed: TensorDict, path: str | os.PathLike[str]) -> TensorDict:
        msg = f"jagged leaves cannot be memory-mapped at {path!r}: leave path out, or use TED2Flat."
        raise ValueError(msg)

    def _pack(self, once: LeafTensors, steps: LeafTensors, segments: Segments) -> TensorDict:
        packed = super()._pack({}, {}, segments)
        # a trajectory of j steps: j rows of its steps, j + 1 shared ones
        exact = Segments.from_lengths(segments.lengths)
        longer = Segments.from_lengths(segments.lengths + 1)
        size = torch.Size([len(segments)])
        once = {key: longer.nest(value) for key, value in once.items()}
        steps = {key: exact.nest(value) for key, value in steps.items()}
        packed["shared"], packed["steps"] = build(nest(once), size), build(nest(steps), size)
        return packed


class Nested2TED(Flat2TED):
    """Bring a batch back that `TED2Nested` compacted.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> batch = trajectories([2, 3])
        >>> bool((Nested2TED()(TED2Nested()(batch)) == batch).all())
        True
    """

    def __call__(self, data: TensorDictBase, out: TensorDictBase | None = None) -> TensorDict:
        """Expand a compact batch.

        Args:
            data: what `TED2Nested` returned.
            out: a batch of the same leaves and shape to write to, in place.

        Returns:
            `out` if it is given, else the TED tensordict that it was made of, with the names of
            its dimensions and the batch sizes of its groups; the last dimension is named ``"time"``
            where nothing says so.

        Raises:
            KeyError: an entry of the compact form is missing.
            ValueError: the numbers of rows contradict the lengths.
        """
        check_collection("data", data)
        flat = data.copy()
        for name in ("shared", "steps"):
            if name in flat:
                jagged = tensors(flat[name])
                if not all(value.is_nested for value in jagged.values()):
                    msg = f"{name!r}: expected jagged leaves, got dense ones. Call Flat2TED()."
                    raise ValueError(msg)
                flat[name] = TensorDict(nest({key: v.values() for key, v in jagged.items()}))
        return super().__call__(flat, out)


def _check_parts(data: TensorDictBase, *more: str) -> None:
    check_collection("data", data)
    missing = {"shared", "steps", "lengths", "batch_shape", *more} - set(data.keys())
    if missing:
        msg = f"not the compact form of a batch: {sorted(missing)} is missing."
        raise KeyError(msg)


def flat_form(data: TensorDictBase) -> TensorDict:
    """What `TED2Flat` returns, of that or of what `TED2Nested` returns."""
    _check_parts(data)
    flat = TensorDict({name: data.get(name) for name in data.keys()})  # noqa: SIM118
    for name in ("shared", "steps"):
        group = data.get(name)
        # a persistent tensordict reads its file
        leaves = tensors(group if isinstance(group, TensorDict) else group.to_tensordict())
        dense = {key: leaf.values() if leaf.is_nested else leaf for key, leaf in leaves.items()}
        flat[name] = TensorDict(nest(dense))
    return flat


def _written(batch: TensorDict, out: TensorDictBase) -> Any:
    """Another batch with the values of a batch."""
    found, wanted = tensors(out), tensors(batch)
    if out.batch_size != batch.batch_size or found.keys() != wanted.keys():
        msg = (
            f"out is {list(out.batch_size)} with the leaves {sorted(found)}, and the batch "
            f"{list(batch.batch_size)} with {sorted(wanted)}: give one like it."
        )
        raise ValueError(msg)
    for key, value in wanted.items():
        found[key].copy_(value)
    return out


def _as_json(dimensions: Dimensions) -> Tensor:
    """Write names and groups as JSON."""
    # as bytes in a tensor: every entry of the compact form is one, so any writer stores it
    text = json.dumps(dimensions._asdict())
    return torch.tensor(list(text.encode()), dtype=torch.uint8, device="cpu")


def _with_dimensions(batch: TensorDict, written: Tensor) -> TensorDict:
    """Give a batch and its groups the dimensions that were written down."""
    try:
        found: dict[str, Any] = json.loads(bytes(written.tolist()))
        groups = [Group(tuple(key), sizes, names) for key, sizes, names in found["groups"]]
        Dimensions(found["names"], groups).give(batch)
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        msg = f"'dimensions' does not fit a batch {list(batch.batch_size)}: the data is altered."
        raise ValueError(msg) from error
    return batch


def _rows_of(batch: TensorDictBase, done_key: NestedKey | None) -> Segments:
    """The trajectories of all rows, padding rows included: none may be lost."""
    if done_key is None:
        return Segments.of(batch.exclude(keys.MASK))
    return Segments.from_ends(require(batch, done_key))


def _is_shared(key: tuple[str, ...], leaves: LeafTensors, segments: Segments) -> bool:
    """Whether a leaf under ``"next"`` repeats the next row's wherever one row follows another."""
    root, after = leaves[key], leaves.get(keys.next_key(key))
    if after is None or key[0] == keys.NEXT:
        return False
    if after.dtype != root.dtype or after.shape != root.shape:
        return False
    # rows with a successor in the same trajectory
    goes_on = torch.ones(segments.num_rows, dtype=torch.bool, device=root.device)
    goes_on[segments.lasts] = False
    same = bits(after[:-1]) == bits(root[1:])
    # [N - 1, ...] -> [N - 1]
    every = same.reshape(len(same), math.prod(same.shape[1:])).all(1)
    return bool((every | ~goes_on[:-1]).all())


def _places(segments: Segments) -> tuple[Tensor, Tensor]:
    """Rows of the steps, and of what follows each trajectory, among ``[N + S]`` shared rows."""
    numbers = torch.arange(len(segments), device=segments.starts.device)
    # each earlier trajectory has one extra shared row: row i of trajectory s is at i + s
    steps = torch.arange(segments.num_rows, device=numbers.device) + segments.spread(numbers)
    return steps, segments.lasts + numbers + 1


def _check_rows(
    shape: torch.Size, once: LeafTensors, steps: LeafTensors, segments: Segments
) -> None:
    rows = segments.num_rows
    wrong = [key for key, value in steps.items() if len(value) != rows]
    wrong += [key for key, value in once.items() if len(value) != rows + len(segments)]
    if wrong or shape.numel() != rows:
        msg = (
            f"lengths add up to {rows} rows in {len(segments)} trajectories: batch shape "
            f"{list(shape)} or leaves {wrong} say otherwise. The data is truncated or altered."
        )
        raise ValueError(msg)


def _roll(batch: TensorDictBase, shift: int) -> TensorDictBase:
    """The batch with its last dimension turned by `shift` rows."""
    if not shift:
        return batch
    steps = batch.batch_size[-1]
    order = (torch.arange(steps, device=batch.device or "cpu") - shift) % steps
    return batch[(..., order)]
