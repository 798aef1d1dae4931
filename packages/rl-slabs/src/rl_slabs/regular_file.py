"""Opening files that somebody else may have put there: only regular ones, without waiting."""

from __future__ import annotations

import os
import stat


def open_regular(path: str | os.PathLike[str], flags: int, *, follow: bool = True) -> int:
    """Open a regular file; never blocks on a pipe."""
    kind = 0 if follow else os.O_NOFOLLOW
    if not follow and os.path.islink(path):
        raise ValueError(f"{os.fspath(path)} is a symbolic link: expected a regular file.")
    if stat.S_ISDIR(os.stat(path, follow_symlinks=follow).st_mode):
        raise IsADirectoryError(f"{os.fspath(path)} is a folder: expected a regular file.")
    # without O_NONBLOCK opening a pipe waits for its other end
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | kind)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.set_blocking(descriptor, True)
        return descriptor
    os.close(descriptor)
    raise ValueError(
        f"{os.fspath(path)} is no regular file: expected one, not a device, pipe or folder."
    )


def path_name(path: str | os.PathLike[str]) -> str:
    """A path as a string, or TypeError for what is none."""
    try:
        return os.fspath(path)
    except TypeError:
        raise TypeError(
            f"expected a path, a string or a pathlib.Path: got {type(path).__name__}."
        ) from None
