"""Keys that only some of the stacked composites have."""

from __future__ import annotations

from typing import Any

import torch

from rl_specs.composite.composite import Composite
from rl_specs.composite.stacked import Stack
from rl_specs.composite.stacked_composite import StackedComposite
from rl_specs.core.shaped import holds_domain
from rl_specs.core.tensor_spec import TensorSpec, resized
from rl_specs.leaves.non_tensor import NonTensor
from rl_specs.leaves.unbounded import Unbounded


def consolidate_spec(
    spec: Any, recurse_through_entries: bool = True, recurse_through_stack: bool = True
) -> Any:
    """Give all stacked composites the same keys, with specs of size 0 where one was missing.

    Args:
        spec: any spec. It is not changed.
        recurse_through_entries: do so in nested specs too.
        recurse_through_stack: do so in each stacked composite too.

    Returns:
        A new spec.

    Raises:
        ValueError: one key holds specs of different classes or numbers of dimensions.

    Example:
        >>> one, two = Composite(obs=Unbounded((3,))), Composite()
        >>> consolidate_spec(torch.stack([one, two]))[1]["obs"].shape
        torch.Size([0])
    """
    if not isinstance(spec, TensorSpec):
        msg = f"expected a spec: got {type(spec).__name__}"
        raise TypeError(msg)
    out = spec.clone()
    if isinstance(out, StackedComposite):
        parts = [
            consolidate_spec(part, recurse_through_entries, True) if recurse_through_stack else part
            for part in out.specs
        ]
        _fill(parts)
        return StackedComposite(*parts, dim=out.dim)
    if isinstance(out, Composite) and recurse_through_entries:
        for name, entry in list(out.items()):
            if entry is not None:
                out.set(name, consolidate_spec(entry, True, recurse_through_stack))
    return out


def check_no_exclusive_keys(spec: Any, recurse: bool = True) -> bool:
    """Tell whether all stacked composites have the same keys.

    Args:
        spec: any spec.
        recurse: look into nested specs too.

    Returns:
        True where no key is exclusive to some.

    Example:
        >>> check_no_exclusive_keys(torch.stack([Composite(obs=Unbounded((3,))), Composite()]))
        False
    """
    if isinstance(spec, StackedComposite):
        keys = [set(part) for part in spec.specs]
        same = all(found == keys[0] for found in keys)
        return same and (not recurse or all(check_no_exclusive_keys(p) for p in spec.specs))
    if isinstance(spec, Composite) and recurse:
        return all(check_no_exclusive_keys(entry) for entry in spec.values())
    return True


def contains_lazy_spec(spec: Any) -> bool:
    """Tell whether a spec is, or holds, a stack of specs that differ.

    Args:
        spec: any spec.

    Returns:
        True if there is one at any depth.

    Example:
        >>> contains_lazy_spec(torch.stack([Unbounded((3,)), Unbounded((5,))]))
        True
    """
    if isinstance(spec, Stack):
        return True
    return isinstance(spec, Composite) and any(contains_lazy_spec(e) for e in spec.values())


def _fill(parts: list[Any]) -> None:
    """Add to each composite, in place, what only others have."""
    examples: dict[str, list[TensorSpec]] = {}
    for part in parts:
        for name, entry in part.items():
            if entry is not None:
                examples.setdefault(name, []).append(entry)
    for part in parts:
        for name in examples.keys() - part.keys():
            part.set(name, _empty_like(name, examples[name], part.shape))


def _empty_like(name: str, examples: list[TensorSpec], batch: torch.Size) -> TensorSpec:
    """Make a spec like the examples that describes no element at all."""
    first = examples[0]
    if any(type(e) is not type(first) or e.ndim != first.ndim for e in examples[1:]):
        found = [f"{type(e).__name__} of {e.ndim} dimensions" for e in examples]
        msg = f"the specs of {name!r} need one class and number of dimensions: got {found}"
        raise ValueError(msg)
    if isinstance(first, Composite):
        return first.empty()
    # empty along what differs, so that the shapes of the others are not contradicted
    differs = [any(e.shape[dim] != size for e in examples) for dim, size in enumerate(first.shape)]
    if not any(differs):
        # all alike: empty in every dimension of its own
        differs = [dim >= len(batch) for dim in range(first.ndim)]
    sizes = [0 if gone else size for gone, size in zip(differs, first.shape, strict=True)]
    if isinstance(first, NonTensor):
        return resized(first, torch.Size(sizes))
    if holds_domain(first) or isinstance(first, Stack) or 0 in first.shape:
        # no choice can be one of none: only shape, dtype and device are left to describe
        return Unbounded(sizes, first.device, first.dtype)
    # bounds of one element hold for any number of them
    element: TensorSpec = first[(0,) * first.ndim]
    return element.expand(sizes)
