"""The markers of a batch, read and validated once, and the runs of rows that they join.

Row j continues row i if and only if both are real, their ids are equal, j's step is one more,
j is not ``is_init`` and i is no boundary. Any marker that cuts, cuts: `cut_between` is the one
place that applies the rule. Observations that contradict it, where they must be looked at, come as
one more flag: see `rl_layout.segments.contradiction`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Generic, TypeVar
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from rl_layout import keys
from rl_layout.arguments import check_dim
from rl_layout.compiled import LEAST_ROWS, run_compiled
from rl_tensordict import NestedKey, UnfitValue, as_tuple, find, names_of
from rl_tensordict.arguments import check_collection
from rl_tensordict.torch_internals import version_of

Made = TypeVar("Made")
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)

# attribute -> key, dtype, whether the leaf ends in a dimension of size 1
FIELDS: Mapping[str, tuple[NestedKey, torch.dtype, bool]] = {
    "is_init": (keys.IS_INIT, torch.bool, True),
    "done": (keys.NEXT_DONE, torch.bool, True),
    "terminated": (keys.NEXT_TERMINATED, torch.bool, True),
    "truncated": (keys.NEXT_TRUNCATED, torch.bool, True),
    "steps_to_next_obs": (keys.STEPS_TO_NEXT_OBS, torch.int64, True),
    "traj_ids": (keys.TRAJ_IDS, torch.int64, False),
    "traj_step": (keys.TRAJ_STEP, torch.int64, False),
    "mask": (keys.MASK, torch.bool, False),
}

ENDS = ("done", "terminated", "truncated")
LOOPS = "rl_layout.segments.numba_cuts"
PIECE = 32_768
PLACES = [as_tuple(field[0]) for field in FIELDS.values()]


class _DLPackView(tuple[Tensor]):
    """A tensor on the CPU that numpy may look into."""

    __slots__ = ()

    def __dlpack__(self, **_: Any) -> Any:
        return torch.to_dlpack(self[0])  # type: ignore[attr-defined]

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # the CPU


def array_of(values: Tensor) -> NDArray[Any]:
    """Look at a tensor on the CPU as a numpy array that cannot be written to."""
    # It costs a third of np.from_dlpack. Unlike Tensor.numpy it does not make the memory known to
    # others, so that what was derived from a marker may still be kept.
    return np.from_dlpack(_DLPackView((values,)))


@dataclass(frozen=True)
class Markers:
    """The markers that a batch has, each flattened to ``[N]`` with time running fastest.

    Attributes:
        batch_shape: ``[N]`` or ``[*B, T]``, time last.
        is_init: bool ``[N]``, first step of a trajectory or of a slice; None if absent.
        done: bool ``[N]``, terminated or truncated.
        terminated: bool ``[N]``, the task ended.
        truncated: bool ``[N]``, the data ends and the task continues.
        steps_to_next_obs: int64 ``[N]``, on n-step rows only.
        traj_ids: int64 ``[N]``, never reused.
        traj_step: int64 ``[N]``, position in the trajectory.
        mask: bool ``[N]``, real steps.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> Markers.of(trajectories([2, 3])).done.tolist()
        [False, True, False, False, True]
    """

    batch_shape: torch.Size
    is_init: Tensor | None = None
    done: Tensor | None = None
    terminated: Tensor | None = None
    truncated: Tensor | None = None
    steps_to_next_obs: Tensor | None = None
    traj_ids: Tensor | None = None
    traj_step: Tensor | None = None
    mask: Tensor | None = None

    @classmethod
    def of(cls, batch: TensorDictBase) -> Markers:
        """Read the markers of a batch.

        Args:
            batch: a TED tensordict ``[N]`` or ``[*B, T]``.

        Returns:
            The markers; missing ones are None.

        Raises:
            ValueError: the batch is empty, time is not its last dimension, or a marker has
                another shape than the batch.
            TypeError: a marker has the wrong dtype.
        """
        # in the order of FIELDS, None if absent
        leaves = [batch.get(field[0], None) for field in FIELDS.values()]
        return cls.of_leaves(batch_shape(batch), leaves)

    @classmethod
    def of_leaves(cls, shape: torch.Size, leaves: Sequence[Tensor | None]) -> Markers:
        """Check markers that were read already.

        Args:
            shape: of the batch ``[*B, T]``.
            leaves: a marker, or None, for each of `FIELDS`.

        Returns:
            The markers.

        Raises:
            ValueError: a marker has another shape than the batch.
            TypeError: a marker has the wrong dtype.

        Example:
            >>> flag = torch.tensor([[True], [False]])
            >>> Markers.of_leaves(torch.Size([2]), [flag, *[None] * 7]).is_init.tolist()
            [True, False]
        """
        pairs = zip(FIELDS.items(), leaves, strict=True)
        found = {
            name: flat_marker(value, shape, *field)
            for (name, field), value in pairs
            if value is not None
        }
        return cls(shape, **found)

    @property
    def can_cut(self) -> bool:
        """Whether any marker tells trajectories apart."""
        others = (self.is_init, self.traj_ids, self.traj_step)
        return self.boundary() is not None or any(marker is not None for marker in others)

    def some(self) -> Tensor:
        """Some marker ``[N]`` that tells trajectories apart."""
        kinds = (self.done, self.terminated, self.truncated)
        for marker in (*kinds, self.is_init, self.traj_ids, self.traj_step):
            if marker is not None:
                return marker
        told = [
            str(FIELDS[name][0]) for name in FIELDS if name not in ("steps_to_next_obs", "mask")
        ]
        msg = f"no marker tells the trajectories apart: expected one of {', '.join(told)}."
        raise KeyError(msg)

    def boundary(self) -> Tensor | None:
        """Say where the environment ended a trajectory.

        A done flag counts where the next observation is one step away: on n-step rows it is set
        on every row whose horizon reaches the end, and only the last of them is the end.

        Returns:
            bool ``[N]`` in memory of its own, or None without a done flag of any kind.
        """
        flags = [f for f in (self.done, self.terminated, self.truncated) if f is not None]
        if not flags:
            return None
        # own memory: callers add their cuts in place
        ends = flags[0].clone()
        for flag in flags[1:]:
            ends |= flag
        if self.steps_to_next_obs is not None:
            ends &= _is_one(self.steps_to_next_obs)
        return ends


def _is_one(values: Tensor) -> Tensor:
    # numpy compares integers several times faster; compiled code stays in its graph
    if values.device.type == "cpu" and not torch.compiler.is_compiling():
        return torch.from_numpy(np.equal(array_of(values), 1))
    return values == 1


class MarkerMemo(Generic[Made]):
    """What was derived from the markers of a batch, kept while they live unchanged."""

    def __init__(self) -> None:
        self._kept: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def get(
        self,
        shape: torch.Size,
        leaves: Sequence[Tensor | None],  # as `marker_leaves` reads them
        make: Callable[[Markers], Made],
    ) -> Made:
        """Return what was made of these markers, or make it."""
        first = None
        versions: list[int | None] = []
        weaks: list[ref[Tensor] | None] = []
        for leaf in leaves:
            if leaf is None:
                versions.append(None)
                weaks.append(None)
                continue
            if not _is_torchs_own(leaf):
                _refuse_others(leaves)
                return make(Markers.of_leaves(shape, leaves))
            first = leaf if first is None else first
            versions.append(version_of(leaf))
            weaks.append(ref(leaf))
        if first is None:
            return make(Markers.of_leaves(shape, leaves))
        stamp = (shape, versions, torch.is_inference_mode_enabled())
        kept = self._kept.get(first)
        if kept is not None and kept[0] == stamp:
            # a version counter says that a tensor is unchanged, identity that it is the same one
            alive = [None if weak is None else weak() for weak in kept[1]]
            if all(now is then for now, then in zip(leaves, alive, strict=True)):
                known: Made = kept[2]
                return known
        made = make(Markers.of_leaves(shape, leaves))
        self._kept[first] = (stamp, weaks, made)
        return made


def _refuse_others(found: Sequence[object]) -> None:
    """Raise for the first marker that is no tensor."""
    for (key, _, _), leaf in zip(FIELDS.values(), found, strict=True):
        if leaf is not None and not isinstance(leaf, Tensor):
            msg = (
                f"{key!r}: expected a tensor, got {type(leaf).__name__}. Store markers as tensors."
            )
            raise TypeError(msg)


def _is_torchs_own(tensor: Tensor) -> bool:
    """Whether only torch writes to a tensor's memory, so that its version counter tells."""
    # Memory that torch may not resize is known elsewhere: to numpy, to a mapped file, to a slab.
    if type(tensor) is not Tensor or tensor.is_inference():
        return False
    if tensor.device.type != "cpu":
        return True
    storage = tensor.untyped_storage()
    return storage.resizable() and not storage.is_shared()


