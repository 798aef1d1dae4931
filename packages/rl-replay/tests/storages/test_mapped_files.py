"""What writing to the files of a mapped storage costs, and what `flush` leaves to be written."""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from rl_replay import LazyMemmapStorage

CACHESTAT = 451  # the number of the system call on all machines
STEPS = 500


def rows(trajectories: range) -> TensorDict:
    """Trajectories of equal lengths, end to end."""
    count = len(trajectories) * STEPS
    seen = torch.randn(len(trajectories), STEPS + 1, 25, dtype=torch.float64)
    last = (torch.arange(count) % STEPS == STEPS - 1).unsqueeze(-1)
    ids, steps = torch.tensor(list(trajectories)), torch.arange(STEPS)
    return TensorDict(
        {
            "observation": seen[:, :-1].flatten(0, 1),
            "is_init": last.roll(1),
            "collector": {
                "traj_ids": ids.repeat_interleave(STEPS),
                "traj_step": steps.repeat(len(trajectories)),
            },
            "next": {
                "observation": seen[:, 1:].flatten(0, 1),
                "reward": torch.randn(count, 1, dtype=torch.float64),
                "terminated": torch.zeros_like(last),
                "truncated": last,
                "done": last,
            },
        },
        [count],
    )


def page_faults() -> int:
    """Of this process, those for pages in the kernel's cache and those for others."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_minflt + used.ru_majflt


def dirty_pages(path: Path) -> int:
    """Pages of a file that are changed and not on the disk."""
    found, whole = (ctypes.c_uint64 * 5)(), (ctypes.c_uint64 * 2)(0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        failed = libc.syscall(CACHESTAT, descriptor, ctypes.byref(whole), ctypes.byref(found), 0)
    finally:
        os.close(descriptor)
    if failed:
        pytest.skip(f"this kernel does not tell dirty pages: {os.strerror(ctypes.get_errno())}")
    return int(found[1])


@pytest.mark.parametrize("lossless", [False, ["observation"]])
def test_rows_at_new_positions_touch_few_pages_of_their_file(tmp_path, lossless) -> None:
    storage = LazyMemmapStorage(30 * STEPS, scratch_dir=tmp_path, lossless=lossless)
    storage.extend(rows(range(10)))
    later = rows(range(10, 30))
    before = page_faults()
    storage.extend(later)
    faults = page_faults() - before
    written = len(later) * storage.store.rows.schema.nbytes
    # what is made in memory on the way has faults too
    assert faults < written / resource.getpagesize() / 2
    assert torch.equal(storage[10 * STEPS :]["next", "observation"], later["next", "observation"])


def test_a_flush_leaves_no_page_of_any_file_to_be_written(tmp_path) -> None:
    storage = LazyMemmapStorage(30 * STEPS, scratch_dir=tmp_path, lossless=["observation"])
    storage.keep_index(True)
    storage.extend(rows(range(20)))
    files = sorted(tmp_path.glob("*.slab"))
    assert len(files) > 1
    assert all(dirty_pages(path) for path in files)
    storage.flush()
    assert [dirty_pages(path) for path in files] == [0] * len(files)
