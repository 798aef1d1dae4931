"""Steps shared by the LSTM and GRU scans: check, plan, apply, cast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rl_layout import Segments
from rl_recurrent.backends.triton.checks import (
    Projection,
    check_options,
    check_projection,
    check_scan,
)
from rl_recurrent.backends.triton.frame import Frame
from rl_recurrent.backends.triton.plan import LaunchPlan, make_plan


def checked_plan(
    tensors: dict[str, Tensor],
    num_gates: int,
    segments: Segments,
    *,
    save: str,
    precision: str,
    projection: Projection | None,
) -> LaunchPlan:
    """Check all arguments, then choose the kernel and its blocks; ``tensors`` starts with gates."""
    gates, size = tensors["gates"], tensors["w_hh"].shape[-1]
    states = (len(segments), size)
    shapes: dict[str, tuple[int, ...]] = {
        "gates": (segments.num_real, num_gates * size),
        "w_hh": (num_gates * size, size),
        "b_hn": (size,),
        "h0": states,
        "c0": states,
    }
    check_options(save, precision)
    check_scan(tensors, shapes, segments)
    check_projection(projection, gates)
    if precision == "auto" and not gates.is_cuda:
        precision = "ieee"  # interpreted: a CPU has no tf32
    return make_plan(size, len(segments), precision, gates.dtype)


def apply_scan(
    scan: type[torch.autograd.Function],
    plan: LaunchPlan,
    tensors: Sequence[Tensor],
    segments: Segments,
    *,
    save: str = "state",
    projection: Projection | None = None,
) -> Any:
    """Apply the scan of a cell under a plan; arguments are not checked."""
    trained = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    frame = Frame.of(segments, plan)
    with torch.cuda.device_of(tensors[0]):  # where Triton launches; nothing changes on a CPU
        return scan.apply(frame, trained and save == "gates", projection, *tensors)


def in_dtypes(
    gradients: Sequence[Tensor | None], needed: Sequence[bool], dtypes: Sequence[torch.dtype]
) -> tuple[Tensor | None, ...]:
    """Cast float32 gradients to the dtypes of their inputs; None for inputs without gradient."""
    return tuple(
        gradient.to(dtype) if need and gradient is not None else None
        for gradient, need, dtype in zip(gradients, needed, dtypes, strict=True)
    )
