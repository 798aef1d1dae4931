"""The markers of a batch, read and validated once, and what was derived from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import ref

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from rl_layout import keys
from rl_layout.arguments import check_dense, check_dim
from rl_layout.segments.flat_views import array_of
from rl_tensordict import NestedKey, UnfitValue, as_tuple, find, names_of
from rl_tensordict.arguments import check_collection

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

PLACES = [as_tuple(field[0]) for field in FIELDS.values()]


@dataclass(frozen=True)
class Markers:
    """The markers that a batch has, each flattened to ``[N]`` with time running fastest.

    Attributes:
        batch_shape: ``[N]`` or ``[*B, T]``, time last.
        is_init: bool ``[N]``, first step of a trajectory or of a slice; None where absent.
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
        # in the order of FIELDS, None where absent
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
        there = [leaf for leaf in leaves if leaf is not None]
        try:
            versions = [None if t is None or t.is_inference() else t._version for t in leaves]
        except AttributeError:
            _refuse_others(leaves)
            raise
        if not there or not all(map(_is_torchs_own, there)):
            return make(Markers.of_leaves(shape, leaves))
        stamp = (shape, versions, torch.is_inference_mode_enabled())
        kept = self._kept.get(there[0])
        if kept is not None and kept[0] == stamp:
            # a version counter says that a tensor is unchanged, identity that it is the same one
            alive = [None if weak is None else weak() for weak in kept[1]]
            if all(now is then for now, then in zip(leaves, alive, strict=True)):
                known: Made = kept[2]
                return known
        made = make(Markers.of_leaves(shape, leaves))
        weaks = [None if t is None else ref(t) for t in leaves]
        self._kept[there[0]] = (stamp, weaks, made)
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


def flag_rows(flag: Tensor, name: str) -> Tensor:
    """Check a lone flag and flatten it."""
    check_dense(flag, name, "bool [*B, T, 1]")
    if flag.dtype != torch.bool:
        msg = f"{name}: expected torch.bool, got {flag.dtype}. Call .bool()."
        raise TypeError(msg)
    if flag.ndim < 2 or flag.shape[-1] != 1 or not flag.numel():
        msg = f"{name}: expected [*B, T, 1] with rows, got {list(flag.shape)}. Call unsqueeze(-1)."
        raise ValueError(msg)
    return flag.reshape(-1)


def id_rows(ids: Tensor, steps: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Check lone ids, and steps if there are any, and flatten them."""
    given = {"ids": ids} if steps is None else {"ids": ids, "steps": steps}
    for name, value in given.items():
        check_dense(value, name, "integers [*B, T]")
        if value.dtype not in SIGNED:
            msg = f"{name}: expected signed integers, got {value.dtype}. Call .long()."
            raise TypeError(msg)
    if not ids.numel() or not ids.ndim or (steps is not None and steps.shape != ids.shape):
        got = "none" if steps is None else list(steps.shape)
        msg = f"expected ids and steps of one shape [*B, T]: got {list(ids.shape)} and {got}."
        raise ValueError(msg)
    return ids.reshape(-1), None if steps is None else steps.reshape(-1)


def mask_rows(mask: Tensor, shape: torch.Size) -> Tensor:
    """Check a lone mask of real steps and flatten it."""
    check_dense(mask, "mask", f"bool {list(shape)}")
    return flat_marker(mask, shape, "mask", torch.bool, False)
