"""The markers of a batch, which are written when its steps are finished."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_collect.arguments import as_flags, check_sizes
from rl_layout import keys
from rl_tensordict import CPU, build_flat, find, insert, names_of, put, put_leaves
from rl_tensordict.arguments import as_integer, check_state
from rl_tensordict.types import Array, Flags, KeyPath

Numbers = NDArray[np.int64]

LEAST = np.iinfo(np.int64).min  # looked up once: it takes longer than the markers of a step

PRODUCER_BITS = 31
COUNTER_BITS = 32


class Marks(NamedTuple):
    """The markers of a batch of steps.

    Attributes:
        is_init: bool `[*B, T]`, the first steps of trajectories.
        ids: int64 `[*B, T]`, ids that are never used again.
        steps: int64 `[*B, T]`, positions in the trajectories.

    Example:
        >>> marks = TrajectoryIds((), producer=0).mark(np.array([False, True, False]))
        >>> marks.ids.tolist()
        [0, 0, 1]
    """

    is_init: Flags
    ids: Numbers
    steps: Numbers


class TrajectoryIds:
    """Gives trajectory ids, and counts the steps of the trajectories under way.

    An id is 31 bits of a producer's number and 32 of its counter, so producers never ask each
    other. The number is drawn when a producer starts, and saved with it. Ids follow the order in
    which trajectories begin, then the order of the environments: they do not depend on how many
    steps a batch has.

    Args:
        batch_size: the sizes `[*B]` of the environments that play side by side.
        producer: the producer's number; drawn where None.

    Attributes:
        producer: the producer's number, below 2**31.
        begun: how many trajectories have got an id.

    Raises:
        ValueError: `producer` does not fit into 31 bits.

    Example:
        >>> ids = TrajectoryIds((2,), producer=0)
        >>> ids.mark(np.array([[False, True], [False, False]])).ids.tolist()
        [[0, 0], [1, 1]]
        >>> ids.mark(np.zeros((2, 1), dtype=bool)).ids.tolist()
        [[2], [1]]
    """

    def __init__(self, batch_size: tuple[int, ...], producer: int | None = None) -> None:
        batch_size = check_sizes(batch_size, "batch_size")
        if producer is None:
            producer = secrets.randbits(PRODUCER_BITS)
        number = as_integer(producer)
        if number is None:
            msg = f"producer must be a whole number: got {producer!r:.200}."
            raise TypeError(msg)
        if not 0 <= number < 1 << PRODUCER_BITS:
            msg = f"producer must be at least 0 and below 2**{PRODUCER_BITS}: got {producer}."
            raise ValueError(msg)
        self.producer, self.begun = number, 0
        # of the step to come, for each environment
        self._fresh: Flags = np.ones(batch_size, dtype=bool)
        self._begins = True  # whether any of them is fresh
        self._last: Marks | None = (
            None  # of a batch without beginnings, which the next one resembles
        )
        self._ids: Numbers = np.zeros(batch_size, dtype=np.int64)
        self._steps: Numbers = np.zeros(batch_size, dtype=np.int64)

    @property
    def fresh(self) -> Flags:
        """Whose next step begins a trajectory, bool `[*B]`."""
        return self._fresh.copy()

    def cut(self, rows: Flags | bool = True) -> None:
        """Let the next step begin a trajectory, though nothing ended.

        Args:
            rows: bool `[*B]`, in which environments; in all of them unless given.

        Example:
            >>> ids = TrajectoryIds((), producer=0)
            >>> _ = ids.mark(np.array([False]))
            >>> ids.cut()
            >>> ids.mark(np.array([False])).ids.item()
            1
        """
        if not isinstance(rows, bool | np.bool_):
            rows = as_flags(rows, self._fresh.shape, "rows")
        self._set_fresh(np.array(self._fresh | rows))

    def mark(self, over: Flags) -> Marks:
        """Give the steps that follow the last ones their markers.

        Args:
            over: bool `[*B, T]`, the steps that end a trajectory.

        Returns:
            Their markers, each `[*B, T]`.
        """
        if not has_flags(over, self._fresh.shape):
            over = as_flags(over, (*self._fresh.shape, -1), "over")
        if not (self._begins or b"\1" in over[..., :-1].tobytes()):
            return self._continued(over)
        is_init = np.empty(over.shape, bool)
        is_init[..., 0] = self._fresh
        is_init[..., 1:] = over[..., :-1]
        number = _count_to(over.shape[-1])
        # where the trajectory of each step began: one under way did so before this batch
        begun = np.where(is_init, number, LEAST)
        begun[..., 0] = np.where(self._fresh, 0, -self._steps)
        steps = number - np.maximum.accumulate(begun, axis=-1)
        ids = self._number(is_init)
        # numbers, if there is no dimension, are arrays all the same
        self._set_fresh(np.array(over[..., -1]))
        self._ids, self._steps = np.array(ids[..., -1]), np.array(steps[..., -1] + 1)
        return Marks(is_init, ids, steps)

    def _continued(self, over: Flags) -> Marks:
        """The markers of steps that all continue: the ids of before, and a count."""
        last, shape = self._last, over.shape
        if last is not None and last.ids.shape == shape:
            last = Marks(last.is_init, last.ids, last.steps + _count_of(shape[-1]))
        else:
            ids, steps = np.empty(shape, np.int64), np.empty(shape, np.int64)
            ids[...], steps[...] = self._ids[..., None], self._steps[..., None]
            last = Marks(np.zeros(shape, bool), ids, steps + _count_to(shape[-1]))
        self._last, self._steps = last, self._steps + shape[-1]
        if b"\1" in over.tobytes():
            self._set_fresh(np.array(over[..., -1]))
        # copies: the caller owns what it gets
        return Marks(last.is_init.copy(), last.ids.copy(), last.steps.copy())

    def _set_fresh(self, fresh: Flags) -> None:
        """Note whose next step begins a trajectory; the ids of the last steps end with that."""
        self._fresh, self._begins = fresh, bool(fresh.any())
        self._last = None

    def _number(self, is_init: Flags) -> Numbers:
        """The id of every step: that of the last beginning at or before it."""
        by_time = np.moveaxis(is_init, -1, 0)  # ids follow the clock, then the environments
        begins = np.nonzero(by_time)
        count = len(begins[0])
        if self.begun + count > 1 << COUNTER_BITS:
            msg = f"producer {self.producer} has used its 2**{COUNTER_BITS} ids: start another one."
            raise OverflowError(msg)
        drawn = np.empty(by_time.shape, dtype=np.int64)
        drawn[0] = self._ids
        drawn[begins] = (self.producer << COUNTER_BITS) + self.begun + np.arange(count)
        self.begun += count
        latest = np.zeros(by_time.shape, dtype=np.int64)
        latest[begins] = begins[0]
        ids = np.take_along_axis(drawn, np.maximum.accumulate(latest, axis=0), axis=0)
        return np.ascontiguousarray(np.moveaxis(ids, 0, -1))

    def state_dict(self) -> dict[str, Any]:
        """The producer's number, its counter and the trajectories under way.

        Returns:
            Numbers and tensors.
        """
        under_way = {"fresh": self._fresh, "ids": self._ids, "steps": self._steps}
        return {
            "producer": self.producer,
            "begun": self.begun,
            **{name: torch.tensor(value, device=CPU) for name, value in under_way.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where a saved one stopped, under its number.

        Args:
            state: what `state_dict` returned.

        Raises:
            ValueError: it is of environments of another batch size.
        """
        names = ("fresh", "ids", "steps")
        check_state(type(self).__name__, state, (*names, "producer", "begun"))
        found = {name: np.asarray(state[name]).copy() for name in names}
        if found["ids"].shape != self._ids.shape:
            msg = (
                f"the state is of environments of batch size {found['ids'].shape}: expected "
                f"{self._ids.shape}. Load it into a collector over the same environments."
            )
            raise ValueError(msg)
        self.producer, self.begun = state["producer"], state["begun"]
        self._ids, self._steps = found["ids"], found["steps"]
        self._set_fresh(found["fresh"])


