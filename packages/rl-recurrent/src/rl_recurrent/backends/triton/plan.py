"""The choice of a kernel and its block sizes."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch

Product = Literal["ieee", "tf32", "tf32x3"]


@dataclasses.dataclass(frozen=True)
class LaunchPlan:
    """The kernel of a recurrence and its launch parameters."""

    # "resident": w_hh and the state stay on chip; "walk": a program reads w_hh anew at every step;
    # "steps": one launch per step, its programs share the columns of the hidden state
    regime: Literal["resident", "walk", "steps"]
    operands: torch.dtype  # dtype of the operands of matrix products
    input_precision: Product  # how Triton multiplies float32 operands
    block_s: int  # segments of a program
    block_j: int  # columns of the hidden state in a block; all of them if resident
    block_k: int  # slice of the sum over the hidden state
    num_warps: int  # warps of a program
    num_stages: int  # depth of the software pipeline of a loop


def make_plan(
    hidden_size: int, num_segments: int, precision: str, dtype: torch.dtype
) -> LaunchPlan:
    """Choose the kernel and its blocks from a fixed table, so that nothing is tuned at run time."""
    # Compiled for an H200, every entry fits the shared memory, and the registers but for a spill of
    # a few bytes. The table is not timed.
    operands, how = resolve(precision, dtype)
    block_h = 16
    while block_h < hidden_size:
        block_h *= 2
    block_s = 16 if num_segments <= 16 * 132 else 32  # 132 multiprocessors: enough programs first
    if block_h <= 64:
        warps = 8 if block_h == 64 else 4
        return LaunchPlan("resident", operands, how, block_s, block_h, block_h, warps, 2)
    if block_h == 128 and operands == torch.bfloat16:  # w_hh takes 128 of the 227 KB there are
        return LaunchPlan("resident", operands, how, 16, block_h, block_h, 8, 1)
    # one launch costs about what one multiprocessor needs to read w_hh of 256 columns
    regime: Literal["walk", "steps"] = "walk" if hidden_size <= 256 else "steps"
    block_j = 64 if hidden_size % 64 == 0 else 32
    warps = 4 if block_s * block_j <= 512 else 8  # so that no register spills
    return LaunchPlan(regime, operands, how, block_s, block_j, 32, warps, 3)


def resolve(precision: str, dtype: torch.dtype) -> tuple[torch.dtype, Product]:
    """Operand dtype and float32 mode of a precision; ``"auto"`` follows `torch.nn.LSTM`."""
    if precision == "bf16" or (precision == "auto" and dtype == torch.bfloat16):
        return torch.bfloat16, "ieee"
    if precision == "auto":
        how = torch.backends.cudnn.rnn.fp32_precision  # type: ignore[attr-defined]
        precision = "tf32" if how == "tf32" else "ieee"
    modes: dict[str, Product] = {"tf32": "tf32", "tf32x3": "tf32x3"}
    return torch.float32, modes.get(precision, "ieee")
