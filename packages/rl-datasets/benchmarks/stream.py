"""How long a learner waits for a stream of frames that it consumes as fast as they can be read.

Run with `nox -s "bench(rl-datasets)"`. A shard of the DQN replay dataset, frames of 84 x 84, is
read once by its reader alone: so many rows a second are its own speed. Then a learner draws 256
rows, works on them for as long as reading 256 rows takes, as a device would, and draws the next.
It waits for rows to come; altogether it waits as much longer than for batches of the same dataset,
converted, as its calls of `sample` take longer. Both are shares of the time of the whole run. The
ring is small, so that the rows read ahead before the first sample are soon used up.
"""

from __future__ import annotations

import gzip
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from bench import report, session, turns

from rl_datasets import AtariDQNExperienceReplay, AtariDQNSource, StreamOptions

ROWS, BATCH, RING, BATCHES = 40_000, 256, 4_096, 150
SHARES: list[str] = []


def write(folder: Path) -> Path:
    """A shard: a few bright squares that move over a dark frame, as in a game."""
    rng = np.random.default_rng(0)
    frames = np.zeros((ROWS, 84, 84), np.uint8)
    for square in range(12):
        row, column = rng.integers(0, 76, 2)
        steps = np.arange(ROWS)
        rows, columns = (row + steps * (square + 1)) % 76, (column + steps) % 76
        for down in range(8):
            for right in range(8):
                frames[steps, rows + down, columns + right] = 20 * square + 15
    noise = rng.integers(0, 256, (ROWS, 84), dtype=np.uint8)
    frames[:, 0] = noise  # a score, say
    columns = {
        "observation": frames,
        "action": rng.integers(0, 6, ROWS, dtype=np.int32),
        "reward": rng.normal(size=ROWS).astype(np.float32),
        "terminal": (np.arange(ROWS) % 500 == 499).astype(np.uint8),
    }
    for name, rows_ in columns.items():
        with gzip.open(folder / f"$store$_{name}_ckpt.0.gz", "wb", compresslevel=6) as file:
            np.save(file, rows_)
    return folder


def own_speed(folder: Path) -> float:
    """Rows a second of the reader alone."""
    begin = time.perf_counter()
    count = sum(len(episode) for episode in AtariDQNSource(folder).episodes())
    return count / (time.perf_counter() - begin)


def sample_s(data: AtariDQNExperienceReplay, work_s: float) -> list[float]:
    """Seconds of each call of `sample`, of a learner that works on what it drew."""
    found = []
    for _ in range(turns(BATCHES)):
        begin = time.perf_counter()
        data.sample()
        found.append(time.perf_counter() - begin)
        time.sleep(work_s)
    return found


def main() -> None:
    """All figures."""
    torch.set_num_threads(1)
    with session(), tempfile.TemporaryDirectory() as name:
        folder = write(Path(name))
        options = {"path": folder, "root": name, "verbose": False}
        rows = AtariDQNExperienceReplay("Pong/1", BATCH, **options)  # the page cache is warm
        rows.sample()
        for turn in range(turns(5)):
            speed = own_speed(folder)
            work_s = BATCH / speed
            still = sample_s(rows, work_s)
            ring = StreamOptions(ring_rows=RING)
            data = AtariDQNExperienceReplay("Pong/1", BATCH, streaming=ring, **options)
            data.sample()
            waited, begin = data.waited_s, time.perf_counter()
            calls = sample_s(data, work_s)
            whole = time.perf_counter() - begin
            waited = (data.waited_s - waited) / whole
            data.close()
            longer = (sum(calls) - sum(still)) / whole
            print(
                f"  {turn + 1}: the reader alone {speed:,.0f} rows a second, the learner "
                f"{len(calls) * BATCH / whole:,.0f}; it waited {waited:.1%} of its time for rows "
                f"to come, and {longer:.1%} altogether"
            )
            name_of = f"sample {BATCH} frames of 84 x 84, turn {turn + 1}"
            median, other = (statistics.median(one) * 1e6 for one in (calls, still))
            report(name_of, median, other, peer="converted dataset")


if __name__ == "__main__":
    main()