def marker_leaves(batch: TensorDictBase) -> list[Tensor | None]:
    """Read the markers of a batch in the order of `FIELDS`, unchecked."""
    return [find(batch, place) for place in PLACES]


def must_compare_observations(batch: TensorDictBase, dim: int = -1) -> bool:
    """Tell whether markers leave open who continues whom along a dimension.

    Args:
        batch: a TED tensordict ``[*B, T]``.
        dim: the dimension that time may lie along.

    Returns:
        False where ids and steps are both stored, where a sampler has proved the neighbours
        (``("collector", "slice_ids")``), where the dimension is named ``"time"``, and where
        nothing is stored under ``"next"``.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> batch = trajectories([2, 3])
        >>> must_compare_observations(batch), must_compare_observations(batch.exclude("collector"))
        (False, False)
        >>> batch.names = None
        >>> must_compare_observations(batch), must_compare_observations(batch.exclude("collector"))
        (False, True)
    """
    if not isinstance(batch, TensorDictBase):
        check_collection("batch", batch)
    if find(batch, keys.TRAJ_IDS) is not None and find(batch, keys.TRAJ_STEP) is not None:
        return False
    if find(batch, keys.SLICE_IDS) is not None:
        return False
    names = names_of(batch)
    if names is not None:
        check_dim(dim, batch.batch_size)
        if names[dim] == keys.TIME:
            return False
    return keys.NEXT in batch.keys()  # noqa: SIM118 - a tensordict iterates rows


