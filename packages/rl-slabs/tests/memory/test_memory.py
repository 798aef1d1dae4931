import multiprocessing
import os

import pytest

from rl_slabs import LazyFile
from rl_slabs.memory.memory import Memory


def promised(kind, nbytes, folder):
    if kind == "private":
        return Memory.private(0, promised=nbytes)
    file = LazyFile.shared("a test") if kind == "shared" else LazyFile.mapped(folder / "file")
    return Memory.promised_in(file, nbytes)


@pytest.mark.parametrize("nbytes", [1, 4097, (1 << 21) + 3])
def test_new_memory_is_zero_writable_and_on_a_page(nbytes):
    array = Memory.private(nbytes).array
    assert array.shape == (nbytes,)
    assert not array.any()
    assert array.ctypes.data % 4096 == 0
    array[-1] = 1


def test_promised_memory_lies_behind_the_new_one():
    array = Memory.private(5000, promised=1 << 44).array
    assert array.shape == (5000 + (1 << 44),)
    array[5000] = 1
    assert array[:5002].tolist() == [0] * 5000 + [1, 0]


@pytest.mark.parametrize("kind", ["private", "shared", "mapped"])
def test_memory_is_zero_and_keeps_what_is_written(kind, tmp_path):
    memory = promised(kind, 3 << 20, tmp_path)
    memory.secure(1 << 20, 2 << 20, "a test")
    assert len(memory) == 3 << 20
    assert not memory.array[1 << 20 : 2 << 20].any()
    memory.array[1 << 20] = 7
    assert memory.array[1 << 20] == 7


def test_a_file_takes_no_more_disk_than_was_secured(tmp_path):
    memory = promised("mapped", 1 << 30, tmp_path)
    assert os.stat(tmp_path / "file").st_blocks == 0
    memory.secure(0, 1 << 20, "a test")
    assert os.stat(tmp_path / "file").st_blocks * 512 < 2 << 20


def test_more_memory_than_there_is_is_an_error_that_says_so(tmp_path):
    memory = promised("private", 1 << 44, tmp_path)
    with pytest.raises(OSError, match=r"a test takes .* of memory"):
        memory.secure(0, 1 << 44, "a test")


def test_private_memory_stays_in_its_process():
    with pytest.raises(TypeError, match="a private memory stays in its process"):
        multiprocessing.reduction.ForkingPickler.dumps(Memory.private(4096))


@pytest.mark.parametrize("kind", ["private", "shared"])
def test_memory_that_was_touched_is_zero_and_leaves_the_rest_alone(kind, tmp_path):
    memory = promised(kind, 9 << 20, tmp_path)
    memory.array[-1] = 7
    memory.touch(100, 5 << 20, "a test")
    assert not memory.array[100 : 5 << 20].any()
    assert memory.array[-1] == 7


def test_views_outlive_memory_that_is_closed(tmp_path):
    memory = promised("mapped", 4096, tmp_path)
    memory.secure(0, 4096, "a test")
    view, descriptor = memory.array, memory.file.fileno()
    memory.close()
    view[7] = 9
    assert view[7] == 9
    assert len(memory) == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
