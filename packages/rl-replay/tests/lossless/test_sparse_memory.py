import multiprocessing
import os

import pytest

from rl_replay.lossless.sparse_memory import SparseMemory


@pytest.mark.parametrize("kind", ["private", "shared", "mapped"])
def test_memory_is_zero_and_keeps_what_is_written(kind, tmp_path):
    memory = SparseMemory(3 << 20, kind, tmp_path / "file" if kind == "mapped" else None)
    memory.secure(1 << 20, 2 << 20, "a test")
    assert len(memory) == 3 << 20
    assert not memory.array[1 << 20 : 2 << 20].any()
    memory.array[1 << 20] = 7
    assert memory.array[1 << 20] == 7


def test_a_file_takes_no_more_disk_than_was_secured(tmp_path):
    memory = SparseMemory(1 << 30, "mapped", tmp_path / "file")
    assert os.stat(tmp_path / "file").st_blocks == 0
    memory.secure(0, 1 << 20, "a test")
    assert os.stat(tmp_path / "file").st_blocks * 512 < 2 << 20


def test_more_memory_than_there_is_is_an_error_that_says_so():
    memory = SparseMemory(1 << 44)
    with pytest.raises(OSError, match=r"a test takes .* of memory"):
        memory.secure(0, 1 << 44, "a test")


def test_a_file_that_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "file").write_text("something")
    with pytest.raises(FileExistsError):
        SparseMemory(4096, "mapped", tmp_path / "file")
    with pytest.raises(ValueError, match="a path belongs to a mapped memory"):
        SparseMemory(4096, "shared", tmp_path / "file")


def test_private_memory_stays_in_its_process():
    with pytest.raises(TypeError, match="a private memory stays in its process"):
        multiprocessing.reduction.ForkingPickler.dumps(SparseMemory(4096))


@pytest.mark.parametrize("kind", ["private", "shared"])
def test_memory_that_was_touched_is_zero_and_leaves_the_rest_alone(kind):
    memory = SparseMemory(9 << 20, kind)
    memory.array[-1] = 7
    memory.touch(100, 5 << 20, "a test")
    assert not memory.array[100 : 5 << 20].any()
    assert memory.array[-1] == 7
