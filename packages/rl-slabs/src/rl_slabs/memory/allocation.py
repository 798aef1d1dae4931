"""Taking memory and disk space for good, or saying at once that there is too little."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def require_memory(nbytes: int, wanted: str) -> None:
    """Raise `OSError` (`ENOMEM`) unless this much memory is free."""
    # An allocation beyond what is there succeeds on Linux, and the kernel kills some process when
    # the pages are touched. So free memory is checked first.
    free, limit = min(_limits())
    if nbytes > free:
        raise OSError(
            errno.ENOMEM,
            f"{wanted} takes {_size(nbytes)} of memory, but {limit} leaves {_size(free)}. "
            "Lower the capacity, or use Slab.mapped with a path on a disk",
        )


def take_space(descriptor: int, nbytes: int, wanted: str, *, promised: int = 0) -> None:
    """Set a file's size and allocate every block, zero-filled."""
    # A sparse file costs nothing until a page of it is touched, and a full disk then ends the
    # process by SIGBUS.
    system = os.fstatvfs(descriptor)
    missing = nbytes - os.fstat(descriptor).st_blocks * 512
    free = system.f_bavail * system.f_frsize
    # memory files report no blocks at all: require_memory looks after those
    if system.f_blocks and missing > free:
        raise OSError(
            errno.ENOSPC,
            f"{wanted} takes {_size(missing)} more on its file system, but {_size(free)} of "
            f"{_size(system.f_blocks * system.f_frsize)} are free. "
            "Lower the capacity, or choose a directory on another file system",
        )
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
        if promised:
            os.ftruncate(descriptor, nbytes + promised)
    except OSError as error:
        file_limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        also = "" if file_limit == resource.RLIM_INFINITY else f", RLIMIT_FSIZE {file_limit} bytes"
        raise OSError(
            error.errno,
            f"{wanted} takes {_size(nbytes)} in one file: {os.strerror(error.errno or 0)} "
            f"(file system free {_size(free)}{also}). Lower the capacity, or raise the limit",
        ) from error


def take_piece(descriptor: int, start: int, stop: int, wanted: str, *, on_disk: bool) -> None:
    """Allocate bytes `[start, stop)` of a reserved range."""
    if not on_disk:
        require_memory(stop - start, wanted)
    if descriptor < 0:
        return
    system = os.fstatvfs(descriptor)
    free = system.f_bavail * system.f_frsize
    # memory files report no blocks at all; a disk is not filled to learn that it is too small
    if system.f_blocks and stop - start > free:
        raise _too_little(errno.ENOSPC, stop - start, free, wanted)
    try:
        os.posix_fallocate(descriptor, start, stop - start)
    except OSError as error:
        raise _too_little(error.errno, stop - start, free, wanted) from error


def _too_little(code: int | None, nbytes: int, free: int, wanted: str) -> OSError:
    return OSError(
        code,
        f"{wanted} takes {nbytes} bytes more, but {free} are free: {os.strerror(code or 0)}. "
        "Lower the capacity, or choose a directory on another file system",
    )


def _limits() -> Iterator[tuple[int, str]]:
    """What each limit on memory leaves, in bytes, and its name."""
    lines = dict(line.split(":", 1) for line in _text(Path("/proc/meminfo")).splitlines())
    kib = [int(lines.get(name, "0").split()[0]) for name in ("MemAvailable", "SwapFree")]
    yield sum(kib) * 1024, "the machine (MemAvailable and SwapFree)"
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, place = line.split(":", 2)
        if not controllers:
            yield from cgroup_limits(_CGROUPS, place, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            yield from cgroup_limits(_CGROUPS / "memory", place, *names)


def cgroup_limits(
    root: Path, place: str, limit_name: str, usage_name: str
) -> Iterator[tuple[int, str]]:
    """What each limit of a control group and of those above it leaves, in bytes, and its file."""
    group = root / place.lstrip("/")
    for folder in (group, *group.parents):
        limit, usage = (_text(folder / name).strip() for name in (limit_name, usage_name))
        if limit.isdecimal() and usage.isdecimal():
            # file pages count as used, but the kernel gives them up first
            stat = dict(line.split(" ", 1) for line in _text(folder / "memory.stat").splitlines())
            cache = sum(int(stat.get(name, 0)) for name in ("inactive_file", "active_file"))
            yield int(limit) - int(usage) + cache, f"{folder / limit_name}"
        if folder == root:
            return


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _size(nbytes: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(nbytes) >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes} bytes"