def batch_shape(batch: TensorDictBase) -> torch.Size:
    """Return the shape of a batch, after checking that it has rows and that time comes last."""
    try:
        shape: torch.Size = batch.batch_size
    except AttributeError:
        check_collection("batch", batch)
        raise
    if not shape:
        msg = "expected a batch [N] or [*B, T]: got batch size []. Stack the steps along time."
        raise UnfitValue(msg)
    if not shape.numel():
        msg = f"expected at least one row: got batch size {list(shape)}. Leave empty batches out."
        raise ValueError(msg)
    names = names_of(batch) or []
    # a named time dimension anywhere else would be read as an environment dimension
    if keys.TIME in names[:-1]:
        msg = (
            f"expected time as the last batch dimension: got names {names}. "
            f"Call batch.transpose({names.index(keys.TIME)}, -1)."
        )
        raise ValueError(msg)
    return shape


def flat_marker(
    value: Tensor, shape: torch.Size, key: NestedKey, dtype: torch.dtype, singleton: bool
) -> Tensor:
    """Check one marker against the shape of its batch and flatten it."""
    # flags end in a singleton dimension, ids and masks do not
    expected = (*shape, 1) if singleton else tuple(shape)
    if value.shape != expected:
        hint = "unsqueeze(-1)" if singleton and value.shape == shape else "reshape"
        msg = f"{key!r}: expected shape {list(expected)}, got {list(value.shape)}. Call {hint}."
        raise ValueError(msg)
    if value.dtype != dtype:
        msg = f"{key!r}: expected {dtype}, got {value.dtype}. Call .to({dtype})."
        raise TypeError(msg)
    return value.reshape(-1)


def cut_between(
    cut: Any,
    pairs: tuple[Any, Any],
    *,
    alike: Sequence[Any] = (),
    step: Any = None,
    is_init: Any = None,
    ends: Sequence[Any] = (),
) -> None:
    """Adds to `cut` which pairs of rows a marker cuts: the rule, for numpy and for torch."""
    # `cut` is bool ``[pairs]``; `pairs` select the earlier and the later rows from the columns,
    # ``[N]`` each: columns that must be equal, steps, first steps, and last steps.
    earlier, later = pairs
    for column in alike:
        cut |= column[later] != column[earlier]
    if step is not None:
        cut |= step[later] != step[earlier] + 1
    if is_init is not None:
        cut |= is_init[later]
    for flag in ends:
        cut |= flag[earlier]


