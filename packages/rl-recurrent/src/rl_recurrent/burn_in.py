"""Burn-in: the first rows of a segment refresh its state without gradient, the rest learn."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import Segments, keys
from rl_recurrent.backends.dispatch import Settings
from rl_recurrent.cells.cell import States
from rl_recurrent.functional import unroll
from rl_recurrent.network import Network


def burn_in_rows(batch: TensorDictBase, segments: Segments, burn_in: int) -> Tensor:
    """Flag the burn-in rows of segments whose stored state may be stale, bool ``[M]``."""
    # at a reset, where traj_step is 0, the state is the primer's default and never stale
    counts = torch.full_like(segments.lengths, burn_in)
    steps = batch.get(keys.TRAJ_STEP, None)
    if steps is not None:
        counts = counts.masked_fill(segments.first(steps) == 0, 0)
    positions = segments.rows - segments.spread(segments.starts)
    return positions < segments.spread(counts)


def unroll_after_burn_in(
    x: Tensor,
    segments: Segments,
    states: States,
    is_burn_in: Tensor,
    how: tuple[Network, Settings, bool],
) -> tuple[Tensor, States]:
    """Run a network without gradient over burn-in rows, then with gradient over the rest."""
    network, settings, every_state = how
    rows, offsets = segments.gather(x), segments.offsets
    results = [
        rows.new_zeros(len(rows), network.output_size),
        *(
            rows.new_zeros(len(rows) if every_state else len(segments), *shape)
            for shape in network.state_shapes
        ),
    ]
    # burn-in rows before each row, int64 [M + 1]
    ahead = torch.cat([is_burn_in.new_zeros(1).long(), is_burn_in.cumsum(0)])
    burn_in_lengths = ahead[offsets[1:]] - ahead[offsets[:-1]]  # of each segment, int64 [S]
    # two runs over real rows: burn-in rows, then the rest of each segment
    for part, counts in (
        (is_burn_in, burn_in_lengths),
        (~is_burn_in, segments.lengths - burn_in_lengths),
    ):
        which, where = counts.nonzero()[:, 0], part.nonzero()[:, 0]
        if not len(which):
            continue
        inner = Segments.from_lengths(counts[which])
        before = tuple(state.index_select(0, which) for state in states)
        with torch.set_grad_enabled(torch.is_grad_enabled() and part is not is_burn_in):
            run = unroll(rows[where], inner, before, network, settings, every_state=every_state)
        out, after = run
        places = [where, *((where if every_state else which) for _ in after)]
        results = [
            whole.index_copy(0, place, new)
            for whole, place, new in zip(results, places, (out, *after), strict=True)
        ]
        if part is is_burn_in:  # the second run starts from the states after the burn-in
            ends = inner.offsets[1:] - 1
            last = (state[ends] if every_state else state for state in after)
            states = tuple(s.index_copy(0, which, n) for s, n in zip(states, last, strict=True))
    return segments.scatter(results[0]), tuple(results[1:])
