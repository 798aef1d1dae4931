"""Recurrent mode in shapes that follow from the batch alone: no host sync, one graph.

The rule is that of all backends: a segment starts from the states in its first row. There is no
list of segments, whose length depends on the data: a flag per row marks the starts, and the states
of all rows are passed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import Markers, contradictions, keys
from rl_layout.internals import cut_by_torch, marker_leaves
from rl_recurrent.backends.dispatch import Settings
from rl_recurrent.backends.static.scan import scan_inputs, scan_rows, window_steps
from rl_recurrent.cells.cell import Cell, RowWeights, States
from rl_recurrent.inputs import suspicious_rows
from rl_recurrent.network import Network, run_layers
from rl_tensordict import find
from rl_tensordict.torch_internals import assert_on_device


def unroll_static(  # noqa: PLR0913 - rows, a network, and what is wanted of it
    batch: TensorDictBase,
    x: Tensor,
    states: States,
    network: Network,
    settings: Settings,
    *,
    every_state: bool = False,
    burn_in: int = 0,
) -> tuple[Tensor, States]:
    """Run a network over a batch ``[*B, T]`` without a host sync: outputs, and states of rows."""
    # states [*B, T, L, H] go in for every row and come out zero but at segment ends, or for every
    # row; with burn_in all rows run twice
    shape = batch.batch_size
    starts, real = start_flags(batch)
    narrow = x.dtype in (torch.float16, torch.bfloat16)
    wide = network.float() if narrow else network
    layout = FlaggedRows(starts, *_window(shape, settings.max_length), every_state)
    padding = ~real[:, None]
    # padding may hold NaN or inf, which times 0 is NaN: mask it instead
    rows = x.reshape(starts.shape[0], -1).masked_fill(padding, 0)
    row_states = tuple(state.flatten(0, len(shape) - 1) for state in states)
    row_states = tuple(state.masked_fill(padding[..., None], 0) for state in row_states)
    if narrow:
        rows, row_states = rows.float(), tuple(state.float() for state in row_states)
    with torch.autocast(x.device.type, enabled=False):
        if burn_in:
            is_burn_in = _burn_in_rows(batch, starts, burn_in)
            out, after = _run_after_burn_in(wide, rows, row_states, layout, is_burn_in)
        else:
            out, after = run_layers(wide, rows, row_states, layout)
    visible = real if every_state else real & layout.lasts
    after = tuple((state * visible[:, None, None]).to(x.dtype) for state in after)
    out = (out * real[:, None]).to(x.dtype)
    return out.view(*shape, -1), tuple(each.view(*shape, *each.shape[1:]) for each in after)


@dataclass(frozen=True)
class FlaggedRows:
    """Rows whose segments are given by a flag at each first row, in which a scan runs a layer.

    Of the states ``[N, L, H]`` that go in, those of first rows count; those of all rows come out.
    """

    starts: Tensor  # first rows of segments, bool [N]
    length: int  # rows of a window
    steps: int  # rows of a column
    every_state: bool  # states after every row, not at segment ends alone

    @property
    def lasts(self) -> Tensor:
        """Last rows of segments, bool ``[N]``."""
        return torch.cat([self.starts[1:], self.starts.new_ones(1)])

    def run(self, cell: Cell, x: Tensor, weights: RowWeights, states: States) -> States:
        """Run one layer in one direction, by the scan."""
        own = torch.arange(len(x), device=x.device)  # each row has states of its own
        inputs = scan_inputs(x, weights, states)
        return tuple(scan_rows(inputs, self.starts, own, cell.name, self.length, self.steps))

    def wanted(self, states: States) -> States:
        """The states of all rows: the caller masks them."""
        return states

    def spread(self, h: Tensor) -> Tensor:
        """States ``[N, P]``, zeros but in first rows."""
        return h * self.starts[:, None]

    def mirror(self) -> Tensor:
        """The row at the place of each in its reversed segment, int64 ``[N]``."""
        numbers = torch.arange(len(self.starts), device=self.starts.device)
        firsts = torch.where(self.starts, numbers, 0).cummax(0).values
        ends = torch.where(self.lasts, numbers, len(numbers)).flip(0).cummin(0).values.flip(0)
        return firsts + ends - numbers


def _run_after_burn_in(
    network: Network, x: Tensor, states: States, rows: FlaggedRows, is_burn_in: Tensor
) -> tuple[Tensor, States]:
    """Run all rows without gradient, then again with it from the end of the burn-in rows."""
    with torch.no_grad():
        warm, warm_states = run_layers(network, x, states, rows)
    # first rows after a burn-in become starts, from the warm state of the row before
    resumes = _previous(is_burn_in) & ~rows.starts
    states = tuple(
        torch.where(resumes[:, None, None], after.roll(1, 0), before)
        for after, before in zip(warm_states, states, strict=True)
    )
    rest = replace(rows, starts=rows.starts | resumes)
    out, after = run_layers(network, x, states, rest)
    after = tuple(
        torch.where(is_burn_in[:, None, None], old, new)
        for old, new in zip(warm_states, after, strict=True)
    )
    return torch.where(is_burn_in[:, None], warm, out), after


def start_flags(batch: TensorDictBase) -> tuple[Tensor, Tensor]:
    """Flags of the first rows of segments, and of real rows, bool ``[N]`` each."""
    markers = Markers.of_leaves(batch.batch_size, marker_leaves(batch))
    lost = suspicious_rows(markers)
    if lost is not None:
        assert_on_device(~lost.any(), "is_init is False where another trajectory starts")
    # compiled batches have none: see `runs_static`
    contradicted = None if torch.compiler.is_compiling() else contradictions(batch)
    cuts = cut_by_torch(markers, None if contradicted is None else contradicted.flatten())
    # the last row is always cut from what follows, so the first one is a start
    starts, real = cuts.roll(1), markers.mask
    if real is None:
        return starts, torch.ones_like(starts)
    return starts | ~real | ~_previous(real), real  # rows of padding are segments of one row


def _previous(flag: Tensor) -> Tensor:
    """The flag of the row before, bool ``[N]``; False for the first."""
    return torch.cat([flag.new_zeros(1), flag[:-1]])


def _window(shape: torch.Size, max_length: int | None) -> tuple[int, int]:
    """Rows of a window and of a column."""
    # A flat sample has as many windows as its form [S, T], and columns at least as long: each step
    # multiplies the same rows in both, so that all bits agree.
    rows, sequence = shape.numel(), shape[-1]
    if max_length is None and len(shape) == 1:
        msg = (
            f"a flat batch [{rows}] in static shapes needs max_length=, the most rows that a "
            "trajectory or a slice has in it: shapes cannot follow from the data."
        )
        raise ValueError(msg)
    length = max_length or sequence
    return min(length, rows), window_steps(length, rows, sequence)


def _burn_in_rows(batch: TensorDictBase, starts: Tensor, burn_in: int) -> Tensor:
    """The first rows of segments whose stored state may be stale, bool ``[N]``."""
    numbers = torch.arange(len(starts), device=starts.device)
    firsts = torch.where(starts, numbers, 0).cummax(0).values
    within = numbers - firsts < burn_in
    steps = find(batch, keys.TRAJ_STEP)
    return within if steps is None else within & (steps.flatten()[firsts] != 0)
