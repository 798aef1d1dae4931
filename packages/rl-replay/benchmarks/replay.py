"""Buffers alongside their peers: sample, add and extend, torchrl's and cpprb's.

    nox -s "bench(rl-replay)"

A million rows of nine leaves (observation 8 floats, action 2, and the markers). One process, fresh
random indices, all leaves stored and returned on every side, medians in microseconds. The
contenders of a table take turns in an order that is drawn anew in each round, so that a busy
machine slows them all. Each is timed twice: "warm", in blocks of calls after one that warms the
caches up, and "cold", one call at a time, straight after another contender left the caches to it. A
floor is what must be done in any case: rows drawn and copied out by one gather, or copied in: in
the packed form, and leaf by leaf, as numpy copies leaves that lie apart into rows; with numba
installed rl-replay packs them in one pass. The last floor of `extend` is all of it by hand, for
these nine leaves alone: arrays of the tensors, copies, whether each row continues the one before
it, and the positions that are returned; nothing is checked or counted.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import numpy as np
import torch
from bench import medians_us, session, table
from tensordict import TensorDict

from rl_replay import LazyTensorStorage, TensorDictReplayBuffer
from rl_slabs import Rows
from rl_slabs.memory.memory import Memory
from rl_slabs.rows.match import as_cells

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
ROWS, BATCH, LONG, EPISODE = 1_000_000, 256, 10_000, 200
Calls = dict[str, Callable[[], object]]


def steps(count: int, first: int = 0) -> TensorDict:
    """Rows of trajectories of 200 steps, each leaf with memory of its own."""
    row = torch.arange(first, first + count)
    seen = torch.rand(count + 1, 8)
    last = (row % EPISODE == EPISODE - 1).unsqueeze(-1)
    after = {
        "observation": seen[1:].clone(),
        "reward": torch.rand(count, 1),
        "done": last,
        "terminated": last.clone(),
        "truncated": torch.zeros(count, 1, dtype=torch.bool),
    }
    root = {
        "observation": seen[:-1].clone(),
        "action": torch.rand(count, 2),
        "is_init": (row % EPISODE == 0).unsqueeze(-1),
        "collector": {"traj_ids": row // EPISODE},
        "next": after,
    }
    return TensorDict(root, [count])


def show(title: str, calls: Calls, rounds: int, each: int) -> None:
    """The medians of each contender, warm and cold."""
    warm = medians_us(rounds, *calls.values(), warm_up=0, burst=each, shuffle=True)
    cold = medians_us(rounds * each // 2, *calls.values(), warm_up=0, shuffle=True)
    table(title, dict(zip(calls, warm, strict=True)), "rl-replay")
    table(f"{title}, cold", dict(zip(calls, cold, strict=True)), "rl-replay")


def copies(rows: Rows, batch: TensorDict) -> Callable[[int], None]:
    """Each leaf's copy into its column, the widest first, in the blocks that `Rows.write` uses."""
    columns = rows.columns()
    order = sorted(columns, key=lambda key: -rows.schema[key].nbytes)
    pairs = [(as_cells(columns[key]), as_cells(batch[key].numpy())) for key in order]
    # items of one word and less are copied a little faster under their own names
    words = {1: np.uint8, 4: np.uint32, 8: np.uint64}
    kinds = [words.get(column.itemsize, column.dtype) for column, _ in pairs]
    pairs = [(a.view(kind), b.view(kind)) for (a, b), kind in zip(pairs, kinds, strict=True)]
    block = (1 << 19) // rows.schema.row_bytes

    def write(start: int) -> None:
        for begin in range(0, LONG, block):
            end = min(begin + block, LONG)
            for column, array in pairs:
                column[start + begin : start + end] = array[begin:end]

    return write


def by_hand(write: Callable[[int], None], batch: TensorDict) -> Callable[[int], torch.Tensor]:
    """A whole `extend` of these rows, without a check and without anything that is general."""
    leaves = [batch[key] for key in batch.keys(True, True)]
    cuts = [batch["next", key] for key in ("done", "terminated", "truncated")]
    ids, init, back = batch["collector", "traj_ids"], batch["is_init"], np.zeros(ROWS, np.int32)

    def extend(start: int) -> torch.Tensor:
        arrays = {id(leaf): leaf.numpy() for leaf in leaves}
        found = arrays[id(ids)]
        cut = found[1:] != found[:-1]
        cut |= arrays[id(init)].reshape(LONG)[1:]
        for flag in cuts:
            cut |= arrays[id(flag)].reshape(LONG)[:-1]
        write(start)
        back[start] = 0
        back[start + 1 : start + LONG] = np.logical_not(cut, out=cut)
        return torch.from_numpy(np.arange(start, start + LONG))

    return extend


