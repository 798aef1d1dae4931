"""A ring of lossless rows with a list that keeps both observations of every row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase

from rl_replay.lossless.overflow import OverflowTable
from rl_replay.lossless.rows import LosslessRows
from rl_slabs import Rows, RowSchema
from rl_slabs.internals import carrier
from rl_tensordict import NestedKey

ID, STEP = ("collector", "traj_ids"), ("collector", "traj_step")
STEPS = ("next", "steps_to_next_obs")
OBSERVATIONS: dict[NestedKey, tuple[torch.dtype, tuple[int, ...]]] = {
    "single": (torch.float32, (3,)),
    "half": (torch.float16, (2,)),
    "brain": (torch.bfloat16, (1,)),
    "whole": (torch.int64, ()),
    "flag": (torch.bool, (1,)),
    "pixels": (torch.uint8, (5,)),
    "frame": (torch.uint8, (3, 97)),
    "field": (torch.float32, (7, 11)),
    ("agents", "view"): (torch.float64, (2, 2)),
}
SMALL: list[NestedKey] = ["single", "half", "brain", "whole", "flag", "pixels", ("agents", "view")]


def under_next(key: NestedKey) -> NestedKey:
    """The key of a next observation."""
    return ("next", key) if isinstance(key, str) else ("next", *key)


def observe(count: int, generator: np.random.Generator, values: int = 3) -> TensorDict:
    """Observations out of few, so that many are equal; NaN, -0.0 and 0.0 among the floats."""
    leaves = {}
    for key, (dtype, shape) in OBSERVATIONS.items():
        chosen = torch.from_numpy(generator.integers(values, size=count))
        menu = torch.tensor(
            [0.0, -0.0, torch.nan] if dtype.is_floating_point else [0, 1, 0], device="cpu"
        )
        leaf = menu.to(dtype)[chosen].view(count, *[1] * len(shape)).expand(count, *shape).clone()
        if shape and dtype.itemsize == 1 and shape[-1] > 1:
            leaf[..., -1] = torch.from_numpy(generator.integers(2, size=count)).view(
                count, *[1] * (len(shape) - 1)
            )
        leaves[key] = leaf
    found = TensorDict({}, batch_size=[count])
    for key, leaf in leaves.items():
        found[key] = leaf
    return found


def bits(tensordict: TensorDictBase, keys: Sequence[NestedKey]) -> list[bytes]:
    """The bytes of each row, `[n]` of them."""
    columns = []
    for key in keys:
        leaf = tensordict[key].contiguous()
        flat = leaf.view(carrier(leaf.dtype)).numpy().reshape(len(leaf), -1)
        columns.append(np.ascontiguousarray(flat).view(np.uint8))
    whole = np.concatenate(columns, 1)
    return [row.tobytes() for row in whole]


class Step(NamedTuple):
    """One step of a producer."""

    root: TensorDict  # Its observations [1]
    after: TensorDict  # The next ones [1]
    name: tuple[int, int]  # Id and step
    away: int  # How many steps further on the next observations are


class LosslessRing:
    """Rows of many producers in one ring, their model, and who continues whom.

    Args:
        capacity: Rows of the ring.
        seed: Of the observations and of the order in which rows are read.
        n_step: How far next observations are away at most.
        by_tensors: Do everything as on a device.
        small: Only observations that are packed.
        full: A packed row without room for the address of its next observation.
        separate: Rows and slots in memory of their own.

    Example:
        >>> ring = LosslessRing(9, 0)
        >>> ring.extend(ring.cells(Producer(ring).rows(5)))
        >>> ring.check()
    """

    def __init__(  # noqa: PLR0913 - independent options of a layout
        self,
        capacity: int,
        seed: int,
        *,
        n_step: int = 1,
        by_tensors: bool = False,
        small: bool = False,
        full: bool = False,
        separate: bool = False,
    ) -> None:
        self.capacity, self.n_step, self.full = capacity, n_step, full
        names = SMALL if small else OBSERVATIONS
        self.observations = {key: OBSERVATIONS[key] for key in names}
        self.generator = np.random.default_rng(seed)
        self.back: NDArray[np.int32] = np.zeros(capacity, dtype=np.int32)
        self.published = 0
        self.pending: dict[tuple[int, int], int] = {}
        schema = RowSchema.from_tensordict(self.cells([]))
        self.keys = list(schema)
        self.rows = LosslessRows.zeros(schema, capacity, back=self.back)
        assert (self.rows.joined, self.rows.layout.apart) == (small, full)
        if separate:
            layout = self.rows.layout
            rows, slots = Rows.zeros(layout.stored, capacity), OverflowTable(layout.side, capacity)
            self.rows = LosslessRows(layout, rows, slots, back=self.back)
        if by_tensors:
            self.rows = go_by_tensors(self.rows)
        self.model: dict[int, TensorDict] = {}
        self.missing: set[int] = set()

    def cells(self, steps: Sequence[Step]) -> TensorDict:
        """Steps of producers as rows."""
        steps = [Step(*step) for step in steps]
        names, count = [step.name for step in steps], len(steps)
        found = TensorDict({}, batch_size=[count])
        none = observe(0, self.generator)
        root: TensorDict = torch.cat([none, *(step.root for step in steps)])
        following: TensorDict = torch.cat([none, *(step.after for step in steps)])
        for key in self.observations:
            found[key], found[under_next(key)] = root[key], following[key]
        found[ID] = torch.tensor([name for name, _ in names], dtype=torch.int64, device="cpu")
        found[STEP] = torch.tensor([step for _, step in names], dtype=torch.int64, device="cpu")
        found["next", "done"] = torch.zeros(count, 1, dtype=torch.bool, device="cpu")
        if self.full:
            found["padding"] = torch.zeros(count, 7, dtype=torch.uint8, device="cpu")
        if self.n_step > 1:
            away = [step.away for step in steps]
            found[STEPS] = torch.tensor(away, dtype=torch.int64, device="cpu").view(count, 1)
        return found

    def extend(self, cells: TensorDict, *, drop_next: bool = False) -> None:
        """Write a batch; rows are continued by id and step, as markers say."""
        count = len(cells)
        numbers = range(self.published, self.published + count)
        back = np.zeros(count, dtype=np.int32)
        for row, number in enumerate(numbers):
            name = int(cells[ID][row]), int(cells[STEP][row])
            before = self.pending.pop((name[0], name[1] - 1), None)
            if before is not None and before >= numbers.stop - self.capacity:
                back[row] = number - before
            self.pending[name] = number
        positions = torch.arange(numbers.start, numbers.stop, device="cpu") % self.capacity
        dropped = [under_next(key) for key in self.observations] if drop_next else []
        given = cells.exclude(*dropped)
        self.rows.write(positions, numbers, given, back)
        self.back[positions.numpy()] = back
        self.published = numbers.stop
        self.rows.linker.link_predecessors(numbers)
        for row, number in enumerate(numbers):
            self.model[number] = cells[row : row + 1].clone()
            if drop_next:
                self.missing.add(number)
            before = number - int(back[row])
            if back[row] and before in self.missing:
                self.missing.discard(before)
                for key in self.observations:
                    self.model[before][under_next(key)] = cells[key][row : row + 1].clone()
        for number in [n for n in self.model if n < self.published - self.capacity]:
            del self.model[number]
            self.missing.discard(number)

    def update(self, numbers: Sequence[int], cells: TensorDict) -> None:
        """Write leaves of rows in place."""
        chosen = torch.tensor(numbers, device="cpu")
        positions = chosen % self.capacity
        self.rows.update(positions, chosen, cells, self.back[positions.numpy()])
        for row, number in enumerate(numbers):
            for key in cells.keys(True, True):
                self.model[number][key] = cells[key][row : row + 1].clone()
            if under_next("single") in cells.keys(True, True):
                self.missing.discard(number)

    def clear(self) -> None:
        """Drop every row; the next one is at the start again."""
        self.rows.clear()
        self.model.clear()
        self.missing.clear()
        self.pending.clear()
        self.published = -(-self.published // self.capacity) * self.capacity

    def numbers(self) -> torch.Tensor:
        """The ids of all rows."""
        return torch.tensor(sorted(self.model), dtype=torch.int64, device="cpu")

    def expected(self, numbers: torch.Tensor) -> TensorDict:
        """Rows of the model."""
        rows: TensorDict = torch.cat([self.model[int(number)] for number in numbers])
        for row, number in enumerate(numbers.tolist()):
            if number in self.missing:
                for key, (dtype, _) in self.observations.items():
                    void = torch.nan if dtype.is_floating_point else 0
                    rows[under_next(key)][row] = void
        return rows

    def check(self) -> None:
        """Every row comes back bit for bit, whole and in part, by either path."""
        numbers = self.numbers()
        if not len(numbers):
            return
        numbers = numbers[torch.from_numpy(self.generator.permutation(len(numbers)))]
        expected = self.expected(numbers)
        positions = numbers % self.capacity
        found = self.rows.read(positions)
        assert bits(found, self.keys) == bits(expected, self.keys)
        if self.rows.misses:
            marks = [number in self.missing for number in numbers.tolist()]
            assert found["collector", "next_missing"].tolist() == marks
        assert bits(self.rows.gather(positions), self.keys) == bits(expected, self.keys)
        if not self.rows.joined:
            plan = self.rows.plan(None)
            packed, arrays, _ = self.rows.reader.on_device(plan, positions)
            by_tensors = plan.unpack[False, False](packed, arrays, positions.shape)
            assert bits(by_tensors, self.keys) == bits(expected, self.keys)
        some: list[NestedKey] = [
            under_next(list(self.observations)[-2]),
            "single",
            ("next", "half"),
        ]
        assert bits(self.rows.read(positions, keys=some), some) == bits(expected, some)
        self.check_slots(numbers)

    def check_slots(self, numbers: torch.Tensor) -> None:
        """Each slot has one owner, and no other process's is in use."""
        addresses = self.rows.successor[(numbers % self.capacity).numpy()]
        slots = ~addresses[addresses < 0].astype(np.int64)
        assert len(set(slots.tolist())) == len(slots) == self.rows.side.in_use()
        assert (self.rows.side.owners[slots] == numbers.numpy()[addresses < 0]).all()


