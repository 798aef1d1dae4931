"""Argument checks of the Triton recurrences, run once at the public edge."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from rl_layout import Segments
from rl_recurrent.backends.dispatch import PRECISIONS
from rl_recurrent.backends.triton import tiles
from rl_recurrent.cells.cell import Cell

DTYPES = (torch.float32, torch.bfloat16)
Projection = tuple[Tensor, Tensor, Tensor | None]


def check_scan(cell: Cell, given: Sequence[Tensor | None], segments: Segments) -> None:
    """Raise for a wrong shape, dtype or device of gates, w_hh, b_hn and the states."""
    names = ("gates", "w_hh", "b_hn", *("h0", "c0")[: cell.num_states])
    pairs = zip(names, given, strict=True)
    tensors = {name: tensor for name, tensor in pairs if tensor is not None}
    gates, size = tensors["gates"], tensors["w_hh"].shape[-1]
    width, states = cell.num_gates * size, (len(segments), size)
    shapes: dict[str, tuple[int, ...]] = {
        "gates": (segments.num_real, width),
        "w_hh": (width, size),
        "b_hn": (size,),
        "h0": states,
        "c0": states,
    }
    check_device(gates)
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != shapes[name]:
            msg = (
                f"{name}: expected shape {list(shapes[name])} for {len(segments)} segments in "
                f"{segments.num_real} rows, got {list(tensor.shape)}."
            )
            raise ValueError(msg)
        allowed = DTYPES if gates.is_cuda else (torch.float32,)
        if tensor.dtype not in allowed:
            dtypes = " or ".join(str(dtype) for dtype in allowed)
            msg = f"{name}: expected {dtypes} on {gates.device.type}, got {tensor.dtype}."
            raise TypeError(msg)
    for name, device in (
        (n, t.device) for n, t in {**tensors, "segments": segments.starts}.items()
    ):
        if device != gates.device:
            msg = f"{name}: expected it on {gates.device} like gates, got {device}. Move it there."
            raise ValueError(msg)


def check_device(gates: Tensor) -> None:
    """Raise for a device without kernels; the message names the backends that run there."""
    if gates.is_cuda:
        return
    interpreting = triton.knobs.runtime.interpret
    if gates.device.type == "cpu" and interpreting and not is_compiled():
        return
    # the variable is read when the kernels are decorated, at import
    late = " TRITON_INTERPRET was set after the kernels were imported." if interpreting else ""
    msg = (
        f"backend 'triton': expected tensors on a CUDA device, got {gates.device}.{late} "
        "Use backend 'pad', 'pack' or 'scan', which run there."
    )
    raise ValueError(msg)


def is_compiled() -> bool:
    """Whether the kernels were imported to be compiled, not interpreted."""
    return isinstance(tiles.tanh, triton.runtime.JITFunction)


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise for a value that is not one of those allowed."""
    if value not in allowed:
        msg = f"{name}: expected one of {list(allowed)}, got {value!r}."
        raise ValueError(msg)


def check_options(save: str, precision: str) -> None:
    """Raise for an unknown value of ``save`` or ``precision``."""
    check_choice("save", save, ("state", "gates"))
    check_choice("precision", precision, PRECISIONS)


def check_projection(projection: Projection | None, gates: Tensor) -> None:
    """Raise for an input and weights whose product cannot be the gates."""
    if projection is None:
        return
    x, w_ih, bias = projection
    rows, columns = gates.shape
    inputs = x.shape[-1]
    fits = x.shape == (rows, inputs) and w_ih.shape == (columns, inputs)
    if not fits or (bias is not None and bias.shape != (columns,)):
        came = [list(t.shape) for t in projection if t is not None]
        msg = (
            f"projection: expected x [{rows}, I], w_ih [{columns}, I] and bias [{columns}] for "
            f"gates {list(gates.shape)}, got {came}. Leave it out to keep the gates instead."
        )
        raise ValueError(msg)
