"""Calls that change a buffer, and the buffers that they are made on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

sys.path.insert(0, str(Path(__file__).parent))

from written_rows import CAPACITY, GAMMA, N_STEPS, NEWER, OLD, reach, rows, table

from rl_replay import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer, Sampler
from rl_transforms import MultiStepTransform


@dataclass(frozen=True)
class Scenario:
    """One call, and the buffer that it is made on.

    Attributes:
        name: What it is called in the output.
        make: A buffer with `OLD` rows.
        call: What is interrupted.
        more: Rows `[count]` from a number on, as the buffer takes them.
        newest: The newest row that must be stored after `more`, given the same; None for none.
    """

    name: str
    make: Callable[[], ReplayBuffer]
    call: Callable[[ReplayBuffer], Any]
    more: Callable[[int, int], TensorDict] = rows
    newest: Callable[[int, int], int | None] = lambda first, count: first + count - 1


def of(
    storage: Callable[[], Any],
    *,
    transform: Callable[[], MultiStepTransform] | None = None,
    sampler: Callable[[], Sampler] | None = None,
    **options: Any,
) -> Callable[[], ReplayBuffer]:
    """Make a buffer with rows that have gone once round."""

    def make() -> ReplayBuffer:
        parts = {
            name: None if part is None else part()
            for name, part in (("transform", transform), ("sampler", sampler))
        }
        buffer = ReplayBuffer(storage=storage(), batch_size=5, **parts, **options)
        for first in range(0, OLD, 5):
            buffer.extend(rows(first, min(5, OLD - first)))
        return buffer

    return make


def with_columns(transform: MultiStepTransform | None = None) -> ReplayBuffer:
    """A buffer of two dimensions that has gone once round."""
    storage = LazyTensorStorage(CAPACITY, ndim=2)
    buffer = ReplayBuffer(storage=storage, batch_size=5, transform=transform)
    for first in range(0, 11, 3):
        buffer.extend(table(first, min(3, 11 - first)))
    return buffer


def ahead(*, columns: bool = False) -> MultiStepTransform:
    """n-step rows."""
    return MultiStepTransform(N_STEPS, GAMMA, columns=columns)


def newest_ahead(first: int, count: int) -> int | None:
    """The newest of some rows that does not wait for others."""
    whole = [n for n in range(first, first + count) if n + reach(n) <= first + count]
    return max(whole, default=None)


def newest_column(first: int, count: int) -> int | None:
    """The newest row of which `N_STEPS - 1` more steps of its environment are there."""
    return first + count - N_STEPS if count >= N_STEPS else None


def update(buffer: ReplayBuffer) -> None:
    """Write two leaves of a sample back in a later version."""
    batch = buffer[3:9]
    value = batch["value"] + NEWER
    both = TensorDict({"value": value, "negated": -value}, [len(value)])
    row_ids = buffer.storage.ring.numbers_at(torch.arange(3, 9))
    buffer.update_rows(row_ids, both)


def replace(buffer: ReplayBuffer) -> None:
    """Write whole rows in a later version, markers and all."""
    batch = buffer[3:9]
    value = batch["value"] + NEWER
    buffer[3:9] = batch.set("value", value).set("negated", -value)


def load(folder: Path) -> Callable[[ReplayBuffer], None]:
    """Load a dump of other rows."""
    return lambda buffer: buffer.loads(folder)


def of_each_storage() -> dict[str, Callable[[], ReplayBuffer]]:
    """What makes a buffer over each kind of storage, by name."""
    return {
        "private": of(lambda: LazyTensorStorage(CAPACITY)),
        "lossless": of(lambda: LazyTensorStorage(CAPACITY, lossless=True)),
        "shared": of(lambda: LazyTensorStorage(2 * CAPACITY, lanes=2), shared=True),
        "shared lossless": of(
            lambda: LazyTensorStorage(2 * CAPACITY, lanes=2, lossless=True), shared=True
        ),
        "mapped": of(lambda: LazyMemmapStorage(CAPACITY)),
        "mapped lossless": of(lambda: LazyMemmapStorage(CAPACITY, lossless=True)),
    }


def scenarios(folder: Path) -> list[Scenario]:
    """Every call on every kind of buffer."""
    found = []
    for kind, make in of_each_storage().items():
        other = make()
        other.extend(rows(350, 11))
        other.dumps(folder / kind)
        state = other.state_dict()
        calls: dict[str, Callable[[ReplayBuffer], Any]] = {
            "extend": lambda buffer: buffer.extend(rows(OLD, 11)),
            "extend after all": lambda buffer: (buffer.empty(), buffer.extend(rows(400, 11))),
            "add": lambda buffer: buffer.add(rows(OLD, 1)[0]),
            "update_rows": update,
            "empty": lambda buffer: buffer.empty(),
            "loads": load(folder / kind),
            "load_state_dict": lambda buffer, state=state: buffer.load_state_dict(state),
        }
        if not kind.startswith("shared"):
            calls["set"] = replace
        found += [Scenario(f"{kind}: {name}", make, call) for name, call in calls.items()]
    found += held_scenarios()
    found.append(
        Scenario(
            "two dimensions: extend",
            with_columns,
            lambda buffer: buffer.extend(table(11, 3)),
            table,
        )
    )
    return found + [
        Scenario(f"{kind}: first extend", fresh, lambda buffer: buffer.extend(rows(0, 9)))
        for kind, fresh in {
            "private": lambda: ReplayBuffer(storage=LazyTensorStorage(CAPACITY), batch_size=5),
            "mapped lossless": lambda: ReplayBuffer(
                storage=LazyMemmapStorage(CAPACITY, lossless=True), batch_size=5
            ),
        }.items()
    ]


def held_scenarios() -> list[Scenario]:
    """Writes through a transform that holds rows back."""
    kinds: dict[str, Callable[[], Any]] = {
        "private": lambda: LazyTensorStorage(CAPACITY),
        "lossless": lambda: LazyTensorStorage(CAPACITY, lossless=True),
    }
    calls: dict[str, Callable[[ReplayBuffer], Any]] = {
        "extend": lambda buffer: buffer.extend(rows(OLD, 11)),
        "add": lambda buffer: buffer.add(rows(OLD, 1)[0]),
        "held whole": lambda buffer: buffer.extend(rows(70_000, 2)),
    }
    found = [
        Scenario(f"n-step {kind}: {name}", of(storage, transform=ahead), call, newest=newest_ahead)
        for kind, storage in kinds.items()
        for name, call in calls.items()
    ]
    shared = of(lambda: LazyTensorStorage(2 * CAPACITY, lanes=2), shared=True, transform=ahead)
    found.append(Scenario("n-step shared: extend", shared, calls["extend"], newest=newest_ahead))
    return [
        *found,
        Scenario(
            "n-step columns: extend",
            lambda: with_columns(ahead(columns=True)),
            lambda buffer: buffer.extend(table(11, 3)),
            table,
            newest_column,
        ),
    ]
