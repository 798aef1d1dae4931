"""Explanations of failed calls on numpy rows, which name the wrong argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from rl_envs.env.spec_leaves import has_fixed_form

RowMethod = TypeVar("RowMethod", bound=Callable[..., Any])
METHODS = ("reset_into", "step_into", "bind", "bind_step", "split")
FAILURES = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


def explain_arguments(method: RowMethod) -> RowMethod:
    """Wrap a method on numpy rows so that its errors name the wrong argument."""
    # rows are checked first, the other arguments after a failure only: a binding is made often
    signature, takes_rows = inspect.signature(method), method.__name__.endswith("_into")

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if takes_rows:
            reason = _reason(self, method.__name__, signature.bind(self, *args, **kwargs).arguments)
            if reason is not None and not isinstance(reason, KeyError):
                raise reason
        try:
            return method(self, *args, **kwargs)
        except FAILURES as error:
            given = signature.bind(self, *args, **kwargs).arguments
            reason = _reason(self, method.__name__, given)
            # a closed environment is closed whatever it is given
            if reason is None or isinstance(reason, KeyError) > isinstance(error, KeyError):
                raise
            raise reason from error

    return cast("RowMethod", call)


def _reason(env: Any, name: str, given: Mapping[str, Any]) -> Exception | None:
    """The first argument that is none of its kind, as an exception."""
    who = f"{type(env).__name__}.{name}"
    keys = given.get("in_keys")
    if keys is not None and (isinstance(keys, str) or not isinstance(keys, Sequence)):
        return TypeError(f"{who}: expected in_keys as a list of keys, or None: got {keys!r}.")
    if keys is not None and not all(isinstance(key, tuple) for key in keys):
        return TypeError(f"{who}: expected each of in_keys as a tuple of strings: got {keys!r}.")
    for argument in ("rows", "root", "after"):
        if argument in given:
            reason = _reason_of_rows(
                env, f"{who}: {argument}", given[argument], name.startswith("bind")
            )
            if reason is not None:
                return reason
    mask, shape = given.get("mask"), (*env.batch_size, 1)
    if mask is not None and not (
        isinstance(mask, np.ndarray) and mask.dtype == bool and mask.shape == shape
    ):
        found = (getattr(mask, "shape", ""), getattr(mask, "dtype", type(mask).__name__))
        return ValueError(f"{who}: expected a mask bool {shape} as an array: got {found}.")
    return None


def _reason_of_rows(env: Any, what: str, rows: Any, has_time: bool) -> Exception | None:
    sizes = "[*B, T, ...]" if has_time else "[*B, ...]"
    if not isinstance(rows, Mapping):
        return TypeError(f"{what}: expected arrays {sizes} by key, in a dictionary: got {rows!r}.")
    leaves = dict((*env.layout.after, *env.layout.action, *env.layout.state))
    rank = len(env.batch_size)
    for key, array in rows.items():
        if not isinstance(key, tuple) or not isinstance(array, np.ndarray):
            found = f"{key!r}: {type(array).__name__}"
            return TypeError(f"{what}: expected arrays {sizes} by tuples as keys: got {found}.")
        spec = leaves.get(key)
        if spec is None or not has_fixed_form(spec):
            continue
        shape = array.shape
        known = (*shape[:rank], *shape[rank + 1 :]) if has_time else shape
        if known != spec.shape or (has_time and len(shape) != len(spec.shape) + 1):
            expected = (*spec.shape[:rank], *(["T"] if has_time else []), *spec.shape[rank:])
            return ValueError(f"{what} {key}: expected shape {expected}, got {shape}.")
    if what.endswith("step_into: root"):
        lacking = [key for key, _ in env.layout.action if key not in rows]
        if lacking:
            return KeyError(f"{what}: the actions {lacking} are missing: got {list(rows)}.")
    return None
