"""The leaves of spec trees, and the forms of their values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from rl_layout import keys
from rl_specs import Composite, StackedComposite, TensorSpec

SpecLeaves = list[tuple[tuple[str, ...], TensorSpec]]


def leaves_of(*specs: Composite) -> SpecLeaves:
    """List key and spec of every leaf."""
    # a StackedComposite counts as one leaf, because its parts differ in their leaves
    return [leaf for spec in specs for leaf in _leaves_of(spec, ())]


def _leaves_of(
    spec: Composite, prefix: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], TensorSpec]]:
    for name, entry in spec.items():
        key = (*prefix, *keys.as_tuple(name))
        if isinstance(entry, Composite) and not isinstance(entry, StackedComposite):
            yield from _leaves_of(entry, key)
        elif entry is not None:
            yield key, entry


def sizes_of_groups(*specs: Composite) -> dict[tuple[str, ...], torch.Size]:
    """Map the key of each nested group to its batch size."""
    groups = [item for spec in specs for item in spec.items(True)]
    return {
        keys.as_tuple(key): group.shape for key, group in groups if isinstance(group, Composite)
    }


def has_fixed_form(spec: TensorSpec) -> bool:
    """Whether the values of a spec are tensors of one shape and dtype."""
    stacked = isinstance(spec, StackedComposite)
    return not stacked and spec.dtype is not None and -1 not in spec.shape


def has_form(spec: TensorSpec, value: Any) -> bool:
    """Whether a value has the shape and the dtype of its spec."""
    if not isinstance(value, torch.Tensor) or isinstance(spec, StackedComposite):
        return not isinstance(value, torch.Tensor) and spec.is_in(value)
    return value.dtype == spec.dtype and matches(value.shape, spec.shape)


def matches(found: torch.Size, expected: torch.Size) -> bool:
    """Whether sizes are the expected ones, of which -1 represents any."""
    return found == expected or (
        len(found) == len(expected)
        and all(e in (-1, f) for f, e in zip(found, expected, strict=True))
    )
