import gc
import tracemalloc

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_slabs import PackedRows
from rl_slabs.internals import aligned_bytes
from rl_slabs.rows import blocks

LARGE = blocks.LEAST_BYTES + 24
OTHER = LARGE + 64


@pytest.fixture(autouse=True)
def nothing_free():
    """Takes whatever blocks of the sizes of these tests are free, and holds them."""
    gc.collect()
    held = [aligned_bytes(size) for size in (LARGE, OTHER) for _ in range(blocks.MOST_FREE)]
    yield
    held.clear()


@pytest.mark.parametrize("nbytes", [7, 4096, LARGE])
def test_blocks_begin_at_a_cache_line(nbytes):
    block = aligned_bytes(nbytes)
    assert (block.ctypes.data % 64, block.nbytes, block.dtype) == (0, nbytes, np.uint8)
    block[:] = 1
    assert block.flags.writeable


def test_a_large_block_is_used_again_once_it_is_released():
    block = aligned_bytes(LARGE)
    address = block.ctypes.data
    del block
    assert aligned_bytes(LARGE).ctypes.data == address


KEEPS = {
    "a view": lambda block: block[8:16],
    "a view of a view": lambda block: block[8:].reshape(-1, 8).view(np.int64)[1],
    "a tensor": torch.from_numpy,
    "a view of a tensor": lambda block: torch.from_numpy(block).view(torch.int64)[3:9],
    "storage of a tensor": lambda block: torch.from_numpy(block).untyped_storage(),
    "a memoryview": memoryview,
    "an array over its memory": lambda block: np.frombuffer(block.data, np.uint8)[5:],
}


@pytest.mark.parametrize("keep", KEEPS.values(), ids=KEEPS)
def test_a_block_that_something_reads_is_not_used_again(keep):
    block = aligned_bytes(LARGE)
    address, kept = block.ctypes.data, keep(block)
    del block
    gc.collect()
    other = aligned_bytes(LARGE)
    assert other.ctypes.data != address
    del kept
    gc.collect()
    assert aligned_bytes(LARGE).ctypes.data == address


def test_blocks_of_another_size_are_not_taken():
    block = aligned_bytes(LARGE)
    address = block.ctypes.data
    del block
    assert aligned_bytes(OTHER).ctypes.data != address
    assert aligned_bytes(LARGE).ctypes.data == address


def test_few_free_blocks_are_kept():
    leases = blocks._leases  # private: a note that is never removed is seen nowhere else
    before = len(leases)
    tracemalloc.start()
    try:
        held = [aligned_bytes(LARGE) for _ in range(3 * blocks.MOST_FREE)]
        assert tracemalloc.get_traced_memory()[0] // LARGE == len(held)
        held.clear()
        assert tracemalloc.get_traced_memory()[0] // LARGE == blocks.MOST_FREE
    finally:
        tracemalloc.stop()
    assert len(leases) == before


def test_unpacked_rows_keep_their_block():
    rows = TensorDict({"frame": torch.arange(2 * 300_000, dtype=torch.int64).view(2, -1)}, [2])
    found = PackedRows.of(rows).unpack(copy=False)
    others = [PackedRows.of(TensorDict({"frame": torch.zeros_like(rows["frame"])}, [2]))]
    others.append(PackedRows.of(TensorDict({"frame": torch.zeros_like(rows["frame"])}, [2])))
    assert found["frame"].equal(rows["frame"])
