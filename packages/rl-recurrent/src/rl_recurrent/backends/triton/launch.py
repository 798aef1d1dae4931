"""The launches of the kernels: which one and its block sizes, and the tensors that all share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from rl_layout import Segments

NO_END = 2**31 - 1  # each program stops at its own longest segment
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


@dataclasses.dataclass(frozen=True)
class Frame:
    """The tables of segments that kernels read, and the launches of a plan."""

    order: Tensor  # int64 [S], segments from the longest to the shortest
    first: Tensor  # int64 [S], first of each segment's rows among the real ones
    lengths: Tensor  # int64 [S]
    segments: Segments  # source of the three tables
    plan: LaunchPlan  # the kernel and its blocks

    @classmethod
    def of(cls, segments: Segments, plan: LaunchPlan) -> Frame:
        """Take the tensors from segments, contiguous."""
        first = segments.offsets[:-1].contiguous()
        return cls(segments.order, first, segments.lengths.contiguous(), segments, plan)

    @property
    def tables(self) -> tuple[Tensor, Tensor, Tensor, int]:
        """The tables of segments, as trailing arguments of every kernel."""
        return self.order, self.first, self.lengths, len(self.segments)

    @property
    def tiles(self) -> int:
        """Number of tiles of segments."""
        return -(-len(self.segments) // self.plan.block_s)

    def launches(self, hidden_size: int) -> Iterator[tuple[tuple[int, int], int, int]]:
        """Grid, first step and end of each launch of a streamed kernel, in the order of time."""
        if self.plan.regime == "walk":
            yield (self.tiles, 1), 0, NO_END
            return
        blocks = -(-hidden_size // self.plan.block_j)
        for t in range(self.segments.max_length):  # one host sync per batch
            yield (self.tiles, blocks), t, t + 1

    def launch(
        self,
        kernels: tuple[Any, Any],
        tensors: Sequence[Tensor],
        w_hh: Tensor,
        *,
        backwards: bool = False,
        **flags: bool,
    ) -> None:
        """Launch one of ``kernels``, the resident or the streamed one, on all segments."""
        if not self.tiles:
            return
        resident, streamed = kernels
        options = {"H": w_hh.shape[1], **flags, **self.options()}
        if self.plan.regime == "resident":
            resident[(self.tiles,)](*tensors, *self.tables, **options)
            return
        launches = list(self.launches(w_hh.shape[1]))
        for grid, begin, end in reversed(launches) if backwards else launches:
            streamed[grid](*tensors, *self.tables, begin, end, **options)

    def before(self, states: Tensor, initial: Tensor) -> Tensor:
        """State ``[M, H]`` that each row starts from: its predecessor's, or the initial one."""
        shifted = torch.empty_like(states)
        shifted[1:] = states[:-1]
        shifted[self.first] = initial
        return shifted

    def weights(self, w_hh: Tensor) -> Tensor:
        """``w_hh`` in the dtype of the products, contiguous; for tf32 rounded to its 10 bits."""
        operand = w_hh.to(self.plan.operands).contiguous()
        if self.plan.input_precision != "tf32":
            return operand
        # add half of the last kept bit, then clear the 13 bits that tf32 drops
        rounded = ((operand.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)
        return torch.where(operand.isnan(), operand, rounded)

    def options(self) -> dict[str, object]:
        """Compile-time arguments that every kernel takes."""
        plan = self.plan
        options = {
            "BLOCK_S": plan.block_s,
            "PRECISION": plan.input_precision,
            "num_warps": plan.num_warps,
            "num_stages": plan.num_stages,
            "enable_fp_fusion": True,
        }
        if plan.regime == "resident":
            return {**options, "BLOCK_H": plan.block_j}
        return {**options, "BLOCK_J": plan.block_j, "BLOCK_K": plan.block_k}
