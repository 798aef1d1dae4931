"""Hypothesis strategies over layouts; needs hypothesis, as in ``rl-layout[testing]``."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_layout import keys
from rl_layout.segments.end_kind import EndKind
from rl_layout.synthetic import environments, trajectories

OPTIONAL_KEYS = (keys.TRAJ_IDS, keys.TRAJ_STEP, keys.IS_INIT, keys.NEXT_DONE)
kinds = st.sampled_from(list(EndKind))


@st.composite
def flat_batches(draw: st.DrawFn, max_rows: int = 40) -> TensorDict:
    """Draw flat batches: any lengths and ends, beginning in mid-trajectory or not."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=max_rows // 5))
    ends = draw(st.lists(kinds, min_size=len(lengths), max_size=len(lengths)))
    return trajectories(lengths, ends, first_step=draw(st.sampled_from([0, 0, 3])))


@st.composite
def batches(draw: st.DrawFn) -> TensorDict:
    """Draw batches ``[N]`` and ``[B, T]``, some without optional markers, some with padding."""
    if draw(st.booleans()):
        batch = draw(flat_batches())
    else:
        lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
        ends = draw(st.lists(kinds, min_size=1, max_size=3))
        num_envs, num_steps = draw(st.integers(1, 3)), draw(st.integers(1, 8))
        batch = environments(num_envs, num_steps, lengths, ends)
    kept = draw(st.sets(st.sampled_from(OPTIONAL_KEYS), min_size=1))
    gone = [key for key in OPTIONAL_KEYS if key not in kept]
    if keys.NEXT_DONE in gone:
        gone += [keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED]
    batch = batch.exclude(*gone)
    if draw(st.booleans()):
        size = batch.numel()
        mask = draw(st.lists(st.booleans(), min_size=size, max_size=size))
        batch.set(keys.MASK, torch.tensor(mask, device="cpu").reshape(batch.batch_size))
    return batch


@st.composite
def plain_batches(draw: st.DrawFn) -> TensorDict:
    """Draw batches as they are written by hand: no names, few markers, some rows mixed up."""
    batch = draw(batches())
    if draw(st.booleans()) and keys.IS_INIT in batch.keys(True):
        batch = batch.exclude(draw(st.sampled_from([keys.TRAJ_IDS, keys.TRAJ_STEP])))
    size = batch.numel()
    order = draw(st.permutations(range(size))) if draw(st.booleans()) else range(size)
    batch = batch.reshape(-1)[torch.tensor(order, device="cpu")].reshape(batch.batch_size)
    if draw(st.booleans()):  # as computed anew from other weights
        state = torch.arange(2 * size, device="cpu").reshape(*batch.batch_size, 2)
        batch.set("memory", state).set(("next", "memory"), state)
    if draw(st.booleans()):
        far = draw(st.lists(st.integers(1, 3), min_size=size, max_size=size))
        ahead = torch.tensor(far, device="cpu").reshape(*batch.batch_size, 1)
        batch.set(keys.STEPS_TO_NEXT_OBS, ahead)
    if draw(st.booleans()):
        missing = draw(st.lists(st.booleans(), min_size=size, max_size=size))
        batch.set(keys.NEXT_MISSING, torch.tensor(missing, device="cpu").reshape(batch.batch_size))
    batch.names = None
    return batch
