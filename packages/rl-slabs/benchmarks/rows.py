"""Rows of 9 leaves out of a million, read and written: the peer, numpy by hand, and rl-slabs.

    nox -s "bench(rl-slabs)"

One process, fresh random indices for every call, every leaf stored and returned on every side,
medians in microseconds. The contenders of a table take turns, a hundred calls each, so that a busy
machine slows them all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import torch
from bench import medians_us, report, session, table
from tensordict import TensorDict

from rl_slabs import Lanes, Rows, RowSchema, Slab
from rl_slabs.internals import TensordictReader

ROWS, BATCH, LONG = 1_000_000, 256, 10_000
FLAG = (torch.bool, (1,))
SCHEMA = RowSchema(
    {
        "observation": (torch.float32, (8,)),
        "action": (torch.float32, (2,)),
        "is_init": FLAG,
        ("collector", "traj_ids"): (torch.int64, ()),
        ("next", "observation"): (torch.float32, (8,)),
        ("next", "reward"): (torch.float32, (1,)),
        ("next", "done"): FLAG,
        ("next", "terminated"): FLAG,
        ("next", "truncated"): FLAG,
    }
)


def steps(count: int) -> TensorDict:
    """Rows whose leaves lie apart and contiguous, as a collector makes them."""
    rows = TensorDict({}, batch_size=[count])
    for field in SCHEMA.fields:
        rows[field.key] = torch.rand(count, *field.shape).to(field.dtype)
    return rows


def show(title: str, contenders: dict[str, Callable[[], object]], rounds: int = 20) -> None:
    """One table: each contender's median, and how many times ours (the last one) that is."""
    found = medians_us(rounds, *contenders.values(), warm_up=0, burst=100)
    print(title)
    for name, median in zip(contenders, found, strict=True):
        report(f"{title}: {name}", median, note=f"{median / found[-1]:.2f} x")


def peer_buffer(count: int) -> object | None:
    """TorchRL's buffer over the same rows, or None if it is not installed."""
    try:
        from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    except ImportError:
        return None
    return TensorDictReplayBuffer(storage=LazyTensorStorage(count), batch_size=BATCH)


def reading(slab: Slab, stored: TensorDict, peer: object | None) -> None:
    """256 random rows, complete, as a finished TensorDict."""
    columns = {key: stored[key].numpy() for key in SCHEMA}
    build = TensorDict._new_unsafe

    def fresh() -> torch.Tensor:
        return torch.randint(ROWS, (BATCH,))

    def by_take() -> TensorDict:
        index = fresh().numpy()
        batch = torch.Size([BATCH])
        at = {key: torch.from_numpy(np.take(array, index, 0)) for key, array in columns.items()}
        root = {key: at[key] for key in ("observation", "action", "is_init")}
        ids = {"traj_ids": at["collector", "traj_ids"]}
        after = {
            "observation": at["next", "observation"],
            "reward": at["next", "reward"],
            "done": at["next", "done"],
            "terminated": at["next", "terminated"],
            "truncated": at["next", "truncated"],
        }
        root["collector"] = build(ids, batch_size=batch)
        root["next"] = build(after, batch_size=batch)
        return build(root, batch_size=batch)

    lanes = Lanes(slab)

    def by_lanes() -> tuple[TensorDict, torch.Tensor]:
        numbers = lanes.window().draw(BATCH)
        return slab.read(lanes.rows(numbers)), lanes.accept(numbers)

    contenders: dict[str, Callable[[], object]] = {}
    if peer is not None:
        contenders["torchrl sample (and its markers)"] = peer.sample
    contenders["tensordict[index]"] = lambda: stored[fresh()]
    contenders["nine np.take, from_numpy, TensorDict"] = by_take
    contenders["np.take of the packed rows alone"] = lambda: np.take(packed, fresh().numpy(), 0)
    contenders["rl-slabs, contiguous=True"] = lambda: slab.read(fresh(), contiguous=True)
    contenders["rl-slabs, three markers only"] = lambda: slab.read(
        fresh(), keys=["is_init", ("next", "done"), ("next", "truncated")]
    )
    contenders["rl-slabs, drawn, read and validated by lanes"] = by_lanes
    contenders["rl-slabs"] = lambda: slab.read(fresh())
    packed = slab.rows.packed.numpy()
    show(f"read {BATCH} of {ROWS:,} rows (drawing them included)", contenders)