def moving(write: Callable[[int], object], capacity: int = ROWS) -> Callable[[], object]:
    """The same, at another place of the ring in each call."""
    place = iter(range(10**9))
    return lambda: write(next(place) * LONG % capacity)


def floors(capacity: int, row_bytes: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Drawing and gathering packed rows, and copying as many bytes as a long write has."""
    packed = Memory.private(capacity * row_bytes).array.reshape(capacity, row_bytes)
    words, many = packed.view(np.int64), np.ones((LONG, row_bytes // 8), dtype=np.int64)

    def write(start: int) -> None:
        words[start : start + LONG] = many

    return lambda: words.take(torch.randint(capacity, (BATCH,)).numpy(), 0), moving(write)


def torchrl_buffer(rows: TensorDict) -> object:
    """The peer's buffer of a million rows."""
    from torchrl.data import LazyTensorStorage as PeerStorage
    from torchrl.data import TensorDictReplayBuffer as PeerBuffer

    peer = PeerBuffer(storage=PeerStorage(ROWS), batch_size=BATCH)
    peer.extend(rows)
    return peer


def cpprb_buffer() -> object:
    """The other peer's buffer, of the same leaves."""
    import cpprb

    flag = {"dtype": np.bool_}
    return cpprb.ReplayBuffer(
        ROWS,
        {
            "observation": {"shape": 8, "dtype": np.float32},
            "action": {"shape": 2, "dtype": np.float32},
            "is_init": flag,
            "traj_ids": {"dtype": np.int64},
            "next_observation": {"shape": 8, "dtype": np.float32},
            "reward": {"dtype": np.float32},
            "done": flag,
            "terminated": flag,
            "truncated": flag,
        },
    )


def arrays(rows: TensorDict) -> dict[str, np.ndarray]:
    """The leaves as the other peer takes them."""
    found = {"next_observation": rows["next", "observation"].numpy()}
    found |= {key: rows[key].numpy() for key in ("observation", "action", "is_init")}
    found["traj_ids"] = rows["collector", "traj_ids"].numpy().reshape(-1, 1)
    names = ("reward", "done", "terminated", "truncated")
    return found | {name: rows["next", name].numpy() for name in names}


def main() -> None:
    """Print the tables."""
    threads = torch.get_num_threads()
    print(f"{threads} thread; cpprb and the floors use one as well")
    rows, many, one = steps(ROWS), steps(LONG), steps(1)[0]
    ours = TensorDictReplayBuffer(storage=LazyTensorStorage(ROWS), batch_size=BATCH)
    ours.extend(rows)
    calls: dict[str, Calls] = {"sample": {}, "extend": {}, "add": {}}
    try:
        peer = torchrl_buffer(rows)
        calls["sample"]["torchrl"] = peer.sample
        calls["extend"]["torchrl"] = lambda: peer.extend(many)
        calls["add"]["torchrl"] = lambda: peer.add(one)
    except ImportError:
        print("torchrl is not installed: its lines are left out")
    try:
        other, plain, single = cpprb_buffer(), arrays(many), arrays(one.unsqueeze(0))
        for _ in range(ROWS // LONG):
            other.add(**plain)
        calls["sample"]["cpprb"] = lambda: other.sample(BATCH)
        calls["extend"]["cpprb"] = lambda: other.add(**plain)
        calls["add"]["cpprb"] = lambda: other.add(**single)
    except ImportError:
        print("cpprb is not installed: its lines are left out")
    gather, write = floors(ROWS, ours.storage.store.schema.row_bytes)
    calls["sample"]["floor: draw, and gather packed rows"] = gather
    calls["extend"]["floor: copy packed rows"] = write
    blank = Rows.zeros(ours.storage.store.schema, ROWS)
    copy = copies(blank, many)
    calls["extend"]["floor: copy nine leaves into packed rows"] = moving(copy)
    calls["extend"]["floor: all that must be done, by hand"] = moving(by_hand(copy, many))
    calls["sample"]["rl-replay"] = ours.sample
    calls["extend"]["rl-replay"] = lambda: ours.extend(many)
    calls["add"]["rl-replay"] = lambda: ours.add(one)
    show(f"sample {BATCH} of {ROWS:,} rows", calls["sample"], 20, 50)
    show(f"extend by {LONG:,} rows", calls["extend"], 20, 10)
    show("add one row", calls["add"], 20, 50)


if __name__ == "__main__":
    with session():
        random.seed(0)  # the order of turns
        main()
