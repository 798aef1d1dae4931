"""A file holds more rows than the process that writes them may have memory."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from rl_replay import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer

ROWS, PART, MEMORY = 48_000, 500, 64 << 20
ROW_BYTES = 64 * 64 + 8


def rows(first: int, count: int) -> TensorDict:
    """Rows whose bytes all tell which row they are of, modulo 251."""
    number = torch.arange(first, first + count)
    pixels = number.int()[:, None] * 31 + torch.arange(64 * 64, dtype=torch.int32) * 7
    pixels %= 251
    frame = pixels.to(torch.uint8).view(count, 64, 64)
    return TensorDict({"frame": frame, "number": number}, [count])


def limit_memory() -> None:
    """Let this process have so much more memory; mapped files are none of it."""
    status = Path("/proc/self/status").read_text()
    taken = next(int(line.split()[1]) for line in status.splitlines() if "VmData" in line)
    limit = taken * 1024 + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def write_and_read(folder: Path) -> None:
    torch.set_num_threads(1)  # those of OpenMP are not in a forked child
    limit_memory()
    with pytest.raises(OSError, match="memory"):
        ReplayBuffer(storage=LazyTensorStorage(ROWS)).extend(rows(0, PART))
    buffer = ReplayBuffer(storage=LazyMemmapStorage(ROWS, scratch_dir=folder), batch_size=64)
    last = ROWS + 2 * PART  # the oldest rows are overwritten
    for first in range(0, last, PART):
        buffer.extend(rows(first, PART))
    assert len(buffer) == ROWS
    for first in range(0, ROWS, PART):
        found = buffer[first : first + PART]
        begin = first + (ROWS if first < 2 * PART else 0)
        assert (found == rows(begin, PART)).all()
    sample = buffer.sample()
    for number, frame in zip(sample["number"].tolist(), sample["frame"], strict=True):
        assert torch.equal(frame, rows(number, 1)["frame"][0])


def test_mapped_storage_holds_more_rows_than_memory(tmp_path: Path) -> None:
    need, free = 2 * ROWS * ROW_BYTES, shutil.disk_usage(tmp_path).free
    if free < need:
        pytest.skip(f"the disk has {free >> 20} MiB, and the test wants {need >> 20} MiB free")
    assert ROWS * ROW_BYTES > 2 * MEMORY
    child = os.fork()
    if not child:
        code = 1
        try:
            write_and_read(tmp_path)
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_mapped_rows_are_read_without_reading_ahead(tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=LazyMemmapStorage(50, scratch_dir=tmp_path, lossless=True))
    one = {"observation": torch.zeros(9), "next": {"observation": torch.ones(9)}}
    buffer.add(TensorDict(one, []))
    buffer.dumps(tmp_path / "dump")
    advised, name = {}, ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            name = line.rpartition("/")[2] if str(tmp_path) in line else ""
        elif name and line.startswith("VmFlags:"):
            advised[name] = "rr" in line.split()
    assert advised == {"rows.slab": True, "side.slab": True, "tables.slab": True}
