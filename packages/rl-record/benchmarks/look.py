"""Time a page of 1,000,000 rows, from a buffer and from a dump, and print its size.

Run with `nox -s "bench(rl-record)"`. The floor is one copy of the rows of the buffer.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable

import torch
from bench import medians_us, session, table
from tensordict import TensorDict

from rl_layout import EndKind
from rl_layout.synthetic import trajectories
from rl_record import look
from rl_replay import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

ROWS, RUNS = 1_000_000, 5


def rows() -> TensorDict:
    """Trajectories of 10 to 400 steps with nine leaves and real-valued observations."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(10, 400, (ROWS // 150,), generator=generator).tolist()
    kinds = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.TERMINATED]
    batch = trajectories(lengths, [kinds[i % 3] for i in range(len(lengths))])[:ROWS]
    observations = torch.randn(ROWS + 1, 4, generator=generator)
    batch["observation"], batch["next", "observation"] = observations[:-1], observations[1:]
    batch["next", "reward"] = torch.randn(ROWS, 1, generator=generator)
    return batch


def cold(commands: dict[str, list[str]]) -> list[float]:
    """Microseconds of each command of Python, in turn."""

    def runs(options: list[str]) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, *options], check=True, capture_output=True)

    return medians_us(RUNS, *map(runs, commands.values()), warm_up=1)


def main() -> None:
    """Print seconds and bytes."""
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(ROWS), sampler=SliceSampler(slice_len=32), batch_size=256
    )
    buffer.extend(rows())
    with tempfile.TemporaryDirectory() as folder:
        buffer.dumps(folder)
        calls: dict[str, Callable[[], object]] = {
            "look(buffer)": lambda: look(buffer).html,
            "look(dump)": lambda: look(folder).html,
            "a copy of the rows": lambda: buffer[:].clone(),
        }
        found = medians_us(RUNS, *calls.values(), warm_up=1)
        table("1,000,000 rows", dict(zip(calls, found, strict=True)), "look(buffer)")
        commands = {
            "python -m rl_record.look": [
                "-m",
                "rl_record.look",
                folder,
                "--out",
                f"{folder}/page.html",
            ],
            "import torch, tensordict": ["-c", "import torch, tensordict"],
        }
        table(
            "a process of its own",
            dict(zip(commands, cold(commands), strict=True)),
            next(iter(commands)),
        )
        size = look(folder).save(f"{folder}/page.html").stat().st_size
        print(f"a page of {ROWS:,} rows has {size:,} bytes")


if __name__ == "__main__":
    with session():
        main()
