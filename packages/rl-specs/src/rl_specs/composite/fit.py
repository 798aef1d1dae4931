"""Fits specs to the device and the leading dimensions of the composite that takes them in."""

from __future__ import annotations

import torch

from rl_specs.composite.spec_tree import SpecTree
from rl_specs.core.tensor_spec import TensorSpec, resized
from rl_specs.leaves.non_tensor import NonTensor
from rl_tensordict import UnfitValue


def on_device(name: str, spec: TensorSpec, device: torch.device | None) -> TensorSpec:
    """Move a spec without a device to that of the tree; raise for a spec of another device."""
    if device is None or spec.device == device:
        return spec
    if spec.device is not None:
        msg = (
            f"the spec of {name!r} is on {spec.device}, this one on {device}: "
            f"pass spec.to({str(device)!r})"
        )
        raise UnfitValue(msg)
    return spec.to(device)  # type: ignore[no-any-return]


def with_lead(name: str, spec: TensorSpec, lead: torch.Size) -> TensorSpec:
    """Give a spec the leading dimensions of the tree, on a copy where it has fewer."""
    if spec.shape[: len(lead)] == lead:
        return spec
    if spec.ndim < len(lead) and spec.shape == lead[: spec.ndim]:
        # only specs whose own dimensions are all batch dimensions can have more of them
        if isinstance(spec, SpecTree):
            deeper = spec.clone()
            deeper.shape = lead
            return deeper  # type: ignore[no-any-return]
        if isinstance(spec, NonTensor):
            return resized(spec, lead)
    msg = (
        f"the shape of the spec of {name!r} must begin with {tuple(lead)}: got "
        f"{tuple(spec.shape)}. Expand it first."
    )
    raise ValueError(msg)