def go_by_tensors(rows: LosslessRows) -> LosslessRows:
    """Let compact rows on the CPU do everything as they do it on other devices."""
    rows.side.on_host = False
    rows.side.rows = Rows.zeros(rows.side.schema, 1)
    return LosslessRows(rows.layout, rows.rows, rows.side, back=rows.linker.back, on_host=False)


class Producer:
    """One environment: a trajectory of observations, of which each is the next one before."""

    def __init__(self, ring: LosslessRing, values: int = 3, length: int = 9) -> None:
        self.ring, self.values, self.length = ring, values, length
        self.identity = 0
        self.begin()

    def begin(self) -> None:
        """Begins a trajectory."""
        count = int(self.ring.generator.integers(1, self.length + 1))
        self.seen = observe(count + 1, self.ring.generator, self.values)
        self.identity = int(self.ring.generator.integers(1 << 60))
        self.step, self.count = 0, count

    def rows(self, count: int) -> list[Step]:
        """The next `count` rows, through the ends of trajectories."""
        found = []
        for _ in range(count):
            if self.step == self.count:
                self.begin()
            ahead = min(self.ring.n_step, self.count - self.step)
            root = self.seen[self.step : self.step + 1]
            following = self.seen[self.step + ahead : self.step + ahead + 1]
            if self.ring.generator.random() < 0.1:
                following = observe(1, self.ring.generator)  # as after a running normaliser
            found.append(Step(root, following, (self.identity, self.step), ahead))
            self.step += 1
        return found
