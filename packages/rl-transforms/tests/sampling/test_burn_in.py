from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_layout import Segments, keys, recurrent_mode
from rl_layout.testing import EndKind, environments, trajectories
from rl_transforms import BurnIn


class Leaky:
    """h' = h / 2 + x, from the state in the first row of every segment, as rl-recurrent has it."""

    in_keys, out_keys = ("observation", "state", "is_init"), ("features", ("next", "state"))

    def __init__(self):
        self.weight = torch.ones((), requires_grad=True)

    def __call__(self, rows):
        assert recurrent_mode() is True
        assert not torch.is_grad_enabled()
        segments, after = Segments.of(rows), torch.zeros_like(rows["state"]).flatten(0, -2)
        x, h0 = rows["observation"].flatten(0, -2), rows["state"].flatten(0, -2)
        for start, length in zip(segments.starts, segments.lengths, strict=True):
            h = h0[start]
            for row in range(start, start + length):
                h = h / 2 + x[row].sum() * self.weight
            after[row] = h  # the ends of segments alone
        rows["next", "state"] = after.reshape(rows["state"].shape)
        return rows


def stateful(batch):
    """The batch with stored states that are wrong in every row but the first of a trajectory."""
    batch["state"] = torch.rand(*batch.shape, 3)
    batch["state"][batch["collector", "traj_step"] == 0] = 0
    return batch


def state_after(batch, rows):
    """The state after some rows, from that in the first one."""
    h = batch["state"][rows[0]]
    for row in rows:
        h = h / 2 + batch["observation"][row].sum()
    return h


def expected(batch, burn_in):
    """Rows that are left, and the states that the first ones of slices start from, row by row."""
    segments, left, states = Segments.of(batch), [], {}
    for start, length in zip(segments.starts.tolist(), segments.lengths.tolist(), strict=True):
        burnt = 0 if batch["collector", "traj_step"][start] == 0 else burn_in
        if burnt and length > burnt:
            states[len(left)] = state_after(batch, range(start, start + burnt))
        begins = len(left)
        left += range(start + burnt, start + length)
        if len(left) > begins:
            states.setdefault(begins, batch["state"][left[begins]])
    return left, states


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 7)), min_size=1, max_size=6),
    st.integers(1, 4),
)
def test_slices_lose_their_first_rows_and_start_from_the_resulting_state(slices, burn_in):
    whole = stateful(trajectories([9, 14], [EndKind.TERMINATED, EndKind.CUT]))
    rows, marks = [], []
    for first, length in slices:  # side by side, overlapping, one after the other
        picked = range(first + 9, first + 9 + length) if first % 2 else range(first, first + length)
        rows += picked
        marks += [True] + [False] * (length - 1)
    batch = whole[torch.tensor(rows)].clone()
    batch["is_init"] = torch.tensor(marks).unsqueeze(-1)
    given, (left, states) = batch.clone(), expected(batch, burn_in)
    if not left:
        with pytest.raises(ValueError, match="leaves no row of slices"):
            BurnIn(Leaky(), burn_in)(batch)
        return
    found = BurnIn(Leaky(), burn_in)(batch)
    for key in ("action", keys.TRAJ_STEP, keys.NEXT_REWARD, keys.NEXT_TERMINATED):
        assert torch.equal(found[key], batch[key][torch.tensor(left)])
    for row, state in enumerate(batch["state"][torch.tensor(left)]):
        torch.testing.assert_close(found["state"][row], states.get(row, state).detach())
    assert found["is_init"].flatten().nonzero()[:, 0].tolist() == list(states)
    assert not found["state"].requires_grad
    assert (batch == given).all()
    assert "features" not in found


def test_slices_of_one_trajectory_stay_separate_after_burn_in():
    whole = stateful(trajectories([12], first_step=3))
    batch = whole[torch.tensor([0, 1, 2, 3, 4, 3, 4, 5, 6])].clone()  # steps 3 to 7, and 6 to 9
    batch = batch.exclude("is_init")
    left = BurnIn(Leaky(), 2)(batch)
    assert left["collector", "traj_step"].tolist() == [5, 6, 7, 8, 9]
    assert Segments.of(left).lengths.tolist() == [3, 2]


def test_adjacent_heads_are_not_joined():
    whole = stateful(trajectories([12], first_step=3))
    batch = whole[torch.tensor([0, 1, 2, 3, 4, 2, 3, 4, 5])].clone().exclude("is_init")
    left = BurnIn(Leaky(), 2)(batch)  # of steps 3 and 4, and of 5 and 6
    for first, row in ((0, 0), (5, 3)):
        wanted = state_after(batch, [first, first + 1])
        torch.testing.assert_close(left["state"][row], wanted)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(1, 5))
def test_rectangular_batch_loses_its_first_columns(lengths, burn_in):
    batch = stateful(environments(3, 7, lengths, [EndKind.TERMINATED, EndKind.CUT]))[:, 1:]
    found = BurnIn([Leaky()], burn_in)(batch)
    assert found.batch_size == (3, 6 - burn_in)
    assert torch.equal(found["action"], batch["action"][:, burn_in:])
    assert torch.equal(found["state"][:, 1:], batch["state"][:, burn_in + 1 :])
    for env in range(3):
        row, segment = batch[env], Segments.of(batch).ids[env]
        warm_up = [t for t in range(burn_in) if segment[t] == segment[burn_in]]
        wanted = state_after(row, warm_up) if warm_up else row["state"][burn_in]
        torch.testing.assert_close(found["state"][env, 0], wanted.detach())
        assert found["is_init"][env, 0].item() == bool(warm_up or row["is_init"][burn_in])


def test_out_keys_name_states_that_modules_do_not_declare():
    class Silent(Leaky):
        out_keys = ("features",)

    batch = stateful(trajectories([5], first_step=2))
    assert len(BurnIn(Silent(), 2, ["state"])(batch)) == 3
    with pytest.raises(ValueError, match=r"no state under 'next': they write \[\('features',\)\]"):
        BurnIn(Silent(), 2)
    with pytest.raises(KeyError, match=r"'other'\) is missing"):
        BurnIn(Silent(), 2, ["other"])(batch.set("other", torch.zeros(5, 1)))


def test_modules_are_neither_saved_nor_trained_by_the_transform():
    class Weighted(torch.nn.Linear):
        in_keys, out_keys = ("observation",), (("next", "state"),)

    burn = BurnIn(Weighted(2, 3), 2)
    assert burn.state_dict() == {}
    assert list(burn.parameters()) == []


def test_invalid_modules_and_too_short_slices_are_refused():
    batch = stateful(trajectories([5], first_step=2))
    with pytest.raises(ValueError, match="at least 1, got 0"):
        BurnIn(Leaky(), 0)
    with pytest.raises(TypeError, match="in_keys and out_keys, got Linear"):
        BurnIn(torch.nn.Linear(2, 2), 3)
    with pytest.raises(KeyError, match="'state' is missing"):
        BurnIn(Leaky(), 2)(batch.exclude("state"))
    with pytest.raises(ValueError, match="burn_in=5 leaves no row of slices of at most 5 rows"):
        BurnIn(Leaky(), 5)(batch)
    with pytest.raises(ValueError, match="leaves no row of 2 columns"):
        BurnIn(Leaky(), 2)(stateful(environments(3, 2, [5], [EndKind.CUT])))
    with pytest.raises(ValueError, match="cannot sit in an environment"):
        BurnIn(Leaky(), 2).check_place("environment")
    with pytest.raises(KeyError, match="no marker"):
        BurnIn(Leaky(), 2)(TensorDict({"state": torch.zeros(3, 1)}, [3]))