def arrays_of(markers: Markers) -> dict[str, NDArray[Any]]:
    """Look at the markers of a batch on the CPU as numpy arrays ``[N]``, by their names."""
    found = {}
    for name in FIELDS:
        value = getattr(markers, name)
        if value is not None:
            found[name] = array_of(value)
    return found


def cut_on_cpu(
    have: dict[str, NDArray[Any]], shape: torch.Size, contradicted: Tensor | None
) -> NDArray[np.bool_]:
    """Find the rows whose successor does not continue them, every marker read once."""
    size = shape.numel()
    cut = np.empty(size, bool)
    columns = *map(have.get, FIELDS), cut
    if size < LEAST_ROWS or not run_compiled(LOOPS, "mark_cuts", *columns):
        cut_by_numpy(have, cut)
    if contradicted is not None:
        cut |= array_of(contradicted)
    cut.reshape(-1, shape[-1])[:, -1] = True
    return cut


def cut_by_numpy(have: dict[str, NDArray[Any]], cut: NDArray[np.bool_]) -> None:
    """Write the cuts, by numpy: what is between two operations stays in the cache."""
    size = len(cut)
    flags = [have[name] for name in ENDS if name in have]
    steps, is_init = have.get("steps_to_next_obs"), have.get("is_init")
    alike = [have[name] for name in ("traj_ids", "mask") if name in have]
    step = have.get("traj_step")
    for first in range(0, size, PIECE):
        here = slice(first, min(first + PIECE, size))
        own = cut[here]
        own[...] = flags[0][here] if flags else False
        for flag in flags[1:]:
            own |= flag[here]
        if flags and steps is not None:
            own &= steps[here] == 1
        stop = min(here.stop, size - 1)  # the last row has no row after it
        pairs = slice(first, stop), slice(first + 1, stop + 1)
        cut_between(own[: stop - first], pairs, alike=alike, step=step, is_init=is_init)


def find_runs(
    markers: Markers, contradicted: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The runs without torch: on a few thousand rows calls of torch take most of the time."""
    have = arrays_of(markers)
    cut, mask = cut_on_cpu(have, markers.batch_shape, contradicted), have.get("mask")
    if mask is None:
        (lasts,) = cut.nonzero()
        lengths = lasts.copy()
        # the first run begins at row 0, each other one after the last row of the one before
        lengths[:1] += 1
        np.subtract(lasts[1:], lasts[:-1], out=lengths[1:])
        starts = lasts - lengths
        starts += 1
    else:
        # a real row starts a run where the row before it is cut off, row 0 wherever it is real
        is_start = mask.copy()
        is_start[1:] &= cut[:-1]
        (starts,), (lasts,) = is_start.nonzero(), (cut & mask).nonzero()
        lengths = lasts - starts
        lengths += 1
    there = {name: have[name][lasts] for name in (*ENDS, "steps_to_next_obs") if name in have}
    ends, terminated = ends_of(there)
    if ends is None:
        kinds = np.zeros(len(lasts), np.uint8)
    else:
        # terminated is a part of ends: 0 + 0 cut, 1 + 0 truncated, 1 + 1 terminated
        kinds = np.add(ends, terminated, dtype=np.uint8)
    make = torch.from_numpy
    return make(starts), make(lasts), make(lengths), make(kinds)


def ends_of(there: Mapping[str, Any]) -> tuple[Any, Any]:
    """Which rows are boundaries, and which of those terminations, of arrays of either kind."""
    flags = [there[name] for name in ENDS if name in there]
    if not flags:
        return None, None
    ends = reduce(or_, flags)
    if "steps_to_next_obs" in there:
        ends = ends & (there["steps_to_next_obs"] == 1)
    if "terminated" in there:
        return ends, ends & there["terminated"]
    return ends, ends & ~there["truncated"] if "truncated" in there else ends
