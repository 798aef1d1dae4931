"""The trajectories with the highest ranks, each whole."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_layout.testing import EndKind, environments, trajectories
from rl_replay import (
    LazyTensorStorage,
    SliceSampler,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)


def buffer(capacity=10, reduction="sum", key="score", **options):
    writer = TensorDictMaxValueWriter(key, reduction, by="trajectory")
    return TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), writer=writer, **options)


def episode(name, length, score):
    """A trajectory whose steps share a score between them."""
    made = trajectories([length], first_id=name)
    made["score"] = torch.zeros(length, 1, dtype=torch.float64)
    made["score"][length // 2] = score
    return made


def kept_of(finished, capacity):
    """Names of (name, length, score) that a plain list holds, in the order in which they ended."""
    stored = []
    for name, length, score in finished:
        room = capacity - sum(one[1] for one in stored)
        # the worst first, of equal ones the newest
        order = sorted(range(len(stored)), key=lambda place: (stored[place][2], -place))
        worse = [stored[place] for place in order if stored[place][2] < score]
        gone = []
        while room < length and worse:
            gone.append(worse.pop(0))
            room += gone[-1][1]
        if room >= length:
            stored = [one for one in stored if one not in gone] + [(name, length, score)]
    return [one[0] for one in stored]


def stored_names(made):
    if not len(made):
        return []
    ids = made[:]["collector", "traj_ids"]
    return list(dict.fromkeys(ids.tolist()))


def check_whole(made, lengths):
    """Every stored trajectory is there from its first step to its last."""
    if not len(made):
        return
    rows = made[:]
    for name in stored_names(made):
        mine = rows[rows["collector", "traj_ids"] == name]
        assert mine["collector", "traj_step"].tolist() == list(range(lengths[name]))
        assert mine["next", "done"].flatten().tolist()[-1]
    assert sorted(made.storage.trajectories().lengths().tolist()) == sorted(
        lengths[name] for name in stored_names(made)
    )


@settings(deadline=None, max_examples=40)
@given(data=st.data(), capacity=st.integers(3, 14))
def test_the_stored_trajectories_are_those_of_a_list(data, capacity):
    count = data.draw(st.integers(1, 8))
    lengths = {n: data.draw(st.integers(1, 7)) for n in range(count)}
    scores = {n: float(data.draw(st.integers(-2, 3))) for n in range(count)}
    made, finished = buffer(capacity), []
    waiting = {n: episode(n, lengths[n], scores[n]) for n in range(count)}
    while waiting:
        # a few steps of some producer, interleaved with those of others
        parts, done = [], []
        for name in data.draw(st.lists(st.sampled_from(sorted(waiting)), unique=True, min_size=1)):
            rows = waiting.pop(name)
            some = data.draw(st.integers(1, len(rows)))
            parts.append(rows[:some])
            if some < len(rows):
                waiting[name] = rows[some:]
            else:
                done.append(name)
        open_rows = sum(lengths[n] - len(rows) for n, rows in waiting.items())
        if open_rows > capacity:
            return  # the oldest that wait are dropped, which has a test of its own
        index = made.extend(torch.cat(parts))
        finished += [(name, lengths[name], scores[name]) for name in done]
        assert stored_names(made) == kept_of(finished, capacity)
        check_whole(made, lengths)
        for place, row in zip(index.tolist(), torch.cat(parts), strict=True):
            if place >= 0:
                for key in (("collector", "traj_ids"), ("collector", "traj_step")):
                    assert made[place][key] == row[key]


def test_slices_are_drawn_of_what_is_kept():
    made = buffer(20, sampler=SliceSampler(slice_len=3), batch_size=12)
    for name, (length, score) in enumerate([(6, 1.0), (8, 5.0), (9, 2.0), (7, 4.0)]):
        made.extend(episode(name, length, score))
    assert stored_names(made) == [1, 3]
    sample = made.sample()
    assert set(sample["collector", "traj_ids"].tolist()) <= {1, 3}
    assert (sample["collector", "traj_step"].view(-1, 3).diff(dim=1) == 1).all()
    again = made.update_rows(sample["collector", "row"], sample.select("score"))
    assert again.all()
    made.extend(episode(9, 6, 9.0))
    assert not made.update_rows(sample["collector", "row"], sample.select("score")).any()


def test_a_vector_brings_columns_of_unfinished_trajectories():
    batch = environments(3, 12, [4, 5], [EndKind.TERMINATED, EndKind.TRUNCATED])
    made = buffer(100, key=("next", "reward"))
    for part in batch.split(5, dim=1):
        made.extend(part)
    flat = batch.reshape(-1)
    ids = flat["collector", "traj_ids"]
    whole = [
        name
        for name in ids.unique().tolist()
        if flat["next", "done"][ids == name].any()
        and not int(flat["collector", "traj_step"][ids == name][0])
    ]
    assert sorted(stored_names(made)) == whole


def test_without_ids_a_producer_brings_its_steps_in_order():
    made = buffer(8)
    rows = torch.cat([episode(0, 3, 1.0), episode(1, 4, 2.0), episode(2, 4, 3.0)])
    rows = rows.exclude("collector")
    for part in rows.split(2):
        made.extend(part)
    assert made[:]["score"].sum() == 5.0
    assert len(made) == 8


def test_trajectories_that_never_fit_or_never_began_are_dropped():
    made = buffer(4)
    made.extend(episode(0, 6, 9.0))
    assert len(made) == 0
    made.extend(episode(1, 6, 9.0)[2:])
    assert len(made) == 0
    made.extend(episode(2, 4, 1.0))
    assert stored_names(made) == [2]


def test_too_many_unfinished_steps_drop_the_trajectory_that_waits_longest():
    made = buffer(6)
    made.extend(episode(0, 6, 1.0)[:4])
    made.extend(episode(1, 6, 1.0)[:4])
    made.extend(episode(0, 6, 1.0)[4:])
    assert len(made) == 0
    made.extend(episode(1, 6, 1.0)[4:])
    assert stored_names(made) == [1]


@pytest.mark.parametrize("larger", [0, 7])
def test_ranks_and_unfinished_trajectories_go_through_dumps(tmp_path, larger):
    one, two = buffer(10), buffer(10 + larger)
    for name, (length, score) in enumerate([(4, 2.0), (5, 2.0), (6, 1.0)]):
        one.extend(episode(name, length, score))
    one.extend(episode(7, 5, 3.0)[:2])
    one.dumps(tmp_path)
    two.loads(tmp_path)
    one.extend(episode(7, 5, 3.0)[2:])
    two.extend(episode(7, 5, 3.0)[2:])
    # of equal ones the newest goes
    assert stored_names(one) == [0, 7]
    assert stored_names(two) == ([0, 1, 7] if larger else [0, 7])


def test_the_state_goes_through_torch_save(tmp_path):
    one, two = buffer(10), buffer(10)
    one.extend(episode(0, 4, 2.0))
    one.extend(episode(1, 5, 2.0)[:3])
    torch.save(one.state_dict(), tmp_path / "state.pt")
    two.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    two.extend(episode(1, 5, 2.0)[3:])
    assert stored_names(two) == [0, 1]


def test_rows_that_are_loaded_alone_are_ranked_by_their_markers(tmp_path):
    plain = TensorDictReplayBuffer(storage=LazyTensorStorage(10))
    plain.extend(torch.cat([episode(0, 4, 2.0), episode(1, 5, 1.0)]))
    plain.dumps(tmp_path)
    made = buffer(10)
    made.loads(tmp_path, rows_only=True)
    made.extend(episode(2, 5, 1.5))
    assert stored_names(made) == [0, 2]


def test_changes_are_noted_before_a_trajectory_is_stored():
    made = buffer()
    made.extend(episode(1, 5, 1.0)[:2])
    made.writer.note_changes()
    made.extend(episode(2, 4, 1.0))
    assert stored_names(made) == [2]


def test_other_rows_of_the_same_ids_are_ranked_anew(tmp_path):
    other = buffer()
    for name, length, score in ((1, 6, 1.0), (2, 4, 3.0)):
        other.extend(episode(name, length, score))
    other.dumps(tmp_path)
    loaded, exchanged = buffer(), buffer()
    for one in (loaded, exchanged):
        one.extend(episode(3, 5, 9.0))
        one.extend(episode(4, 5, 8.0))
    loaded.loads(tmp_path, rows_only=True)
    exchanged.set_storage(other.storage)
    for one in (loaded, exchanged):
        one.extend(episode(5, 6, 2.0))
        assert stored_names(one) == [2, 5]
        check_whole(one, {2: 4, 5: 6})


def test_ends_must_be_stored():
    rows = TensorDict({"score": torch.zeros(3), "observation": torch.zeros(3)}, [3])
    with pytest.raises(KeyError, match="no flag says where one ends"):
        buffer().extend(rows)


def test_a_rank_that_is_nan_is_refused_and_nothing_changes():
    made = buffer(10)
    made.extend(episode(0, 4, 2.0))
    with pytest.raises(ValueError, match="NaN"):
        made.extend(episode(1, 4, float("nan")))
    assert stored_names(made) == [0]


def test_other_leaves_are_refused_before_the_stored_ones_go():
    made = buffer(10)
    made.extend(episode(0, 6, 2.0))
    other = episode(1, 6, 9.0)
    other["action"] = other["action"].float()
    with pytest.raises(ValueError, match=r"'action' is .* give the others the same leaves"):
        made.extend(other)
    assert stored_names(made) == [0]
    assert len(made) == 6
