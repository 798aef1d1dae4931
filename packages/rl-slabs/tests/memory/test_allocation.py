import errno
import os
import resource
import signal

import pytest

from rl_slabs.memory.allocation import cgroup_limits, require_memory, take_space


def test_more_memory_than_there_is_is_refused_with_what_is_free():
    with pytest.raises(
        OSError, match=r"everything takes .* GiB of memory, but .* leaves"
    ) as caught:
        require_memory(1 << 60, "everything")
    assert caught.value.errno == errno.ENOMEM


def test_space_is_really_taken(tmp_path):
    with (tmp_path / "a").open("w+b") as file:
        take_space(file.fileno(), 100_000, "this")
        status = os.fstat(file.fileno())
    assert status.st_size == 100_000
    assert status.st_blocks * 512 >= 100_000


def test_take_space_keeps_the_bytes_of_the_file(tmp_path):
    with (tmp_path / "a").open("w+b") as file:
        file.write(b"kept")
        file.flush()
        take_space(file.fileno(), 100, "this")
    assert (tmp_path / "a").read_bytes() == b"kept" + bytes(96)


def test_more_than_the_file_system_has_is_refused_before_it_is_filled(tmp_path):
    with (tmp_path / "a").open("w+b") as file:
        with pytest.raises(OSError, match=r"more on its file system, but .* are free") as caught:
            take_space(file.fileno(), 1 << 55, "this")
        assert caught.value.errno == errno.ENOSPC
        assert os.fstat(file.fileno()).st_size == 0


def beyond_the_limit(pipe, path):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    with path.open("w+b") as file:
        try:
            take_space(file.fileno(), 20_000, "this")
        except OSError as error:
            pipe.send((error.errno, str(error)))


def test_a_limit_on_files_is_named(forked, tmp_path):
    number, said = forked(beyond_the_limit, tmp_path / "a").receive()
    assert number == errno.EFBIG
    assert "RLIMIT_FSIZE 10000 bytes" in said


def test_the_smallest_limit_of_all_control_groups_above_counts(tmp_path):
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    for folder, limit, usage in ((inner, "max", 30), (inner.parent, "100", 70)):
        (folder / "limit").write_text(f"{limit}\n")
        (folder / "usage").write_text(f"{usage}\n")
        (folder / "memory.stat").write_text("active_file 4\ninactive_file 1\nanon 60\n")
    found = list(cgroup_limits(tmp_path, "/outer/inner", "limit", "usage"))
    assert found == [(100 - 70 + 5, str(inner.parent / "limit"))]
