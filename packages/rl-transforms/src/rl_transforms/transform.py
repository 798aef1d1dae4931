"""The interface of transforms, for environments, collectors and buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_layout.keys import NEXT, next_key
from rl_specs import Composite, TensorSpec
from rl_tensordict import CPU, NestedKey, UnfitValue, as_tuple
from rl_tensordict.arguments import key_list
from rl_transforms.entries import merge_reset, missing, with_entries
from rl_transforms.failures import explain_failures

Place = Literal["environment", "worker", "buffer"]
Keys: TypeAlias = Sequence[NestedKey] | None


class Transform(nn.Module):
    """Base class of transforms of tensordicts, for environments, collectors and buffers.

    An environment calls `reset`, `step` and `inv`; a buffer calls `inv` on what it stores and
    `forward` on what it samples; a collector may leave `step` out of a transform that is not
    `online` and call `rows` on the finished rows instead.

    A leaf-wise transform overrides `apply_leaf` (and `invert_leaf`, `leaf_spec`,
    `inverse_leaf_spec` where they differ from doing nothing); any other overrides the whole-batch
    methods. No method changes the tensordict or the spec that it is given: each returns a new
    one that shares the untouched leaves, or the same one if there is nothing to do.

    Args:
        in_keys: keys that `forward`, `reset`, `step` and `rows` read, at the root and under
            ``"next"``.
        out_keys: keys that they write, one per entry of ``in_keys``; the same keys by default.
        in_keys_inv: keys that `inv` writes: names inside the environment or the buffer.
        out_keys_inv: keys that `inv` reads, one per entry of ``in_keys_inv``: names outside. The
            same keys by default.

    Attributes:
        online: the policy or the environment reads its output, so it runs at every step.
            Otherwise a collector may call `rows` instead. It may be set on an instance.
        rows_only: `step` does nothing and `rows` does the work: an environment calls `rows` at the
            end of a rollout, a collector at the end of a batch.
        side: when a buffer applies it: ``"read"``, to samples, or ``"write"``, to data to store.
        needs_rows: `forward` takes a `rl_layout.RowSource` alongside the sample.
        places: where it can be used; see `check_place`.

    Raises:
        TypeError: keys are not given as a list.
        ValueError: there is not one out key per in key.

    Example:
        >>> class Scale(Transform):
        ...     def apply_leaf(self, value):
        ...         return value / 255
        >>> import torch
        >>> from tensordict import TensorDict
        >>> batch = TensorDict({"pixels": torch.tensor([[51.0]])}, [1])
        >>> Scale(["pixels"])(batch)["pixels"]
        tensor([[0.2000]])
    """

    online: bool = True
    rows_only: bool = False
    side: Literal["read", "write"] = "read"
    needs_rows: bool = False
    places: frozenset[Place] = frozenset({"environment", "worker", "buffer"})
    __call__: Callable[..., TensorDictBase]

    def __init__(
        self,
        in_keys: Keys = None,
        out_keys: Keys = None,
        in_keys_inv: Keys = None,
        out_keys_inv: Keys = None,
    ) -> None:
        super().__init__()
        self.in_keys, self.out_keys = _pairs("", in_keys, out_keys)
        self.in_keys_inv, self.out_keys_inv = _pairs("_inv", in_keys_inv, out_keys_inv)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        explain_failures(cls)

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Transform sampled or rolled-out rows.

        Args:
            batch: rows ``[*B]`` or ``[*B, T]``. With `needs_rows`, a
                `rl_layout.RowSource` may follow as a second argument.

        Returns:
            The transformed rows; untouched leaves are shared.

        Raises:
            KeyError: an in key is neither at the root nor under ``"next"``.
        """
        return self._changed(batch, (self.in_keys, self.out_keys), self.apply_leaf)

    def inv(self, batch: TensorDictBase) -> TensorDictBase | None:
        """Transform data going in: actions into an environment, rows into a buffer.

        Args:
            batch: a step's root ``[*B]``, or rows ``[*B]`` or ``[*B, T]``.

        Returns:
            The transformed data; None if there is nothing to pass on yet.

        Raises:
            KeyError: an entry of ``out_keys_inv`` is neither at the root nor under ``"next"``.
        """
        return self._changed(batch, (self.out_keys_inv, self.in_keys_inv), self.invert_leaf)

    def write_state(self) -> Any:
        """Return the state that `inv` keeps between calls; None if it keeps none.

        A buffer saves it before every write, and restores it if the write fails. It is no copy,
        so later calls of `inv` must not change it in place.
        """
        return None

    def restore_write_state(self, state: Any) -> None:
        """Restore the state that `write_state` returned.

        Args:
            state: a result of `write_state`, not None.
        """

    def before_reset(self, request: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Transform the request of a reset, before the environment resets.

        Args:
            request: ``[*B]``, the tensordict that the caller passed to the reset, or an empty one.
            mask: bool ``[*B]``, the rows to be reset; None if all are.

        Returns:
            The new request.
        """
        del mask  # for transforms that add entries
        return request

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Transform the root that a reset returned.

        Rows outside the mask keep their values under the out keys, carried from the step before.
        Exception: a leaf with the same in and out key that still has the shape or dtype from
        before the transform is raw in every row, and is transformed in every row.

        Args:
            root: ``[*B]``, after the reset.
            mask: bool ``[*B]``, the rows that were reset; None if all were.

        Returns:
            The root of the next step. In keys that a reset does not return are skipped.
        """
        changes: dict[NestedKey, Tensor] = {}
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            value = root.get(key, None)
            if value is not None:
                # cloned, so that apply_leaf may change it in place
                given = value if mask is None else value.clone()
                fresh = self._named(self.apply_leaf, key, given)
                changes[out] = merge_reset(mask, fresh, root.get(out, None))
        return with_entries(root, changes) if changes else root

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Transform the result of a step.

        Args:
            root: ``[*B]``, the root of the step.
            after: ``[*B]``, the entries under ``"next"``.

        Returns:
            The new ``after``.

        Raises:
            KeyError: an in key is neither in ``after`` nor in ``root``.
        """
        changes = {}
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            value = after.get(key, None)
            if value is not None:
                changes[out] = self._named(self.apply_leaf, key, value)
            elif root.get(key, None) is None:
                raise missing(self, key, after)
        return with_entries(after, changes) if changes else after

    def rows(self, batch: TensorDictBase, last: TensorDictBase | None = None) -> TensorDictBase:
        """Transform finished rows, instead of every step of them.

        Args:
            batch: ``[*B, T]`` in the order in which they were collected.
            last: ``[*B]``, the last column of the rows before these as this method returned
                it; None if the first column follows a reset.

        Returns:
            The transformed rows.
        """
        del last  # for transforms that accumulate over rows
        return self.forward(batch)

    def apply_leaf(self, value: Tensor) -> Tensor:
        """Transform one leaf ``[*B, ...]``, as `forward`, `reset` and `step` do."""
        return value

    def invert_leaf(self, value: Tensor) -> Tensor:
        """Transform one leaf ``[*B, ...]``, as `inv` does."""
        return value

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec of the result of `apply_leaf`."""
        return spec

    def inverse_leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec of the argument of `invert_leaf`, given the spec of its result."""
        return spec

    def transform_observation_spec(self, spec: Composite) -> Composite:
        """Return the spec of transformed observations. Called after the done and reward specs."""
        return self._outward(spec)

    def transform_reward_spec(self, spec: Composite) -> Composite:
        """Return the spec of transformed rewards."""
        return self._outward(spec)

    def transform_done_spec(self, spec: Composite) -> Composite:
        """Return the spec of transformed done flags. Called after the reward specs."""
        return self._outward(spec)

    def transform_state_spec(self, spec: Composite) -> Composite:
        """Return the spec of the state before `inv`, given the environment's."""
        return self._inward(spec)

    def transform_action_spec(self, spec: Composite) -> Composite:
        """Return the spec of the action before `inv`, given the environment's."""
        return self._inward(spec)

    def check_place(self, place: Place) -> None:
        """Raise if the transform cannot be used in a place.

        Args:
            place: ``"environment"``, ``"worker"`` (an environment inside a serial or parallel
                one) or ``"buffer"``.

        Raises:
            ValueError: it cannot be used there; the message lists the places where it can.
        """
        if place not in self.places:
            name = type(self).__name__
            article = "an" if place == "environment" else "a"
            cure = f"put it into one of {', '.join(sorted(self.places))}"
            if place == "worker" and "environment" in self.places:
                cure = f"put it around all of them, TransformedEnv(SerialEnv(...), {name}(...))"
            msg = f"{name} cannot sit in {article} {place}: {cure}."
            raise UnfitValue(msg)

    def attach(self, env: Any) -> None:
        """Get to know the environment that the transform is put around; does nothing by default.

        A `TransformedEnv` calls it before it asks for specs, and again where its transforms change.

        Args:
            env: the environment without transforms, as for a transform that renders it.
        """

    @property
    def carried(self) -> list[NestedKey]:
        """Keys that a step reads at the root, written by the reset or the step before."""
        return []

    def extra_repr(self) -> str:
        """List the keys."""
        named = {"in_keys": self.in_keys, "out_keys": self.out_keys}
        named |= {"in_keys_inv": self.in_keys_inv, "out_keys_inv": self.out_keys_inv}
        return ", ".join(f"{name}={value}" for name, value in named.items() if value)

    def _changed(
        self,
        batch: TensorDictBase,
        key_lists: tuple[list[NestedKey], list[NestedKey]],
        apply: Callable[[Tensor], Tensor],
    ) -> TensorDictBase:
        """Apply a leaf-wise method to the first keys, at the root and under ``"next"``."""
        changes = {}
        for key, out in zip(*key_lists, strict=True):
            pairs = list(_places(batch, key, out))
            if not pairs:
                raise missing(self, key, batch)
            changes.update({place: self._named(apply, place, value) for place, value in pairs})
        return with_entries(batch, changes) if changes else batch

    def _named(self, apply: Callable[[Tensor], Tensor], key: NestedKey, value: Tensor) -> Tensor:
        """Apply a leaf-wise method, and name the key in its errors."""
        try:
            return apply(value)
        except (TypeError, ValueError) as error:
            msg = f"{type(self).__name__}, {key!r}: {error}"
            raise type(error)(msg) from error

    def _outward(self, spec: Composite) -> Composite:
        pairs = zip(self.in_keys, self.out_keys, strict=True)
        changes = {out: self.leaf_spec(spec[key]) for key, out in pairs if key in spec}
        return with_specs(spec, changes)

    def _inward(self, spec: Composite) -> Composite:
        pairs = zip(self.in_keys_inv, self.out_keys_inv, strict=True)
        changes = {out: self.inverse_leaf_spec(spec[key]) for key, out in pairs if key in spec}
        return with_specs(spec, changes)


explain_failures(Transform)


def spec_of(who: str, spec: Composite, key: NestedKey, kind: str, hint: str = "") -> TensorSpec:
    """Read the spec of a leaf; the KeyError for a missing one lists the leaves that there are."""
    if key not in spec:
        names = list(spec.keys(include_nested=True, leaves_only=True))
        msg = f"{who}: there is no {kind} {key!r}: there are {names}.{hint}"
        raise KeyError(msg)
    leaf: TensorSpec = spec[key]
    return leaf


def with_specs(spec: Composite, changes: Mapping[NestedKey, TensorSpec]) -> Composite:
    """Copy a composite spec with some specs replaced or added."""
    if not changes:
        return spec
    copy = spec.clone()
    there = (one.device for one in copy.values(True, True) if one is not None)
    device = copy.device or next(there, CPU)
    for key, leaf in changes.items():
        copy.set(key, leaf.to(device))
    return copy


def without_specs(spec: Composite, gone: Iterable[NestedKey]) -> Composite:
    """Copy a composite spec without some specs and the groups they empty."""
    copy = spec.clone()
    for key in gone:
        copy.pop(key)
        outer = as_tuple(key)[:-1]  # the groups above, innermost first
        while outer and not len(copy[outer]):
            copy.pop(outer)
            outer = outer[:-1]
    return copy


def _pairs(suffix: str, in_keys: Keys, out_keys: Keys) -> tuple[list[NestedKey], list[NestedKey]]:
    read, written = key_list(f"in_keys{suffix}", in_keys), key_list(f"out_keys{suffix}", out_keys)
    if out_keys is None:
        written = list(read)
    if len(read) != len(written):
        msg = f"expected one out key per in key: got in_keys{suffix}={read}, out_keys={written}."
        raise ValueError(msg)
    return read, written


def _places(
    batch: TensorDictBase, key: NestedKey, out: NestedKey
) -> Iterator[tuple[NestedKey, Tensor]]:
    """Pairs of output key and leaf: at the root, and under ``"next"``."""
    value = batch.get(key, None)
    if value is not None:
        yield out, value
    if as_tuple(key)[0] != NEXT:
        # the same leaf one step later
        value = batch.get(next_key(key), None)
        if value is not None:
            yield next_key(out), value
