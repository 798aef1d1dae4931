"""Steps of cheap transforms on numpy arrays, for loops that write batches in place.

`Transform.step` builds a tensordict and calls torch, which costs more than the arithmetic on a few
numbers. Here the steps of several transforms are compiled once into a list of calls on arrays, with
the same bits. Transforms without such calls keep `step`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from rl_layout import keys
from rl_tensordict import NestedKey, as_tuple
from rl_tensordict.types import Array, KeyPath
from rl_transforms.transform import Transform

RowCall: TypeAlias = Callable[[int], None]
At: TypeAlias = Callable[[int], Array]
Change: TypeAlias = Callable[[Array, Array], None]  # reads the first array, writes the second
Binder: TypeAlias = Callable[[Any, "NumpyPipeline"], bool]


class LeafView:
    """A view of one leaf at step t: a row of a column, or memory of its own."""

    def __init__(self, at: At, shape: Sequence[int], dtype: Any) -> None:
        self.at, self.form = at, (tuple(shape), np.dtype(dtype))

    @classmethod
    def of(cls, column: Array, time: int) -> LeafView:
        """View a column ``[*B, T, ...]``, whose time is dimension `time`."""
        by_time = np.moveaxis(column, time, 0)
        if by_time.ndim > 1:
            return cls(by_time.__getitem__, by_time.shape[1:], by_time.dtype)
        # with the ellipsis a scalar stays an array that can be written to
        return cls(lambda t: by_time[t, ...], (), by_time.dtype)

    @classmethod
    def alone(cls, shape: Sequence[int], dtype: Any) -> LeafView:
        """Allocate one leaf, the same memory at every step."""
        room = np.zeros(shape, dtype)
        return cls(lambda _: room, shape, dtype)


class NumpyPipeline:
    """The steps of some transforms, as calls on the columns of a batch ``[*B, T, ...]``."""

    # root: what steps start from; raw: what the environment writes; after: the results, which may
    # share columns with raw; given: keys that the policy writes. With is_reset the calls transform
    # a reset instead, in all rows.

    def __init__(
        self,
        time: int,
        root: Mapping[KeyPath, Array],
        raw: Mapping[KeyPath, Array],
        after: Mapping[KeyPath, Array],
        given: Iterable[KeyPath] = (),
        *,
        is_reset: bool = False,
    ) -> None:
        # a column of both raw and after has one view, so a transform of it works in place
        views = {
            id(column): LeafView.of(column, time) for column in (*raw.values(), *after.values())
        }
        self.calls: list[RowCall] = []
        self.given, self.is_reset = set(given), is_reset
        self._root = {key: LeafView.of(column, time) for key, column in root.items()}
        self._final = {key: views[id(column)] for key, column in after.items()}
        # the leaves after the calls so far; binding a transform redirects the keys that it writes
        self._now = {key: views[id(column)] for key, column in raw.items()}
        self._now.update({key: self._final[key] for key in self.given})
        self._first = dict(self._now)

    def run(self, t: int) -> None:
        """Make the calls of one step."""
        with np.errstate(all="ignore"):  # torch does not warn of an overflow either
            for call in self.calls:
                call(t)

    def before(self, key: NestedKey) -> LeafView | None:
        """The leaf before the step, at the root."""
        return self._root.get(as_tuple(key))

    def now(self, key: NestedKey) -> LeafView | None:
        """The leaf after the step and the transforms bound so far."""
        return self._now.get(as_tuple(key))

    def has_changed(self, key: NestedKey) -> bool:
        """Whether a leaf is another one than the environment wrote."""
        return self._now.get(as_tuple(key)) is not self._first.get(as_tuple(key))

    def write(self, key: NestedKey, shape: Sequence[int], dtype: Any) -> LeafView:
        """Return the leaf to write: its column, or new memory if shape or dtype differ."""
        final = self._final.get(as_tuple(key))
        if final is None or final.form != (tuple(shape), np.dtype(dtype)):
            final = LeafView.alone(shape, dtype)
        self._now[as_tuple(key)] = final
        return final

    def fill(self, key: NestedKey, form: tuple[tuple[int, ...], Any], value: Any) -> None:
        """Fill a leaf with a constant at every step."""
        write = self.write(key, *form).at

        def put(t: int) -> None:
            write(t)[...] = value

        self.calls.append(put)

    def drop(self, key: NestedKey) -> None:
        """Drop a leaf or a group; keys that the policy wrote stay."""
        prefix = as_tuple(key)
        self._now = {
            name: view
            for name, view in self._now.items()
            if name[: len(prefix)] != prefix or name in self.given
        }

    @property
    def keys(self) -> list[KeyPath]:
        """The keys after the transforms bound so far."""
        return list(self._now)

    def finish(self) -> bool:
        """Add copies into columns that no call writes; False if an entry is missing."""
        for key, final in self._final.items():
            view = self._now.get(key)
            if view is final or key in self.given:
                continue
            if view is None or view.form != final.form:
                return False
            self.calls.append(copy_call(view, final))
        return True


def copy_call(source: LeafView, target: LeafView) -> RowCall:
    """Return the call that copies one leaf."""
    read, write = source.at, target.at

    def copy(t: int) -> None:
        write(t)[...] = read(t)

    return copy


def leafwise(twin: Callable[[Any, Any], Change | None] | None = None) -> Binder:
    """Bind a leaf-wise transform; `twin` returns its numpy twin for a dtype, or None."""
    # The twin is compared with apply_leaf on random numbers, once, and must give the same bits;
    # otherwise apply_leaf is called on the rows.

    def bind(transform: Transform, pipeline: NumpyPipeline) -> bool:
        for key, out in zip(transform.in_keys, transform.out_keys, strict=True):
            view = pipeline.now(key)
            if view is None:
                if pipeline.before(key) is None and not pipeline.is_reset:
                    return False
                continue
            sample = _sample(*view.form)
            try:
                result = transform.apply_leaf(torch.from_numpy(sample.copy()))
            except (RuntimeError, TypeError, ValueError):
                return False  # step raises the error
            expected = result.numpy()
            change = None if twin is None else twin(transform, sample.dtype)
            if change is None or not _agrees(change, sample, expected):
                change = _through_torch(transform.apply_leaf)
            target = pipeline.write(out, expected.shape, expected.dtype)
            pipeline.calls.append(change_call(change, view, target))
        return True

    return bind


def change_call(change: Change, source: LeafView, target: LeafView) -> RowCall:
    """Return the call that changes one leaf, in place if source and target are one."""
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
    result = np.zeros_like(expected)
    try:
        with np.errstate(all="ignore"):
            change(sample.copy(), result)
    except (TypeError, ValueError):
        return False
    return result.tobytes() == np.ascontiguousarray(expected).tobytes()


def has_root_flags_only(pipeline: NumpyPipeline) -> bool:
    """Whether the root is the only group with done flags."""
    groups = {key[:-1] for key in pipeline.keys if key[-1] in keys.DONE_KEYS}
    return groups == {()}
