"""What `torch.stack` does with specs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rl_specs.composite.composite import Composite
from rl_specs.composite.stacked import Stacked
from rl_specs.composite.stacked_composite import StackedComposite, require_one_shape
from rl_specs.core.shaped import TORCH_FUNCTIONS, added_dim
from rl_specs.core.tensor_spec import TensorSpec


def stack_specs(specs: Sequence[Any], dim: int = 0, out: Any = None) -> Any:
    """Stack specs along a new dimension: what `torch.stack` does with them.

    Args:
        specs: specs of one class, device, dtype and number of dimensions.
        dim: the new dimension.
        out: not supported.

    Returns:
        One expanded spec where all are equal, otherwise a `Stacked` or a `StackedComposite`.

    Raises:
        NotImplementedError: `out` is given.
        TypeError: one is no spec, or their classes differ.
        ValueError: there are none, or they do not fit together.

    Example:
        >>> from rl_specs import Categorical
        >>> stack_specs([Categorical(3), Categorical(3)])
        Categorical(shape=(2,), n=3, dtype=torch.int64, device=cpu)
    """
    if out is not None:
        msg = "torch.stack of specs makes a new spec: leave out `out`"
        raise NotImplementedError(msg)
    unified = _unified(specs)
    first = unified[0]
    place = added_dim(first, dim, "stack after")
    # equal specs are one expanded spec, which draws all parts at once
    if all(spec == first for spec in unified[1:]):
        shape = list(first.shape)
        shape.insert(place, len(unified))
        return first.unsqueeze(place).expand(shape)
    kind = StackedComposite if isinstance(first, Composite) else Stacked
    return kind(*unified, dim=place)


TORCH_FUNCTIONS[torch.stack] = stack_specs


def _unified(specs: Any) -> Sequence[Any]:
    """Check that specs can be stacked, and give those without a device that of the others."""
    if not isinstance(specs, Sequence):
        msg = f"expected a list of specs: got {type(specs).__name__}"
        raise TypeError(msg)
    if not specs:
        msg = "cannot stack an empty list of specs: pass at least one"
        raise ValueError(msg)
    # a stacked composite is a composite too, and stacks with dense ones
    kind = Composite if isinstance(specs[0], Composite) else type(specs[0])
    if not all(isinstance(spec, kind) and isinstance(spec, TensorSpec) for spec in specs):
        msg = f"stacked specs must be of one class: got {[type(s).__name__ for s in specs]}"
        raise TypeError(msg)
    if kind is Composite:
        device = next((spec.device for spec in specs if spec.device is not None), None)
        specs = [spec.to(device) if spec.device is None else spec for spec in specs]
        require_one_shape(specs)
    for what in ("device", "dtype", "ndim"):
        found = [getattr(spec, what) for spec in specs]
        if any(value != found[0] for value in found):
            msg = f"stacked specs need one {what}: got {found}. Convert them first."
            raise ValueError(msg)
    unified: Sequence[Any] = specs
    return unified
