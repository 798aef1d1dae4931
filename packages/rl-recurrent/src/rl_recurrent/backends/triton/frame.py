"""The tensors and launches that every kernel of one recurrence shares."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from rl_layout import Segments
from rl_recurrent.backends.triton.plan import LaunchPlan

NO_END = 2**31 - 1  # each program stops at its own longest segment


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