def has_flags(over: Any, batch_size: tuple[int, ...]) -> bool:
    """Whether something is an array of flags `[*B, T]`, as it is where a batch was played here."""
    return (
        type(over) is np.ndarray
        and over.dtype == np.bool_
        and over.ndim == len(batch_size) + 1
        and over.shape[:-1] == batch_size
    )


@lru_cache(maxsize=8)
def _count_to(stop: int) -> Numbers:
    return np.arange(stop)


@lru_cache(maxsize=8)
def _count_of(number: int) -> Numbers:
    # numpy adds an array at half the cost of a number
    return np.array([number])


def ends_of(batch: TensorDictBase) -> Flags:
    """Find the steps that end a trajectory, bool `[*B, T]`."""
    # The root's done flag decides. If there is none, a trajectory is over when everyone in every
    # group is done at the same step.
    root = find(batch, keys.NEXT_DONE)
    if isinstance(root, Tensor) and root.shape == (*batch.batch_size, 1):
        flags: Flags = (root if root.is_cpu else root.cpu()).numpy()
        return flags[..., 0]
    found = [root] if root is not None else _group_flags(batch)
    if not found:
        msg = "the batch has no done flag under 'next': the environment must return one."
        raise KeyError(msg)
    over = [flag.flatten(batch.ndim).all(-1) for flag in found]
    return torch.stack(over).all(0).cpu().numpy()


