"""What a fuzzed call was given, as it was before: inputs belong to the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase, is_tensor_collection

MAY_ADD = (
    "rl-collect",
    "rl-envs",
    "rl-policies",
    "rl-recurrent",
    "rl-tensordict",
    "rl-transforms",
    "rl-value",
)
"""Packages with tensordict modules, which add their own entries to what they are given."""


def recorded(value: Any, *, may_add: bool, where: str = "") -> Iterator[Callable[[], str | None]]:
    """Yield checks that name what has changed since, or None if nothing has."""
    if isinstance(value, torch.Tensor | np.ndarray):
        yield _unchanged(value, where)
    elif is_tensor_collection(value):
        yield from _recorded_entries(value, may_add, where)
    elif type(value) in (list, tuple, dict, set):
        before = type(value)(value)

        def other_members() -> str | None:
            # a dictionary that outputs are to be written to
            added = may_add and isinstance(value, dict) and value.keys() > before.keys()
            now = {key: value[key] for key in before} if added else value
            return None if _same_members(before, now) else f"{where} has other members"

        yield other_members
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for name, part in parts:
            yield from recorded(part, may_add=may_add, where=f"{where}[{name!r}]")


def _recorded_entries(
    value: TensorDictBase, may_add: bool, where: str
) -> Iterator[Callable[[], str | None]]:
    keys, shape = set(value.keys(True)), value.batch_size
    names = list(value.names)

    def other_entries() -> str | None:
        now = set(value.keys(True))
        if keys - now:
            return f"{where} has lost {keys - now}"
        return f"{where} has gained {now - keys}" if now - keys and not may_add else None

    yield other_entries
    yield lambda: None if value.batch_size == shape else f"the batch size of {where} has changed"
    yield lambda: None if value.names == names else f"the names of {where} have changed"
    for key, leaf in value.items(True, True):
        if isinstance(leaf, torch.Tensor):
            # a module may put a new output in the place of a former one, never write into that
            again = None if may_add else lambda key=key: value.get(key)
            yield _unchanged(leaf, f"{where}[{key!r}]", again)


def _unchanged(
    value: Any, where: str, again: Callable[[], Any] | None = None
) -> Callable[[], str | None]:
    before = _bits(value)

    def check() -> str | None:
        now = value if again is None else again()
        return None if now is None or _bits(now) == before else f"{where} has changed"

    return check


def _bits(value: Any) -> Any:
    """Bytes with shape and dtype; of other layouts and of objects the text."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_nested or value.is_quantized or value.is_meta:
            return repr(value)
        value = value.detach().resolve_conj().resolve_neg().cpu()
        flat = value.contiguous().reshape(-1).view(torch.uint8)
        return tuple(value.shape), value.dtype, flat.numpy().tobytes()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.shape, value.dtype, value.tobytes()
    return repr(value)


def _same_members(before: Any, now: Any) -> bool:
    if isinstance(before, dict):
        return list(before) == list(now) and all(before[k] is now[k] for k in before)
    if isinstance(before, set):
        return bool(before == now)
    return len(before) == len(now) and all(a is b for a, b in zip(before, now, strict=True))
