"""Composition of transforms, and callables as transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_layout import RowSource
from rl_specs import Composite
from rl_tensordict import NestedKey, as_key, leaves
from rl_tensordict.arguments import check_type, check_whole, shown
from rl_transforms.entries import merge_rows, with_entries
from rl_transforms.transform import Place, Transform

Callback = Callable[[TensorDictBase], TensorDictBase]


class Compose(Transform):
    """Chains transforms: outputs pass them in order, inputs in reverse order.

    It is `online` if any member is, has `needs_rows` if any member does, and `side` ``"write"`` if
    all members do.

    Args:
        *transforms: transforms, or callables from tensordict to tensordict.

    Raises:
        TypeError: an argument is neither.

    Example:
        >>> import torch
        >>> from rl_transforms import ExcludeTransform
        >>> from rl_layout.testing import trajectories
        >>> both = Compose(ExcludeTransform("action"), lambda batch: batch.exclude("done"))
        >>> "action" in both(trajectories([3])), len(both)
        (False, 2)
    """

    def __init__(self, *transforms: Transform | Callback) -> None:
        super().__init__()
        self.transforms = nn.ModuleList([as_transform(one) for one in transforms])
        self._derive()

    def append(self, transform: Transform | Callback) -> Compose:
        """Append a transform, in place, and return this one.

        Args:
            transform: a transform, or a callable from tensordict to tensordict.

        Returns:
            This one.

        Raises:
            TypeError: it is neither.
        """
        return self.insert(len(self), transform)

    def insert(self, index: int, transform: Transform | Callback) -> Compose:
        """Insert a transform before an index, in place, and return this one.

        Args:
            index: where, from ``-len`` to ``len``.
            transform: a transform, or a callable from tensordict to tensordict.

        Returns:
            This one.

        Raises:
            IndexError: the index is out of range.
            TypeError: it is neither a transform nor a callable.
        """
        check_whole("index", index)
        if not -len(self) <= index <= len(self):
            msg = f"expected a place from {-len(self)} to {len(self)}: got {index}."
            raise IndexError(msg)
        self.transforms.insert(index if index >= 0 else len(self) + index, as_transform(transform))
        self._derive()
        return self

    def __len__(self) -> int:
        return len(self.transforms)

    def __iter__(self) -> Iterator[Transform]:
        return iter(self.transforms)  # type: ignore[arg-type]

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return Compose(*self.transforms[index])
        check_whole("index", index)
        if not -len(self) <= index < len(self):
            msg = f"expected a place from {-len(self)} to {len(self) - 1}: got {index}."
            raise IndexError(msg)
        return self.transforms[index]

    def forward(self, batch: TensorDictBase, source: RowSource | None = None) -> TensorDictBase:
        """Pass rows through every transform in order; members with `needs_rows` get `source`."""
        for one in self:
            batch = one(batch, source) if one.needs_rows else one(batch)
        return batch

    def inv(self, batch: TensorDictBase) -> TensorDictBase | None:
        """Pass data through every inverse in reverse order; None once a member returns None."""
        data: TensorDictBase | None = batch
        for one in reversed(list(self)):
            if data is None:
                return None
            data = one.inv(data)
        return data

    def write_state(self) -> Any:
        """Return the write states of the members; None if there are none."""
        states = [(one, state) for one in self if (state := one.write_state()) is not None]
        return states or None

    def restore_write_state(self, state: Any) -> None:
        """Restore the write states of the members.

        Args:
            state: a result of `write_state`, not None.

        Raises:
            TypeError: it is something else.
        """
        if not isinstance(state, list) or not all(map(_is_write_state, state)):
            msg = (
                "expected what write_state() has returned, pairs of a transform and its state: got "
            )
            raise TypeError(f"{msg}{shown(state)}.")
        for one, kept in state:
            one.restore_write_state(kept)

    def before_reset(self, request: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Pass a reset request through every transform in reverse order."""
        for one in reversed(list(self)):
            request = one.before_reset(request, mask)
        return request

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Pass a reset through every transform in order.

        Args:
            root: ``[*B]``, after the reset.
            mask: bool ``[*B]``, the rows that were reset; None if all were.

        Returns:
            The root of the next step.

        Raises:
            ValueError: a transform drops an entry that an earlier one carries from step to step.
        """
        roots = []
        for one in self:
            root = one.reset(root, mask)
            roots.append(root)
        if mask is None:  # a partial reset passes the same transforms
            self._check_carried(roots)
        return root

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Pass a step through every transform in order."""
        for one in self:
            after = one.step(root, after)
        return after

    def rows(self, batch: TensorDictBase, last: TensorDictBase | None = None) -> TensorDictBase:
        """Pass finished rows through every transform in order."""
        for one in self:
            batch = one.rows(batch, last)
        return batch

    def transform_observation_spec(self, spec: Composite) -> Composite:
        """Describe the observations that come out of the last transform."""
        return reduce(lambda spec, one: one.transform_observation_spec(spec), self, spec)

    def transform_reward_spec(self, spec: Composite) -> Composite:
        """Describe the rewards that come out of the last transform."""
        return reduce(lambda spec, one: one.transform_reward_spec(spec), self, spec)

    def transform_done_spec(self, spec: Composite) -> Composite:
        """Describe the done flags that come out of the last transform."""
        return reduce(lambda spec, one: one.transform_done_spec(spec), self, spec)

    def transform_state_spec(self, spec: Composite) -> Composite:
        """Describe the state that goes into the last transform."""
        return reduce(lambda spec, one: one.transform_state_spec(spec), self, spec)

    def transform_action_spec(self, spec: Composite) -> Composite:
        """Describe the action that goes into the last transform."""
        return reduce(lambda spec, one: one.transform_action_spec(spec), self, spec)

    def split(self) -> tuple[Compose, Compose]:
        """Split into transforms that run at every step and transforms for finished rows.

        Returns:
            The transforms to `step`, and the transforms to call `rows` of afterwards; nested
            composes are flattened. A transform ahead of an `online` one is stepped too, since the
            online one may read its output.

        Example:
            >>> from rl_transforms import InitTracker, RewardSum, StepCounter
            >>> stepping, finishing = Compose(StepCounter(), InitTracker(), RewardSum()).split()
            >>> len(stepping), len(finishing)
            (2, 1)
        """
        members = list(self._unpacked())
        first = max((i + 1 for i, one in enumerate(members) if one.online), default=0)
        finishing = [m for i, m in enumerate(members) if i >= first or m.rows_only]
        stepping = [m for m in members if not any(m is other for other in finishing)]
        return Compose(*stepping), Compose(*finishing)

    @property
    def carried(self) -> list[NestedKey]:
        """Keys that the members carry from step to step."""
        return [key for one in self for key in one.carried]

    def _check_carried(self, roots: list[TensorDictBase]) -> None:
        members = list(self)
        for place, one in enumerate(members):
            for key in one.carried:
                if roots[place].get(key, None) is None:
                    continue
                for other in range(place + 1, len(members)):
                    if roots[other].get(key, None) is None:
                        raise _dropped(members[other], key, one)

    def check_place(self, place: Place) -> None:
        """Raise the error of the first member that cannot work in a place."""
        for one in self:
            one.check_place(place)

    def _unpacked(self) -> Iterator[Transform]:
        for one in self:
            if isinstance(one, Compose):
                yield from one._unpacked()
            else:
                yield one

    def _derive(self) -> None:
        members = list(self)
        self.online = any(one.online for one in members)
        self.rows_only = bool(members) and all(one.rows_only for one in members)
        self.needs_rows = any(one.needs_rows for one in members)
        writes = bool(members) and all(one.side == "write" for one in members)
        self.side = "write" if writes else "read"
        self.places = frozenset[Place].intersection(Transform.places, *(m.places for m in members))