def writing(slab: Slab, stored: TensorDict, peer: object | None) -> None:
    """10,000 rows at once, and one row."""
    many, single = steps(LONG), steps(1)
    one = single[0]
    lane = Lanes(slab).claim()
    columns = slab.columns()
    arrays = [(columns[key], one[key].numpy()) for key in SCHEMA]

    def through_a_lane(source: TensorDict, count: int) -> None:
        slab.write(lane.reserve(count).rows, source)
        lane.publish(count)

    def by_columns() -> None:
        row = lane.reserve(1).rows
        for column, value in arrays:
            column[row] = value
        lane.publish(1)

    def into(count: int, source: TensorDict) -> None:
        start = int(torch.randint(ROWS - count, ()))
        stored[start : start + count] = source

    contenders: dict[str, Callable[[], object]] = {}
    if peer is not None:
        contenders["torchrl extend"] = lambda: peer.extend(many)
    contenders["tensordict[slice] = rows"] = lambda: into(LONG, many)
    contenders["rl-slabs, reserve, write, publish"] = lambda: through_a_lane(many, LONG)
    show(f"write {LONG:,} rows", contenders, 2)

    contenders = {}
    if peer is not None:
        contenders["torchrl add"] = lambda: peer.add(one)
    contenders["rl-slabs columns, reserve, assign, publish"] = by_columns
    contenders["rl-slabs, reserve, write, publish"] = lambda: through_a_lane(single, 1)
    contenders["rl-slabs write of one row, no lane"] = lambda: slab.write(5, one)
    show("write 1 row", contenders)


def packing() -> None:
    """Leaves laid into packed rows: by the compiled loop, and leaf by leaf."""
    leaves = TensordictReader(SCHEMA).of(steps(LONG), 1)
    by_loop, by_leaf, copied = (Rows.zeros(SCHEMA, ROWS) for _ in range(3))
    for _ in range(ROWS // LONG + 10):  # enough rows for the loop to be compiled
        by_loop.write(slice(0, LONG), leaves)
    words, source = copied.packed.numpy(), by_loop.packed[:LONG].numpy().copy()
    places = itertools.count()

    def at() -> slice:
        start = next(places) * LONG % ROWS
        return slice(start, start + LONG)

    def copy() -> None:
        words[at()] = source

    contenders = {"one copy of the packed bytes": copy}
    contenders["leaf by leaf, without numba"] = lambda: by_leaf.write(at(), leaves)
    contenders["rl-slabs"] = lambda: by_loop.write(at(), leaves)
    found = medians_us(15, *contenders.values(), warm_up=0, burst=4)  # fewer rows than compile it
    print(f"compiled: {by_loop.is_compiled}, and {by_leaf.is_compiled} without numba")
    table(f"pack {LONG:,} rows", dict(zip(contenders, found, strict=True)), "rl-slabs")


def main() -> None:
    """Print the tables."""
    packing()
    print(f"{torch.get_num_threads()} threads, {SCHEMA!r}")
    stored = steps(ROWS)
    peer = peer_buffer(ROWS)
    if peer is None:
        print("torchrl is not installed: its lines are left out")
    else:
        peer.extend(stored)
    with Slab.private(SCHEMA, ROWS) as slab:
        lane = Lanes(slab).claim()
        slab.write(lane.reserve(ROWS).rows, stored)
        lane.publish(ROWS)
        lane.release()
        reading(slab, stored, peer)
        writing(slab, stored, peer)


if __name__ == "__main__":
    with session():
        main()
