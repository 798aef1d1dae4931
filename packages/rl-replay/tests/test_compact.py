"""A ring of compact rows beside a list that keeps both observations of every row."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_replay.compact import CompactRows
from rl_slabs import RowSchema
from rl_slabs.dtypes import carrier

ID, STEP = ("collector", "traj_ids"), ("collector", "traj_step")
STEPS = ("next", "steps_to_next_obs")
OBSERVATIONS = {
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


def under_next(key):
    return ("next", key) if isinstance(key, str) else ("next", *key)


def observe(count, generator, values=3):
    """Observations out of few, so that many are equal; NaN, -0.0 and 0.0 among the floats."""
    leaves = {}
    for key, (dtype, shape) in OBSERVATIONS.items():
        chosen = torch.from_numpy(generator.integers(values, size=count))
        menu = torch.tensor([0.0, -0.0, torch.nan] if dtype.is_floating_point else [0, 1, 0])
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


def bits(tensordict, keys):
    """The bytes of each row, `[n]` of them."""
    columns = []
    for key in keys:
        leaf = tensordict[key].contiguous()
        flat = leaf.view(carrier(leaf.dtype)).numpy().reshape(len(leaf), -1)
        columns.append(np.ascontiguousarray(flat).view(np.uint8))
    whole = np.concatenate(columns, 1)
    return [row.tobytes() for row in whole]


class Ring:
    """Rows of many producers in one ring, their model, and who continues whom."""

    def __init__(self, capacity, seed, *, n_step=1, compact=True, lanes=1):
        self.capacity, self.n_step = capacity, n_step
        self.generator = np.random.default_rng(seed)
        self.back = np.zeros(capacity, dtype=np.int32)
        self.published, self.pending = 0, {}
        schema = RowSchema.from_tensordict(self.cells([], [], [], []))
        self.keys = list(schema)
        self.rows = CompactRows.zeros(schema, capacity, back=self.back)
        self.model = {}
        self.first = 0

    def cells(self, roots, nexts, names, steps):
        count = len(names)
        found = TensorDict({}, batch_size=[count])
        root = torch.cat(roots) if roots else observe(0, self.generator)
        following = torch.cat(nexts) if nexts else observe(0, self.generator)
        for key in OBSERVATIONS:
            found[key], found[under_next(key)] = root[key], following[key]
        found[ID] = torch.tensor([name for name, _ in names], dtype=torch.int64)
        found[STEP] = torch.tensor([step for _, step in names], dtype=torch.int64)
        found["next", "done"] = torch.zeros(count, 1, dtype=torch.bool)
        if self.n_step > 1:
            found[STEPS] = torch.tensor(steps, dtype=torch.int64).view(count, 1)
        return found

    def extend(self, cells, *, drop_next=False):
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
        positions = torch.arange(numbers.start, numbers.stop) % self.capacity
        given = cells.exclude(*[under_next(key) for key in OBSERVATIONS]) if drop_next else cells
        self.rows.write(positions, numbers, given, back)
        self.back[positions.numpy()] = back
        self.published = numbers.stop
        self.rows.settle(numbers)
        for row, number in enumerate(numbers):
            self.model[number] = cells[row : row + 1]
        for number in [n for n in self.model if n < self.published - self.capacity]:
            del self.model[number]

    def numbers(self):
        return torch.tensor(sorted(self.model), dtype=torch.int64)

    def check(self):
        """Every row comes back bit for bit, whole and in part, by either path."""
        numbers = self.numbers()
        if not len(numbers):
            return
        numbers = numbers[torch.from_numpy(self.generator.permutation(len(numbers)))]
        expected = torch.cat([self.model[int(number)] for number in numbers])
        positions = numbers % self.capacity
        found = self.rows.read(positions)
        assert bits(found, self.keys) == bits(expected, self.keys)
        plan = self.rows._plan(None)
        packed, arrays, _ = self.rows._gather.on_device(plan, positions)
        assert bits(plan.unpack(packed, arrays, positions.shape), self.keys) == bits(
            expected, self.keys
        )
        some = [("next", "frame"), "single", ("next", "half")]
        assert bits(self.rows.read(positions, keys=some), some) == bits(expected, some)
        self.check_slots(numbers)

    def check_slots(self, numbers):
        """Each slot has one owner, and nobody else's is in use."""
        named = self.rows.successor[(numbers % self.capacity).numpy()]
        slots = ~named[named < 0].astype(np.int64)
        assert len(set(slots.tolist())) == len(slots) == self.rows.side.in_use()
        assert (self.rows.side.owners[slots] == numbers.numpy()[named < 0]).all()


class Producer:
    """One environment: a trajectory of observations, of which each is the next one before."""

    def __init__(self, ring, values=3, length=9):
        self.ring, self.values, self.length = ring, values, length
        self.identity = 0
        self.begin()

    def begin(self):
        count = int(self.ring.generator.integers(1, self.length + 1))
        self.seen = observe(count + 1, self.ring.generator, self.values)
        self.identity = int(self.ring.generator.integers(1 << 60))
        self.step, self.count = 0, count

    def rows(self, count):
        """The next `count` rows, through the ends of trajectories."""
        found = []
        for _ in range(count):
            if self.step == self.count:
                self.begin()
            ahead = min(self.ring.n_step, self.count - self.step)
            root = self.seen[self.step : self.step + 1]
            following = self.seen[self.step + ahead : self.step + ahead + 1]
            if self.ring.generator.random() < 0.1:
                following = observe(1, self.ring.generator)  # as behind a running normaliser
            found.append((root, following, (self.identity, self.step), ahead))
            self.step += 1
        return found


def joined(ring, rows):
    roots, nexts, names, steps = zip(*rows, strict=True)
    return ring.cells(list(roots), list(nexts), list(names), list(steps))


def run(seed, capacity, producers, operations, *, n_step=1, values=3):
    ring = Ring(capacity, seed, n_step=n_step)
    environments = [Producer(ring, values) for _ in range(producers)]
    for _ in range(operations):
        each = int(ring.generator.integers(1, max(2, capacity // producers + 1)))
        pieces = [environment.rows(each) for environment in environments]
        if ring.generator.random() < 0.5:  # step by step, environment beside environment
            rows = [row for together in zip(*pieces, strict=True) for row in together]
        else:
            rows = [row for piece in pieces for row in piece]
        ring.extend(joined(ring, rows[:capacity]))
        ring.check()
    return ring


@settings(max_examples=40)
@given(st.integers(0, 1 << 30), st.integers(1, 23), st.integers(1, 4), st.sampled_from([1, 3]))
def test_every_next_observation_comes_back_bit_for_bit(seed, capacity, producers, n_step):
    run(seed, capacity, producers, 6, n_step=n_step)