def insert_markers(
    batch: TensorDictBase, given: Mapping[KeyPath, Array], device: torch.device | None = None
) -> None:
    """Write markers to a batch, in place; to the device of its entries, if they are not copies."""
    markers = {key[-1]: torch.from_numpy(array) for key, array in given.items()}
    is_init = markers.pop(keys.IS_INIT)
    if device is not None or type(batch) is not TensorDict:
        # a batch of an environment elsewhere does not name its device
        if device is not None and device.type != "cpu":
            is_init = is_init.to(device)
            markers = {name: leaf.to(device) for name, leaf in markers.items()}
        put(batch, (keys.IS_INIT,), is_init)
        put_leaves(batch, keys.COLLECTOR, markers)
        return
    # a new tensordict, which is open and has no device
    insert(batch, (keys.IS_INIT,), is_init)
    if find(batch, (keys.COLLECTOR,)) is None:
        group = build_flat(markers, batch.batch_size, names_of(batch))
        insert(batch, (keys.COLLECTOR,), group)
    else:  # the environment has marked rows: `next_missing`
        for name, leaf in markers.items():
            insert(batch, (keys.COLLECTOR, name), leaf)


def compact(batch: TensorDictBase, observation_keys: list[keys.NestedKey]) -> TensorDictBase:
    """Leave out what a row's successor holds at its root."""
    dropped = [keys.next_key(key) for key in (*observation_keys, keys.IS_INIT)]
    return batch.exclude(*dropped)


def _group_flags(batch: TensorDictBase) -> list[Tensor]:
    found = [leaf for key, leaf in keys.leaves(batch) if (key[0], key[-1]) == keys.NEXT_DONE]
    return [leaf for leaf in found if isinstance(leaf, Tensor)]


class GroupStarts:
    """Writes `is_init` for each nested group with done flags, and continues batch to batch."""

    # A group begins with its environment. Where the root has no done flag a group is reset for
    # itself, and begins again after its own end.

    def __init__(self, groups: list[KeyPath]) -> None:
        self._groups = [prefix for prefix in groups if prefix]
        self.are_there = bool(self._groups)
        self._resets_itself = () not in groups
        self._over: dict[str, Tensor] = {}  # of the step before, by the number of the group

    def mark(self, batch: TensorDictBase) -> None:
        """Write the flags, in place."""
        time, later = batch.ndim - 1, batch.shape[-1] - 1
        for number, prefix in enumerate(self._groups):
            done: Tensor = batch.get((keys.NEXT, *prefix, keys.DONE))
            first = batch.get(keys.IS_INIT).reshape(*batch.shape, *[1] * (done.ndim - batch.ndim))
            first = first.expand_as(done).clone()
            if self._resets_itself:
                first.narrow(time, 1, later).logical_or_(done.narrow(time, 0, later))
                before = self._over.get(str(number))
                if before is not None:
                    first.select(time, 0).logical_or_(before.to(first.device))
                self._over[str(number)] = done.select(time, -1).clone()
            batch.set((*prefix, keys.IS_INIT), first)

    def state_dict(self) -> dict[str, Any]:
        """Which groups have just ended."""
        return {number: flag.clone() for number, flag in self._over.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where a saved one stopped."""
        self._over = {number: flag.clone() for number, flag in state.items()}
