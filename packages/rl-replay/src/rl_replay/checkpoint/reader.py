"""Reading a dump: every byte is checked before it counts."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from rl_replay.checkpoint.inner_folder import is_folder, named_folder
from rl_replay.checkpoint.manifest import MANIFEST, manifest_of
from rl_replay.checkpoint.other_file import checked_file, is_described
from rl_replay.checkpoint.parts import PIECE_BYTES, SMALL_BYTES, Bytes, tree
from rl_replay.edges import folder_name
from rl_slabs.internals import carrier, dtype_named, open_regular


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read every part of a dump, checked.

    Args:
        path: A folder that `dump` wrote.

    Returns:
        The parts that `dump` was given, with tensors for `Chunks` and a path for each `Folder`,
        whose files the part that wrote them checks itself.

    Raises:
        FileNotFoundError: There is no dump.
        ValueError: A dump that was truncated or altered, or of another version.

    Example:
        >>> import tempfile
        >>> from rl_replay.checkpoint import dump
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     dump(folder, {"words": ["one", "two"], "counts": torch.tensor([3, 4])})
        ...     load(folder)
        {'words': ['one', 'two'], 'counts': tensor([3, 4])}
    """
    with Archive(path) as archive:
        archive.verify()
        return archive.read()


class Archive:
    """A dump that is open for reading, part by part.

    Args:
        path: A folder that `dump` wrote.

    Attributes:
        folder: The same, as a `Path`.

    Raises:
        FileNotFoundError: There is no dump.
        ValueError: A dump that was truncated, or whose manifest was altered, or of another version.

    Example:
        >>> import tempfile
        >>> from rl_replay.checkpoint import dump
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     dump(folder, {"tokens": torch.arange(5), "about": {"language": "en"}})
        ...     with Archive(folder) as archive:
        ...         archive.verify()
        ...         archive.names(), archive.mapped("tokens")[-2:].tolist()
        (['tokens', 'about/language'], [3, 4])
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.folder = Path(folder_name(path))
        self._head = manifest_of(self.folder)
        self._parts: dict[str, dict[str, Any]] = self._head["parts"]
        self._name = self.folder / self._head["data"]["file"]
        try:
            descriptor = open_regular(self._name, os.O_RDONLY, follow=False)
        except FileNotFoundError as error:
            raise ValueError(
                f"{self._name} is missing, which {self.folder / MANIFEST} names. Restore it."
            ) from error
        self._file = os.fdopen(descriptor, "rb", buffering=0)
        size = os.fstat(descriptor).st_size
        if size != self._head["data"]["bytes"]:
            self._file.close()
            raise ValueError(
                f"{self._name} was truncated or appended to: expected "
                f"{self._head['data']['bytes']} bytes, got {size}. Restore it from a copy."
            )

    def names(self) -> list[str]:
        """The names of all parts, groups joined by slashes."""
        return list(self._parts)

    def verify(self) -> None:
        """Read every byte once and compare its checksums."""
        buffer = np.empty(PIECE_BYTES, dtype=np.uint8)
        arrays = {name: part for name, part in self._parts.items() if "offset" in part}
        # an empty one has the offset of the next
        places = sorted((part["offset"], part["bytes"], name) for name, part in arrays.items())
        end = 0
        for start, left, name in places:
            self._file.seek(end)
            gap = buffer[: start - end]
            self._fill(gap, name)
            if gap.any():
                raise ValueError(
                    f"{self._name} was altered: there are bytes between its parts before "
                    f"{name!r}. Restore it from a copy."
                )
            checksum, end = 0, start + left
            while left:
                piece = buffer[: min(left, PIECE_BYTES)]
                self._fill(piece, name)
                checksum = zlib.crc32(piece.data, checksum)
                left -= len(piece)
            self._compare(name, checksum)
        for part in self._parts.values():
            if is_described(part.get("plain")):
                checked_file(self.folder, part["plain"])
            if is_folder(part.get("plain")):
                named_folder(self.folder, part["plain"])

    def read(self, under: str = "") -> dict[str, Any]:
        """The parts that `dump` was given, with tensors for chunks; each is checked."""
        prefix = f"{under}/" if under else ""
        names = [name for name in self._parts if name.startswith(prefix)]
        return tree((name.removeprefix(prefix), self.part(name)) for name in names)

    def part(self, name: str) -> Any:
        """One part."""
        if name in self._parts and "plain" in self._parts[name]:
            plain = self._parts[name]["plain"]
            return self.folder_of(name) if is_folder(plain) else plain
        entry = self._array(name)
        dtype = dtype_named(entry["dtype"])
        bits = torch.empty(entry["shape"], dtype=carrier(dtype), device="cpu")
        self.read_into(name, [bits])
        tensor = bits.view(dtype)
        return tensor.numpy() if entry["kind"] == "array" else tensor

    def read_into(self, name: str, targets: Iterable[torch.Tensor]) -> None:
        """Reads one array into tensors, end to end."""
        entry = self._array(name)
        found = list(targets)
        size = sum(target.numel() * target.element_size() for target in found)
        if size != entry["bytes"]:
            raise ValueError(
                f"part {name!r} of {self._name} has {entry['bytes']} bytes, not {size}."
            )
        checksum = 0
        self._file.seek(entry["offset"])
        for target in found:
            host = target if target.is_cpu else torch.empty_like(target, device="cpu")
            flat_bytes = host.view(carrier(host.dtype)).numpy().reshape(-1).view(np.uint8)
            for start in range(0, len(flat_bytes), PIECE_BYTES):
                piece = flat_bytes[start : start + PIECE_BYTES]
                self._fill(piece, name)
                checksum = zlib.crc32(piece.data, checksum)
            if host is not target:
                target.copy_(host)
        self._compare(name, checksum)

    def folder_of(self, name: str) -> Path:
        """The path of a `Folder`, which is within the dump and no link."""
        return named_folder(self.folder, self._parts.get(name, {}).get("plain"))

    def mapped(self, name: str) -> torch.Tensor:
        """An array without a copy: its pages are read when they are used, and not checked.

        Changes of it stay in this process. It is valid as long as it is used, also when the dump
        was closed or replaced meanwhile.
        """
        entry = self._array(name)
        dtype, shape = self.layout(name)
        if not entry["bytes"]:
            return torch.empty(shape, dtype=dtype, device="cpu")
        where = {"offset": entry["offset"], "shape": (entry["bytes"],)}
        found = np.memmap(self._file, np.uint8, "c", **where)
        return torch.from_numpy(found).view(carrier(dtype)).view(dtype).view(shape)

    def layout(self, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
        """The dtype and the shape of an array."""
        entry = self._array(name)
        return dtype_named(entry["dtype"]), tuple(entry["shape"])

    def pieces(self, name: str) -> Iterator[torch.Tensor]:
        """The rows of an array, one piece after another; the last one comes if all were right."""
        entry = self._array(name)
        dtype = dtype_named(entry["dtype"])
        inner = entry["shape"][1:]
        each = max(1, dtype.itemsize * prod(inner))
        step = max(1, SMALL_BYTES // each)
        checksum, place = 0, entry["offset"]
        for start in range(0, entry["shape"][0], step):
            count = min(step, entry["shape"][0] - start)
            bits = torch.empty((count, *inner), dtype=carrier(dtype), device="cpu")
            flat_bytes = bits.numpy().reshape(-1).view(np.uint8)
            self._file.seek(place)  # others may read in between
            self._fill(flat_bytes, name)
            checksum = zlib.crc32(flat_bytes.data, checksum)
            place += len(flat_bytes)
            if start + count == entry["shape"][0]:
                self._compare(name, checksum)
            yield bits.view(dtype)

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _array(self, name: str) -> dict[str, Any]:
        entry = self._parts.get(name)
        if entry is None or "offset" not in entry:
            raise ValueError(f"{self.folder} has no array {name!r}, only {self.names()}.")
        return entry

    def _fill(self, piece: Bytes, name: str) -> None:
        view, got = piece.data, 0
        while got < len(view):
            count = self._file.readinto(view[got:])
            if not count:
                raise ValueError(f"{self._name} ends within part {name!r}. Restore it from a copy.")
            got += count

    def _compare(self, name: str, checksum: int) -> None:
        if checksum != self._parts[name]["crc32"]:
            raise ValueError(
                f"{self._name} was altered: the checksum of part {name!r} differs. "
                "Restore it from a copy."
            )
