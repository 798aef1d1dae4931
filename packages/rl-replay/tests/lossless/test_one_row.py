"""Single rows of lossless storages are stored as batches of one row are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_replay import LazyTensorStorage, TensorDictReplayBuffer

MENU = torch.tensor([0.0, -0.0, float("nan"), 1.0])


@st.composite
def walks(draw):
    """Steps of trajectories: ids, steps, which observation comes next, and whether it differs."""
    count, found = draw(st.integers(1, 25)), []
    lives = {}
    for _ in range(count):
        life = draw(st.integers(0, 2))
        step = lives.get(life, 0)
        lives[life] = 0 if draw(st.booleans()) and step > 1 else step + 1
        found.append((life + 10 * (lives[life] == 0), step, draw(st.integers(0, 3))))
    return found


def row(life, step, seen, *, numbered, wide):
    """One row; the observation of a step is a function of trajectory and step, nearly always."""
    after = MENU[(life + step + 1 + (seen == 3)) % 4].expand(wide).clone()
    root = {
        "observation": MENU[(life + step) % 4].expand(wide).clone(),
        "frame": torch.full((3,), step, dtype=torch.uint8),
        "action": torch.tensor(seen),
        "next": {
            "observation": after,
            "frame": torch.full((3,), step + 1, dtype=torch.uint8),
            "done": torch.tensor([seen == 2]),
        },
    }
    if numbered:
        ids = {"traj_ids": torch.tensor(life), "traj_step": torch.tensor(step)}
        root["collector"] = ids
    return TensorDict(root)


def same(one, two):
    keys = set(one.keys(True, True))
    return all(one[key].numpy().tobytes() == two[key].numpy().tobytes() for key in keys)


# observations in the row, in two words of it, in an own array
@pytest.mark.parametrize(
    ("wide", "numbered", "shared"), [(1, True, True), (2, False, False), (70, True, False)]
)
@given(walk=walks(), capacity=st.integers(2, 9), each=st.integers(1, 4))
def test_single_rows_are_kept_as_batches_of_one_are(walk, capacity, each, numbered, wide, shared):
    lanes = {"lanes": 1} if shared else {}
    quick, general, plain = (
        TensorDictReplayBuffer(
            storage=LazyTensorStorage(capacity, lossless=lossless, **lanes), shared=shared
        )
        for lossless in (True, True, False)
    )
    for number, step in enumerate(walk):
        one = row(*step, numbered=numbered, wide=wide)
        for buffer in (quick, general, plain):
            if number % each:
                buffer.add(one)
            else:
                buffer.extend(one.unsqueeze(0))
        general.storage.session.table.one_row = None
    assert quick.storage.session.table.one_row is not None
    assert same(quick[:], plain[:])
    assert same(general[:], plain[:])
    ours, theirs = quick.storage.store, general.storage.store
    assert ours.side.in_use() == theirs.side.in_use()
    in_slots = [store.addresses.in_slots(store.addresses.values) for store in (ours, theirs)]
    assert np.array_equal(*in_slots)
    assert np.array_equal(quick.storage.back, general.storage.back)
