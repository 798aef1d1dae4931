"""Steps of cheap transforms on numpy rows, for loops that write batches in place.

A step of a transform costs a tensordict and some operations of torch, each of which costs more than
what a few numbers need. Here the steps of a whole row of transforms become calls on arrays, put
together once. They give what `Transform.step` gives, bit for bit; what cannot be sure of that is
left to `step`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from rl_layout import keys
from rl_tensordict import NestedKey, as_tuple
from rl_transforms.transform import Transform

Array: TypeAlias = np.ndarray[Any, Any]
Key: TypeAlias = tuple[str, ...]
Call: TypeAlias = Callable[[int], None]
At: TypeAlias = Callable[[int], Array]
Change: TypeAlias = Callable[[Array, Array], None]  # of a value, written into the second array
Binder: TypeAlias = Callable[[Any, "ArrayChain"], bool]


class Cell:
    """One leaf of a step: a column's row, or room of its own."""

    def __init__(self, at: At, shape: Sequence[int], dtype: Any) -> None:
        self.at, self.form = at, (tuple(shape), np.dtype(dtype))

    @classmethod
    def of(cls, column: Array, time: int) -> Cell:
        """See a column ``[*B, T, ...]``, time after the first `time` dimensions."""
        by_time = np.moveaxis(column, time, 0)
        if by_time.ndim > 1:
            return cls(by_time.__getitem__, by_time.shape[1:], by_time.dtype)
        # the ellipsis keeps a number an array
        return cls(lambda t: by_time[t, ...], (), by_time.dtype)

    @classmethod
    def alone(cls, shape: Sequence[int], dtype: Any) -> Cell:
        """Make room for one leaf."""
        room = np.zeros(shape, dtype)
        return cls(lambda _: room, shape, dtype)


class ArrayChain:
    """The steps of some transforms, as calls on the columns of a batch."""

    def __init__(
        self,
        time: int,
        root: Mapping[Key, Array],
        raw: Mapping[Key, Array],
        after: Mapping[Key, Array],
        given: Iterable[Key] = (),
        *,
        is_reset: bool = False,
    ) -> None:
        cells = {id(column): Cell.of(column, time) for column in (*raw.values(), *after.values())}
        self.calls: list[Call] = []
        self.given, self.is_reset = set(given), is_reset
        self._root = {key: Cell.of(column, time) for key, column in root.items()}
        self._final = {key: cells[id(column)] for key, column in after.items()}
        self._now = {key: cells[id(column)] for key, column in raw.items()}
        self._now.update({key: self._final[key] for key in self.given})
        self._first = dict(self._now)

    def run(self, t: int) -> None:
        """Make the calls of one step."""
        with np.errstate(all="ignore"):  # torch does not warn of an overflow either
            for call in self.calls:
                call(t)

    def before(self, key: NestedKey) -> Cell | None:
        """Find a leaf that the step starts from."""
        return self._root.get(as_tuple(key))

    def now(self, key: NestedKey) -> Cell | None:
        """Find a leaf after the step, as the transforms so far have left it."""
        return self._now.get(as_tuple(key))

    def has_changed(self, key: NestedKey) -> bool:
        """Tell whether a leaf is another one than the environment wrote."""
        return self._now.get(as_tuple(key)) is not self._first.get(as_tuple(key))

    def write(self, key: NestedKey, shape: Sequence[int], dtype: Any) -> Cell:
        """Make room for a leaf after the step: in its column where that has its form."""
        final = self._final.get(as_tuple(key))
        if final is None or final.form != (tuple(shape), np.dtype(dtype)):
            final = Cell.alone(shape, dtype)
        self._now[as_tuple(key)] = final
        return final

    def fill(self, key: NestedKey, form: tuple[tuple[int, ...], Any], value: Any) -> None:
        """Let a leaf be the same at every step."""
        write = self.write(key, *form).at

        def put(t: int) -> None:
            write(t)[...] = value

        self.calls.append(put)

    def drop(self, key: NestedKey) -> None:
        """Take a leaf and what is below it away; what the policy wrote stays."""
        gone = as_tuple(key)
        self._now = {
            name: cell
            for name, cell in self._now.items()
            if name[: len(gone)] != gone or name in self.given
        }

    @property
    def keys(self) -> list[Key]:
        """What comes after the step now."""
        return list(self._now)

    def finish(self) -> bool:
        """Add the copies into columns that no call writes; False where an entry is missing."""
        for key, final in self._final.items():
            found = self._now.get(key)
            if found is final or key in self.given:
                continue
            if found is None or found.form != final.form:
                return False
            self.calls.append(copying(found, final))
        return True


def copying(source: Cell, target: Cell) -> Call:
    """Make the call that copies one leaf."""
    read, write = source.at, target.at

    def copy(t: int) -> None:
        write(t)[...] = read(t)

    return copy


def leafwise(twin: Callable[[Any, Any], Change | None]) -> Binder:
    """Bind a transform that changes leaf by leaf."""
    # Its array twin is compared with apply_leaf on some numbers, once, and must give the same bits;
    # otherwise apply_leaf itself is called on the rows.

    def bind(one: Transform, chain: ArrayChain) -> bool:
        for key, out in zip(one.in_keys, one.out_keys, strict=True):
            cell = chain.now(key)
            if cell is None:
                if chain.before(key) is None and not chain.is_reset:
                    return False
                continue
            sample = _sample(*cell.form)
            try:
                made = one.apply_leaf(torch.from_numpy(sample.copy()))
            except (RuntimeError, TypeError, ValueError):
                return False  # the step itself will say what is wrong
            expected = made.numpy()
            change = twin(one, sample.dtype)
            if change is None or not _agrees(change, sample, expected):
                change = _through_torch(one.apply_leaf)
            target = chain.write(out, expected.shape, expected.dtype)
            chain.calls.append(changing(change, cell, target))
        return True

    return bind


def changing(change: Change, source: Cell, target: Cell) -> Call:
    """Make the call of a change of one leaf."""
    read, write = source.at, target.at
    if read is write or source is target:

        def call(t: int) -> None:
            value = read(t)
            change(value, value)

        return call

    def call_apart(t: int) -> None:
        change(read(t), write(t))

    return call_apart


def _through_torch(apply: Callable[[Tensor], Tensor]) -> Change:
    def change(value: Array, out: Array) -> None:
        out[...] = apply(torch.from_numpy(value)).numpy()

    return change


def _sample(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    draw = np.random.default_rng(0)
    if dtype.kind == "f":
        return np.asarray(draw.standard_normal(shape) * 10, dtype)
    if dtype.kind == "b":
        return np.asarray(draw.integers(0, 2, shape), dtype)
    return np.asarray(draw.integers(0, 100, shape), dtype)


def _agrees(change: Change, sample: Array, expected: Array) -> bool:
    found = np.zeros_like(expected)
    try:
        with np.errstate(all="ignore"):
            change(sample.copy(), found)
    except (TypeError, ValueError):
        return False
    return found.tobytes() == np.ascontiguousarray(expected).tobytes()


def is_root_alone(chain: ArrayChain) -> bool:
    """Tell whether the root is the only group with done flags."""
    groups = {key[:-1] for key in chain.keys if key[-1] in keys.DONE_KEYS}
    return groups == {()}
