"""What storing each observation once costs and saves, alongside rows that store it twice.

    nox -s "bench(rl-replay)"

One process, fresh random indices for every call, the contenders taking turns; medians. The tables:
a sample of 256 small rows and one of frames, against the same rows stored plainly; the same of
whole buffers, by the kind of their memory; writing; and bytes per row alongside what storing each
observation once takes. The floor of a sample of small rows
reads them and the rows a fixed distance after them, whatever these name: so it knows nothing of
trajectories that end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from bench import medians_us, session, table
from tensordict import TensorDict

from rl_replay import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer
from rl_replay.lossless.layout import LosslessLayout
from rl_replay.lossless.rows import LosslessRows
from rl_slabs import Rows, RowSchema

BATCH = 256
FLAG = (torch.bool, (1,))
MARKERS = {
    "action": (torch.float32, (2,)),
    "is_init": FLAG,
    ("collector", "traj_ids"): (torch.int64, ()),
    ("next", "reward"): (torch.float32, (1,)),
    ("next", "done"): FLAG,
    ("next", "terminated"): FLAG,
    ("next", "truncated"): FLAG,
}
SMALL = (torch.float32, (8,))
FRAME = (torch.uint8, (4, 84, 84))


def schema_of(observation: tuple[torch.dtype, tuple[int, ...]]) -> RowSchema:
    """Nine leaves: an observation, the next one, an action, a reward and the markers."""
    both = {"observation": observation, ("next", "observation"): observation}
    return RowSchema({**both, **MARKERS})


def batches(
    schema: RowSchema, count: int, environments: int, steps: int, episode: float
) -> Iterator[tuple[TensorDict, np.ndarray]]:
    """Rows of some environments, `steps` of each per batch, and how far back each continues.

    Environments lie step by step alongside each other. An episode's length is geometric.
    """
    generator = np.random.default_rng(0)
    field = schema["observation"]
    shape = (steps, environments, *field.shape)
    seen = _random(shape[1:], field.dtype)
    fresh = np.ones(environments, dtype=np.bool_)
    for _ in range(0, count, environments * steps):
        following, reset = _random(shape, field.dtype), _random(shape[1:], field.dtype)
        ended = generator.random((steps, environments)) < 1 / episode
        here = torch.from_numpy(ended).view(steps, environments, *[1] * len(field.shape))
        after = torch.where(here, reset, following)
        root = torch.cat([seen[None], after[:-1]])
        begun = np.concatenate([fresh[None], ended[:-1]])
        seen, fresh = after[-1], ended[-1]
        rows = TensorDict({}, batch_size=[environments * steps])
        for key in schema:
            leaf = schema[key]
            rows[key] = torch.zeros(len(rows), *leaf.shape, dtype=leaf.dtype)
        rows["observation"] = root.flatten(0, 1)
        rows["next", "observation"] = following.flatten(0, 1)
        yield rows, np.where(begun, 0, environments).astype(np.int32).reshape(-1)


def _random(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(255, shape, dtype=torch.uint8).to(dtype)


def filled(
    schema: RowSchema, count: int, environments: int = 1, steps: int = 1000, episode: float = 200
) -> LosslessRows:
    """Compact rows, full."""
    rows = LosslessRows.zeros(schema, count)
    start = 0
    for cells, back in batches(schema, count, environments, steps, episode):
        stop = min(start + len(cells), count)
        numbers = range(start, stop)
        rows.write(slice(start, stop), numbers, cells[: len(numbers)], back[: len(numbers)])
        rows.linker.link_predecessors(numbers)
        start = stop
    return rows


def show(
    work: str, calls: dict[str, Callable[[torch.Tensor], object]], count: int, rounds: int
) -> None:
    """One table; every call gets indices of its own."""
    index = torch.empty(BATCH, dtype=torch.int64)

    def draw() -> None:
        torch.randint(count, (BATCH,), out=index)

    bound = [partial(call, index) for call in calls.values()]
    found = medians_us(rounds, *bound, warm_up=0, burst=20, before=[draw] * len(bound))
    both, once = found[:2]
    notes = {"each observation once": f"{once - both:+.1f} us"}
    if len(found) > 2:
        notes["floor"] = f"{found[2] - both:+.1f} us"
    table(work, dict(zip(calls, found, strict=True)), "each observation once", notes)


def sampling(title: str, schema: RowSchema, count: int, environments: int, rounds: int) -> None:
    """256 random rows, complete: stored plainly, and each observation once."""
    compact = filled(schema, count, environments, max(1, 1000 // environments))
    plain = Rows.zeros(schema, count)
    step = 1000
    for start in range(0, count, step):
        place = slice(start, min(start + step, count))
        plain.write(place, compact.read(place))
    words, unpack = compact.rows.packed.numpy(), compact._unpack

    def floor(index: torch.Tensor) -> object:
        places = index.numpy()
        successors = words.take(places + environments, 0, None, "wrap")
        return unpack(words.take(places, 0), [], index.shape, successors)

    contenders = {"both observations stored": plain.gather, "each observation once": compact.gather}
    if schema["observation"].offset is not None:
        contenders["floor"] = floor
    show(f"sample of {BATCH} of {count:,} rows, {title}", contenders, count, rounds)


def in_buffers(count: int, rounds: int) -> None:
    """256 random rows of a buffer, plain and lossless: in private and shared memory and in a file.

    Shared and in a file, a sample also proves that no writer overwrote its rows meanwhile.
    """
    buffers: dict[tuple[str, bool], TensorDictReplayBuffer] = {}
    for once in (False, True):
        for name in ("private", "shared", "file"):
            kind = LazyMemmapStorage if name == "file" else LazyTensorStorage
            storage = kind(count, lossless=once, lanes=None if name == "private" else 1)
            shared = name == "shared"
            buffers[name, once] = TensorDictReplayBuffer(
                storage=storage, batch_size=BATCH, shared=shared
            )
    for cells, back in batches(schema_of(SMALL), count, 1, 1000, 200):
        cells["is_init"] = torch.from_numpy(back == 0)[:, None]
        for buffer in buffers.values():
            buffer.extend(cells)
    for name in ("private", "shared", "file"):
        both, once = (buffers[name, kind].sample for kind in (False, True))
        calls = {
            "both observations stored": lambda _, sample=both: sample(),
            "each observation once": lambda _, sample=once: sample(),
        }
        title = f"sample of {BATCH} of {count:,} rows, 9 leaves, 1 environments, of whole buffers"
        show(f"{title}, {name}", calls, count, rounds)


def writing(schema: RowSchema, count: int, length: int) -> None:
    """Batches of `length` rows of one environment."""
    compact, plain = LosslessRows.zeros(schema, count), Rows.zeros(schema, count)
    written = list(batches(schema, 5 * length, 1, length, 200))

    def both(turn: int) -> None:
        place = turn * length % count
        plain.write(slice(place, place + length), written[turn % len(written)][0])

    def once(turn: int) -> None:
        cells, back = written[turn % len(written)]
        place, numbers = turn * length % count, range(turn * length, (turn + 1) * length)
        compact.write(slice(place, place + length), numbers, cells, back)
        compact.linker.link_predecessors(numbers)

    plain_turns, compact_turns = iter(range(10**9)), iter(range(10**9))
    calls = (lambda: both(next(plain_turns)), lambda: once(next(compact_turns)))
    found = medians_us(200, *calls, warm_up=0)
    names = ("both observations stored", "each observation once")
    table(
        f"write rows of 9 leaves, {length:,} a call", dict(zip(names, found, strict=True)), names[1]
    )


def writing_to_buffers(schema: RowSchema, length: int) -> None:
    """The same through whole buffers, which find out who continues whom; each has its own rows."""
    buffers = [
        TensorDictReplayBuffer(storage=LazyTensorStorage(1_000_000, lossless=once))
        for once in (False, True)
    ]
    calls = []
    for buffer in buffers:
        written = []
        for cells, back in batches(schema, 6 * max(length, 200), 1, max(length, 200), 200):
            cells["is_init"] = torch.from_numpy(back == 0)[:, None]
            written += [cells] if length > 1 else list(cells.unbind(0))
        turns = iter(range(10**9))
        write = buffer.extend if length > 1 else buffer.add
        for _ in range(110):  # so that loops for large writes are compiled: after a million rows
            buffer.extend(written[0] if length > 1 else written[0].unsqueeze(0))
        calls.append(
            lambda write=write, turns=turns, written=written: write(
                written[next(turns) % len(written)]
            )
        )
    found = medians_us(200, *calls, warm_up=20)
    names = ("both observations stored", "each observation once")
    title = f"write rows of 9 leaves to a buffer, {length:,} a call"
    table(title, dict(zip(names, found, strict=True)), names[0])


def memory(title: str, schema: RowSchema, rows: LosslessRows, episode: float) -> None:
    """Bytes of a full buffer alongside those of storing each observation once."""
    count, layout = len(rows), LosslessLayout(schema)
    told = rows.explain(count)
    once = schema.nbytes - layout.side.nbytes  # the same row without its next observation
    used = told["row_bytes"] + told["side_slots"] * (rows.side.schema.nbytes + 12) / count
    held = told["row_bytes"] + told["side_bytes"] / count
    print(
        f"  {title:<78}{schema.nbytes:>8}{once:>8}{used:>10.1f}{used / once:>9.4f}"
        f"{held / once:>9.4f}{told['linked_share']:>8.4f}"
    )


def main() -> None:
    """Print every table."""
    small, frames = schema_of(SMALL), schema_of(FRAME)
    for environments in (1, 8):
        sampling(f"9 leaves, {environments} environments", small, 1_000_000, environments, 50)
        sampling(f"84x84x4 frames, {environments} environments", frames, 10_000, environments, 5)
    in_buffers(1_000_000, 50)
    for length in (1, 64, 10_000):
        writing(small, 1_000_000, length)
    for length in (1, 10_000):
        writing_to_buffers(small, length)
    titles = f"{'both':>8}{'once':>8}{'in use':>10}{'ratio':>9}{'taken':>9}{'linked':>8}"
    print(f"\n{'bytes per row':<80}{titles}")
    for environments, steps, episode in ((1, 64, 200), (1, 64, 22), (8, 16, 200), (64, 1, 200)):
        title = f"{environments} environments, {steps} steps an extend, episodes {episode}"
        # of every environment two episodes or more: its newest row has a slot for each observation
        many = 25_600 if environments == 64 else 6_400
        for name, schema, count in (("frames", frames, many), ("9 leaves", small, 64_000)):
            rows = filled(schema, count, environments, steps, episode)
            memory(f"{name}, {title}", schema, rows, episode)


if __name__ == "__main__":
    with session():
        main()