class CallableTransform(Transform):
    """A callable from tensordict to tensordict as a transform, without an inverse.

    It is called on a shallow copy, so that keys it adds or drops do not reach the caller's
    tensordict. In an environment it sees the root at a reset and the entries under ``"next"`` at a
    step.

    Args:
        function: from a tensordict to one of the same batch size.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> drop = CallableTransform(lambda batch: batch.exclude("action"))
        >>> "action" in drop(trajectories([3]))
        False
    """

    def __init__(self, function: Callback) -> None:
        super().__init__()
        check_type("function", function, Callable, "a function of a tensordict")
        self.function = function

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Call the function.

        Args:
            batch: rows ``[*B]`` or ``[*B, T]``.

        Returns:
            Its result.

        Raises:
            TypeError: the result is not a tensordict.
        """
        result = self.function(with_entries(batch, {}))
        if not isinstance(result, TensorDictBase):
            name = getattr(self.function, "__name__", type(self.function).__name__)
            kind = type(result).__name__
            msg = f"{name}: expected a tensordict back, got {kind}. Return the batch."
            raise TypeError(msg)
        return result

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Call the function on the root; rows outside the mask keep their values."""
        if mask is None:
            return self.forward(root)
        # cloned, so that a function that changes leaves in place leaves rows outside the mask alone
        copies = {as_key(key): value.clone() for key, value in leaves(root)}
        result = self.forward(with_entries(root, copies))
        kept = {}
        for key in result.keys(include_nested=True, leaves_only=True):
            old, new = root.get(key, None), result.get(key)
            tensors = isinstance(old, Tensor) and isinstance(new, Tensor)
            if tensors and (old.shape, old.dtype) == (new.shape, new.dtype):
                kept[key] = merge_rows(mask, new, old)
        return with_entries(result, kept)

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Call the function on the entries under ``"next"``."""
        return self.forward(after)


def _dropped(culprit: Transform, key: NestedKey, owner: Transform) -> ValueError:
    who, whose = type(culprit).__name__, type(owner).__name__
    return ValueError(
        f"{who} drops {key!r}, which {whose} carries from one step to the next: keep it, or "
        f"put {who} ahead of {whose}."
    )


def as_transform(thing: Transform | Callback) -> Transform:
    """Wrap a callable as a transform; a transform is returned as it is.

    Args:
        thing: a transform, or a callable from tensordict to tensordict.

    Returns:
        The transform.

    Raises:
        TypeError: it is neither.

    Example:
        >>> as_transform(lambda batch: batch)
        CallableTransform()
    """
    if isinstance(thing, Transform):
        return thing
    if not callable(thing) or isinstance(thing, type):
        several = isinstance(thing, list | tuple)
        cure = "Give them one by one, or Compose(*them)." if several else "Make an instance of it."
        msg = f"expected a transform or a callable: got {thing!r}. {cure}"
        raise TypeError(msg)
    return CallableTransform(thing)


def _is_write_state(pair: Any) -> bool:
    return isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], Transform)
