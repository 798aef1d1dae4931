"""Several named arrays in one private, shared or mapped block of memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from tensordict import TensorDictBase

from rl_slabs.arguments import whole
from rl_slabs.memory.allocation import require_memory, take_space
from rl_slabs.memory.head import Head, padded, require_size
from rl_slabs.memory.lazy_file import LazyFile
from rl_slabs.memory.memory import Kind, Memory

ArrayLayout = Mapping[str, tuple[str, Sequence[int]]]
"""Name to dtype, as numpy spells it, and shape."""

ALIGNMENT = 64
"""Every array begins at a multiple of this many bytes: a cache line."""

_HEAD = Head(b"RL-ARRAY", 1, "holds no arrays", "format {} of arrays")


class Arrays(Mapping[str, NDArray[Any]]):
    """A mapping from names to arrays, which begin as zeros and are in one block.

    Make one with `Arrays.private` (this process), `Arrays.shared` (any process that is given it)
    or `Arrays.mapped` (a file); open a file again with `Arrays.open`. Shared and mapped ones are
    handed to another process by passing them, as a slab is. Nothing in them locks.

    The memory is let go of when the last array into it is gone.

    Attributes:
        kind: "private", "shared" or "mapped".

    Example:
        >>> import pickle
        >>> counters = Arrays.shared({"words": ("int64", (2, 3)), "free": ("int32", (5,))})
        >>> pickle.loads(pickle.dumps(counters))["words"][1, 2] = 7
        >>> counters["words"].sum()
        np.int64(7)
    """

    def __init__(
        self,
        layout: ArrayLayout,
        block: NDArray[np.uint8],
        memory: Memory | None = None,
    ) -> None:
        self.kind: Kind = "private" if memory is None else memory.kind
        self._layout = _checked(layout)
        self._memory = memory
        self._arrays: dict[str, NDArray[Any]] = {}
        for name, place in _places(self._layout).items():
            dtype, shape = self._layout[name]
            flat = block[place : place + _nbytes(dtype, shape)].view(dtype)
            self._arrays[name] = flat.reshape(shape)

    @classmethod
    def private(cls, layout: ArrayLayout) -> Self:
        """Arrays for the threads of this process; memory is taken when it is touched.

        Raises:
            TypeError: A dtype that is no plain number.
            ValueError: A negative length, or no array at all.
            OSError: Too little memory.

        Example:
            >>> Arrays.private({"free": ("int32", (5,))})["free"]
            array([0, 0, 0, 0, 0], dtype=int32)
        """
        layout = _checked(layout)
        require_memory(_total(layout), _wanted(layout))
        room = np.zeros(_total(layout) + ALIGNMENT, dtype=np.uint8)
        skip = -room.ctypes.data % ALIGNMENT
        return cls(layout, room[skip:])

    @classmethod
    def shared(cls, layout: ArrayLayout, *, sparse: bool = False) -> Self:
        """Arrays for every process that is given them.

        Args:
            layout: Name to dtype and shape.
            sparse: Take memory when it is touched, for arrays of which little is used. Should
                there be too little then, the system ends a process; otherwise this call fails.

        Raises:
            TypeError: A dtype that is no plain number.
            ValueError: A negative length, or no array at all.
            OSError: Too little memory.

        Example:
            >>> Arrays.shared({"free": ("int32", (5,))}).kind
            'shared'
        """
        return cls.in_file(layout, LazyFile.shared("rl-arrays"), sparse=sparse)

    @classmethod
    def mapped(cls, layout: ArrayLayout, path: str | os.PathLike[str]) -> Self:
        """Arrays in a new file.

        Raises:
            TypeError: A dtype that is no plain number.
            ValueError: A negative length, or no array at all.
            OSError: Too little space, or a file that is there already.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     Arrays.mapped({"free": ("int32", (5,))}, f"{folder}/a").kind
            'mapped'
        """
        layout = _checked(layout)
        file = LazyFile.mapped(path)
        try:
            return cls.in_file(layout, file)
        except BaseException:
            os.unlink(path)
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """The arrays that a file holds.

        Raises:
            ValueError: No arrays, of another version or byte order, altered, or cut short.
            OSError: No such file, no permission, or holes in it that the disk cannot fill.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     _ = Arrays.mapped({"free": ("int32", (5,))}, f"{folder}/a")
            ...     list(Arrays.open(f"{folder}/a"))
            ['free']
        """
        return cls._over(LazyFile.open(path), fill_holes=True)

    @classmethod
    def in_file(cls, layout: ArrayLayout, file: LazyFile, *, sparse: bool = False) -> Self:
        """Arrays in a file that the first caller fills; later callers get the same ones.

        Args:
            layout: Name to dtype and shape.
            file: Filled already, or to be filled now.
            sparse: As for `shared`.

        Raises:
            TypeError: A dtype that is no plain number.
            ValueError: A negative length, no array at all, or the file has other arrays.
            OSError: Too little memory or disk.
            TimeoutError: A process that was stopped while it filled the file blocks the others.

        Example:
            >>> file = LazyFile.shared("an example")
            >>> Arrays.in_file({"free": ("int32", (5,))}, file)["free"][3] = 7
            >>> Arrays.in_file({"free": ("int32", (5,))}, file)["free"][3]
            np.int32(7)
        """
        layout = _checked(layout)
        file.fill(_head(layout), _total(layout), _wanted(layout), sparse=sparse)
        made = cls._over(file)
        if made._layout != layout:
            raise ValueError(
                f"the arrays were made as {made._layout}, not as {layout}: ask for the same."
            )
        return made

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""
        return _total(self._layout)

    def flush(self) -> None:
        """Wait until mapped arrays are on the disk; nothing for the other kinds.

        Example:
            >>> Arrays.private({"free": ("int32", (5,))}).flush()
        """
        if self._memory is not None:
            self._memory.flush()

    def close(self) -> None:
        """Let go of the block; once more is nothing. Arrays that are still held stay.

        Example:
            >>> Arrays.private({"free": ("int32", (5,))}).close()
        """
        self._arrays = {}
        if self._memory is not None:
            self._memory.close()

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __reduce__(self) -> tuple[object, ...]:
        if self._memory is None:
            raise TypeError(
                "private arrays stay in their process: make them with Arrays.shared or "
                "Arrays.mapped to hand them to another one."
            )
        return type(self)._over, (self._memory.file,)

    def __repr__(self) -> str:
        return f"Arrays({self.kind}, {', '.join(self)})"

    @classmethod
    def _over(cls, file: LazyFile, *, fill_holes: bool = False) -> Self:
        layout = _read_layout(file)
        if fill_holes:
            # a copied file may have holes where the arrays were zero
            take_space(file.fileno(), _total(layout), _wanted(layout))
        memory = Memory.over(file, _total(layout))
        return cls(layout, memory.array, memory)


def _checked(layout: ArrayLayout) -> dict[str, tuple[str, tuple[int, ...]]]:
    if not isinstance(layout, Mapping) or isinstance(layout, TensorDictBase):
        raise TypeError(
            f"expected a dictionary of names to a dtype and a shape, got {type(layout).__name__}: "
            "use {'reward': ('float32', (8, 1))}."
        )
    if not layout:
        raise ValueError("expected at least one array, got none: name it, its dtype and its shape.")
    plain = {}
    for name, parts in layout.items():
        try:
            dtype, shape = parts
            found, shape = np.dtype(dtype), tuple(whole(length, "a length") for length in shape)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"array {name!r}: expected a dtype and a shape, as ('float32', (8, 1)): {error}"
            ) from None
        if found.kind not in "biufc" or not found.isnative:
            raise TypeError(f"array {name!r}: expected a dtype of plain numbers, got {dtype!r}.")
        if any(length < 0 for length in shape):
            raise ValueError(f"array {name!r}: expected lengths of 0 and more, got {tuple(shape)}.")
        plain[name] = (found.name, shape)
    return plain


def _nbytes(dtype: str, shape: Sequence[int]) -> int:
    return np.dtype(dtype).itemsize * prod(shape)


def _places(layout: ArrayLayout) -> dict[str, int]:
    """Where each array begins."""
    place = padded(_head(layout))
    places = {}
    for name, (dtype, shape) in layout.items():
        places[name] = place
        place += -(-_nbytes(dtype, shape) // ALIGNMENT) * ALIGNMENT
    return places


def _total(layout: ArrayLayout) -> int:
    name, place = list(_places(layout).items())[-1]
    return place + -(-_nbytes(*layout[name]) // ALIGNMENT) * ALIGNMENT


def _wanted(layout: ArrayLayout) -> str:
    return f"a block of the arrays {', '.join(layout)}"


def _head(layout: ArrayLayout) -> bytes:
    return _HEAD.pack(
        {"arrays": {name: [dtype, [*shape]] for name, (dtype, shape) in layout.items()}}
    )


def _read_layout(file: LazyFile) -> dict[str, tuple[str, tuple[int, ...]]]:
    descriptor, name = file.fileno(), file.path or "the memory"
    plain = _HEAD.read(descriptor, name)
    try:
        layout = _checked({key: (dtype, tuple(s)) for key, (dtype, s) in plain["arrays"].items()})
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"the head of {name} names no arrays: {error}") from error
    require_size(descriptor, name, _total(layout))
    return layout
