"""Checks of single entries against their specs, and their error messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from math import isnan, prod
from typing import Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_envs.env.spec_leaves import SpecLeaves, leaves_of, matches
from rl_layout import keys
from rl_specs import (
    Binary,
    Bounded,
    Categorical,
    NonTensor,
    OneHot,
    StackedComposite,
    TensorSpec,
    Unbounded,
)
from rl_tensordict import find
from rl_tensordict.types import Array

ArrayTest: TypeAlias = Callable[[Array], bool]

FEW = 4096  # flags that are searched as bytes


def missing_action(key: tuple[str, ...], root: TensorDictBase) -> KeyError:
    """The error for a root without an action."""
    names = [keys.as_key(name) for name, _ in keys.leaves(root)]
    return KeyError(
        f"the action {keys.as_key(key)!r} is missing: the policy left {names}. "
        f"Let it write the action, or use rand_action()."
    )


def cast_action(key: tuple[str, ...], spec: TensorSpec, value: Tensor) -> Tensor:
    """Cast an action to the dtype of its spec, or raise where that would change a number."""
    try:
        action: Tensor = spec.cast(value)
    except ValueError:
        msg = (
            f"action {keys.as_key(key)!r}: expected dtype {spec.dtype}, got {value.dtype} with "
            f"{_range(value) if value.numel() > 20 else value.tolist()}, which it cannot hold. "
            f"Let the policy write {spec.dtype}, as a ProbabilisticActor does that is given "
            "spec=env.action_spec."
        )
        raise TypeError(msg) from None
    return action


def check_choice(key: tuple[str, ...], spec: TensorSpec, value: Tensor) -> None:
    """Raise for an action that is none of the choices of its spec, such as two at once."""
    # masks are ignored: they hold what is allowed now, and a batch holds earlier steps
    if not isinstance(spec, Categorical | OneHot):
        return
    if spec.mask is not None:
        spec = spec.clone()
        spec.update_mask(None)
    if not spec.is_in(value):
        found = value.tolist() if value.numel() <= 20 else f"values {tuple(value.shape)}"
        msg = (
            f"action {keys.as_key(key)!r} is no choice of its spec {spec}: got {found}. Write one "
            "of them, or set check_values = False."
        )
        raise ValueError(msg)


def check_form(
    key: tuple[str, ...], spec: TensorSpec, value: Any, lead: torch.Size, what: str
) -> None:
    """Raise for a value of another dtype than its spec, or another shape than `lead + spec`."""
    if spec.dtype is None or not isinstance(value, Tensor):
        return
    if value.dtype != spec.dtype:
        advice = f"Cast it with .to({spec.dtype}), or change the spec."
        msg = f"{what} {keys.as_key(key)!r}: expected dtype {spec.dtype}, got {value.dtype}."
        raise TypeError(f"{msg} {advice}")
    expected = lead + spec.shape
    if not matches(value.shape, expected):
        msg = (
            f"{what} {keys.as_key(key)!r}: expected shape {tuple(expected)}, "
            f"got {tuple(value.shape)}."
        )
        raise ValueError(msg)


def check_leaves(
    leaves: SpecLeaves, tensordict: TensorDictBase, lead: torch.Size, what: str
) -> None:
    """Raise where an entry that an environment owes is missing, or has another shape or dtype."""
    for key, spec in leaves:
        value = find(tensordict, key)
        if value is None:
            names = [keys.as_key(name) for name, _ in keys.leaves(tensordict)]
            msg = f"{what}: {keys.as_key(key)!r} is missing, the environment returned {names}."
            raise KeyError(msg)
        if isinstance(spec, StackedComposite):
            for part, leaves in parts_of_stack(key, spec, value):
                check_leaves(leaves, part, lead, what)
            continue
        check_form(key, spec, value, lead, what)
        check_device(key, spec, value, what)


def check_device(key: tuple[str, ...], spec: TensorSpec, value: Any, what: str) -> None:
    """Raise for a value on another device than its spec, which is where the environment lives."""
    expected = spec.device
    if not isinstance(value, Tensor) or expected is None or value.device == expected:
        return
    if torch.device(expected.type) == expected and value.device.type == expected.type:
        return  # which of them was not said
    msg = (
        f"{what} {keys.as_key(key)!r}: expected it on {expected}, where the environment lives, got "
        f"it on {value.device}. Return it there, as by .to({str(expected)!r}), or make the "
        f"environment with device={str(value.device)!r}."
    )
    raise ValueError(msg)


def parts_of_stack(
    key: tuple[str, ...], spec: StackedComposite, value: Any
) -> Iterator[tuple[TensorDictBase, SpecLeaves]]:
    """Yield each part of a lazy stack, with the spec leaves that it must have."""
    name, count = keys.as_key(key), len(spec.specs)
    place = value.ndim - spec.ndim + spec.dim if isinstance(value, TensorDictBase) else -1
    if place < 0 or value.batch_size[place] != count:
        found = tuple(value.batch_size) if isinstance(value, TensorDictBase) else type(value)
        msg = f"{name!r}: expected tensordicts of batch size {tuple(spec.shape)}, got {found}."
        raise ValueError(msg)
    for number, (one, part) in enumerate(zip(spec.specs, value.unbind(place), strict=True)):
        label = f"{'.'.join(key)}[{number}]"  # what messages call it
        yield (
            TensorDict({label: part}, part.batch_size),
            [((label, *leaf), inner) for leaf, inner in leaves_of(one)],
        )


def check_values(
    leaves: SpecLeaves, tests: Iterable[ArrayTest], tensordict: TensorDictBase, what: str
) -> None:
    """Raise for values outside their specs, and NaN anywhere; `tests` are those of the leaves."""
    for (key, spec), test in zip(leaves, tests, strict=True):
        value = find(tensordict, key)
        if isinstance(spec, StackedComposite):
            for part, inner in parts_of_stack(key, spec, value):
                check_values(inner, [array_test(leaf) for _, leaf in inner], part, what)
        elif not passes(test, value):
            check_value(key, spec, value, what)


def check_value(key: tuple[str, ...], spec: TensorSpec, value: Any, what: str) -> None:
    """Raise for a value outside its spec, and NaN."""
    inside = spec.is_in(value)
    is_float = isinstance(value, Tensor) and value.is_floating_point()
    # NaN is within no bounds, so a value inside a Bounded spec holds none: no second pass
    if is_float and not (inside and isinstance(spec, Bounded)) and bool(value.isnan().any()):
        msg = f"{what} {keys.as_key(key)!r} holds NaN. check_values = False allows it."
        raise ValueError(msg)
    if not inside:
        if isinstance(spec, NonTensor):
            shape = tuple(getattr(value, "shape", ()))
            msg = f"{what} {keys.as_key(key)!r}: expected {spec}, got {value} of shape {shape}. "
            raise ValueError(f"{msg}Give the spec shape={shape}, or set check_values = False.")
        found = value if not isinstance(value, Tensor) or value.numel() < 20 else _range(value)
        msg = (
            f"{what} {keys.as_key(key)!r} is outside its spec {spec}: got {found}. Widen the "
            f"spec, or set check_values = False."
        )
        raise ValueError(msg)


def _range(value: Tensor) -> str:
    return f"values from {value.min().item()} to {value.max().item()}"


def array_test(spec: TensorSpec) -> ArrayTest:
    """Return a quick test of the values of a spec; one that fails is decided by `check_value`."""
    # arrays have the dtype and the shape of the spec already; True is never wrong
    if isinstance(spec, Binary) and spec.dtype == torch.bool:
        return always
    if isinstance(spec, Unbounded):
        holds_floats = torch.empty(0, dtype=spec.dtype, device="cpu").is_floating_point()
        return _holds_no_nan if holds_floats else always
    if isinstance(spec, Bounded):
        return _interval_test(spec)
    if type(spec) is Categorical or type(spec) is OneHot:
        choices = choice_test(spec)
        return lambda array: spec.mask is None and choices(array)
    return _never


def choice_test(spec: TensorSpec) -> ArrayTest:
    """Return a quick test of choices that takes no note of masks; other specs allow anything."""
    if type(spec) is OneHot and spec.dtype == torch.bool:
        return _one_hot
    if type(spec) is Categorical:
        return partial(_below, spec)
    return _never if isinstance(spec, Categorical | OneHot) else always


def passes(test: ArrayTest, value: Any) -> bool:
    """Whether a value is a tensor of the CPU that passes a test."""
    if not isinstance(value, Tensor) or not value.is_cpu:
        return False
    try:
        return test(value.detach().numpy())
    except (RuntimeError, TypeError):  # sparse, or of a dtype that numpy lacks
        return False


def always(_: Array) -> bool:
    """The test of a spec that every array of its dtype is in."""
    return True


def _never(_: Array) -> bool:
    return False


def _all(flags: Array) -> bool:
    # a search in a few bytes takes a tenth of the time of all()
    return b"\0" not in flags.tobytes() if flags.size <= FEW else bool(flags.all())


def _holds_no_nan(array: Array) -> bool:
    if array.size == 1:
        return not isnan(array.item())
    # a sum of squares is NaN where a number is, and takes less than a search
    return not isnan(np.vdot(array, array))


def _below(spec: Categorical, array: Array) -> bool:
    try:
        count = spec.n
    except RuntimeError:  # not known yet
        return False
    return _all((array >= 0) & (array < count))


def _one_hot(array: Array) -> bool:
    if array.ndim == 2 and len(array) == 1:  # one row, searched as bytes
        return array.tobytes().count(1) == 1
    rows = array.size // array.shape[-1]
    if np.count_nonzero(array) != rows:
        return False
    return rows == 1 or _all(np.add.reduce(array, -1, np.intp) == 1)


def _interval_test(spec: Bounded) -> ArrayTest:
    try:
        low, high = spec.low.cpu().numpy(), spec.high.cpu().numpy()
    except TypeError:  # numpy has no bfloat16
        return _never
    if low.dtype.kind in "iu":
        limits = np.iinfo(low.dtype)
        if (low == limits.min).all() and (high == limits.max).all():
            return always
    is_symmetric = low.dtype.kind == "f" and bool((low == -high).all())
    least, most = low, high
    if low.size and (low == low.flat[0]).all() and (high == high.flat[0]).all():
        least, most = low.flat[0].item(), high.flat[0].item()
    if is_symmetric:
        most_of = _spread(most)
        return lambda array: _all(np.abs(array) <= most_of(array.shape))
    return lambda array: _all((array >= least) & (array <= most))


def _spread(bound: Any) -> Callable[[tuple[int, ...]], Any]:
    """Return a function that repeats a bound for the rows of an array, if those are few."""
    # numpy compares a few rows with as many in half the time that it takes to broadcast one
    if not isinstance(bound, np.ndarray):
        return lambda _: bound

    @lru_cache(maxsize=4)
    def spread(shape: tuple[int, ...]) -> Array:
        return np.broadcast_to(bound, shape).copy() if prod(shape) <= FEW else bound

    return spread
