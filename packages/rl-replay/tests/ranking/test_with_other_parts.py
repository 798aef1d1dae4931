"""The best rows and trajectories with priorities, in lossless storage, and in files."""

from __future__ import annotations

import multiprocessing

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_layout.testing import trajectories
from rl_replay import (
    ConsumingSampler,
    LazyMemmapStorage,
    LazyTensorStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    SliceSampler,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)


def of_rows(capacity, **options):
    sampler = PrioritizedSampler(capacity, alpha=1.0, beta=1.0, eps=0.0, **options)
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity),
        writer=TensorDictMaxValueWriter("rank"),
        sampler=sampler,
    )


def rows(ranks, first=0, **leaves):
    found = {"rank": torch.tensor(ranks).double(), "name": torch.arange(len(ranks)) + first}
    return TensorDict(found | leaves, [len(ranks)])


def priorities(buffer):
    """The priority of each stored name, as the state of the sampler has them."""
    buffer.sampler.catch_up(buffer.storage)
    found = buffer.sampler.state_dict()["priorities"]
    return dict(zip(buffer[:]["name"].tolist(), found.tolist(), strict=True))


def probabilities(buffer, draws=4_000):
    """How often each name is drawn."""
    names = buffer.sample(draws)["name"]
    return {int(name): float((names == name).float().mean()) for name in names.unique()}


def test_rows_that_stay_keep_their_priorities_and_new_ones_have_the_highest():
    made = of_rows(4)
    index = made.extend(rows([4.0, 1.0, 3.0, 2.0]))
    made.update_priority(index, torch.tensor([1.0, 2.0, 3.0, 6.0]))
    made.extend(rows([5.0, 0.5, 2.5], first=4))  # in place of names 1 and 3
    assert priorities(made) == {0: 1, 2: 3, 4: 6, 6: 6}
    found = probabilities(made)
    assert found == pytest.approx({0: 1 / 16, 2: 3 / 16, 4: 6 / 16, 6: 6 / 16}, abs=1e-3)


def test_rows_that_are_stored_with_a_priority_begin_with_it():
    made = of_rows(3)
    made.extend(rows([1.0, 2.0, 3.0], td_error=torch.tensor([1.0, 2, 5])))
    made.extend(rows([9.0], first=3, td_error=torch.tensor([0.5])))
    assert priorities(made) == {1: 2, 2: 5, 3: 0.5}


@pytest.mark.parametrize("normalize", ["batch", "buffer", None])
def test_weights_are_those_of_the_rows_that_are_there(normalize):
    made = of_rows(4, normalize=normalize)
    index = made.extend(rows([4.0, 1.0, 3.0, 2.0]))
    made.update_priority(index, torch.tensor([1.0, 2.0, 3.0, 6.0]))
    made.sample(8)
    made.extend(rows([5.0], first=4))  # in place of name 1
    sample = made.sample(800)
    share = {0: 1 / 16, 2: 3 / 16, 3: 6 / 16, 4: 6 / 16}
    wanted = torch.tensor([1 / (4 * share[name]) for name in sample["name"].tolist()])
    wanted /= 1 if normalize is None else 4.0
    torch.testing.assert_close(sample["priority_weight"], wanted, rtol=1e-5, atol=0)


def test_priorities_that_come_back_late_are_dropped_and_counted():
    made = of_rows(3)
    made.extend(rows([1.0, 2.0, 3.0]))
    before = made.sample(30)
    made.extend(rows([5.0], first=3))
    before["td_error"] = torch.full((30,), 9.0)
    made.update_tensordict_priority(before)
    assert made.stats()["stale_priorities"] == 30
    assert set(priorities(made).values()) == {1.0}


@settings(deadline=None, max_examples=40)
@given(data=st.data(), capacity=st.integers(1, 20))
def test_priorities_are_those_of_a_dictionary(data, capacity):
    made, known, name = of_rows(capacity), {}, 0
    for _ in range(data.draw(st.integers(1, 8))):
        ranks = data.draw(st.lists(st.integers(0, 9).map(float), min_size=1, max_size=12))
        before, highest = set(known), made.sampler.default_priority
        made.extend(rows(ranks, name))
        name += len(ranks)
        stored = made[:]["name"].tolist()
        known = {one: known[one] if one in before else highest for one in stored}
        if data.draw(st.booleans()):
            made.sample(1)  # the sampler sees some of the writes
        if data.draw(st.booleans()):
            sample = made.sample(5)
            sample["td_error"] = torch.arange(1.0, 6.0) + name
            made.update_tensordict_priority(sample)
            known |= dict(zip(sample["name"].tolist(), sample["td_error"].tolist(), strict=True))
        if data.draw(st.booleans()):
            assert priorities(made) == known
    assert priorities(made) == known


def episode(name, length, score):
    made = trajectories([length], first_id=name)
    made["score"] = torch.zeros(length, 1, dtype=torch.float64)
    made["score"][length // 2] = score
    return made


def of_trajectories(storage, sampler=None):
    writer = TensorDictMaxValueWriter("score", by="trajectory")
    return TensorDictReplayBuffer(storage=storage, writer=writer, sampler=sampler)


STORAGES = {
    "lossless": lambda: LazyTensorStorage(12, lossless=True),
    "file": lambda: LazyMemmapStorage(12),
    "lossless file": lambda: LazyMemmapStorage(12, lossless=True),
}


@pytest.mark.parametrize("kind", STORAGES)
def test_trajectories_are_those_that_private_memory_keeps(kind):
    generator = torch.Generator().manual_seed(1)
    made, other = of_trajectories(STORAGES[kind]()), of_trajectories(LazyTensorStorage(12))
    for name in range(40):
        length, score = (int(torch.randint(1, 8, (), generator=generator)) for _ in range(2))
        index = [one.extend(episode(name, length, score)) for one in (made, other)]
        assert index[0].tolist() == index[1].tolist()
        if len(other):
            assert (made[:] == other[:]).all()
    assert made.storage.trajectories().lengths().tolist() == (
        other.storage.trajectories().lengths().tolist()
    )


def test_a_file_that_is_opened_again_is_ranked_by_what_is_in_it(tmp_path):
    made = of_trajectories(LazyMemmapStorage(9, scratch_dir=tmp_path))
    made.extend(torch.cat([episode(1, 4, 2), episode(2, 3, 5)]))
    other = of_trajectories(LazyMemmapStorage.open(tmp_path))
    other.extend(episode(3, 5, 4))
    assert other[:]["collector", "traj_ids"].unique().tolist() == [2, 3]


@pytest.mark.parametrize("slices", [False, True])
@pytest.mark.parametrize("kind", ["lossless", "private"])
def test_trajectories_that_stay_keep_their_priorities(kind, slices):
    lossless = kind == "lossless"
    common = {"alpha": 1.0, "beta": 1.0, "eps": 0.0}
    sampler = (
        PrioritizedSliceSampler(12, slice_len=2, **common)
        if slices
        else PrioritizedSampler(12, **common)
    )
    made = of_trajectories(LazyTensorStorage(12, lossless=lossless), sampler)
    index = made.extend(torch.cat([episode(1, 3, 5), episode(2, 4, 1), episode(3, 5, 7)]))
    made.sample(2)
    made.update_priority(index, torch.arange(12.0))
    made.extend(episode(4, 2, 3))  # in place of the second one
    assert made[:]["collector", "traj_ids"].tolist() == [1] * 3 + [3] * 5 + [4] * 2
    made.sample(2)
    found = made.sampler.state_dict()["priorities"].tolist()
    assert found == [0, 1, 2, 7, 8, 9, 10, 11, 11, 11]
    starts = [0, 1, 3, 4, 5, 6, 8] if slices else list(range(10))
    drawn = made.sample(2_000)
    steps = drawn["index"][::2] if slices else drawn["index"]
    total = sum(found[start] for start in starts)
    for start in starts:
        share = float((steps == start).float().mean())
        assert share == pytest.approx(found[start] / total, abs=2e-3)


def extend_elsewhere(buffer, told):
    try:
        buffer.extend(episode(9, 2, 9))
    except RuntimeError as error:
        told.put((str(error), len(buffer.sample(4))))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forked alongside threads of torch's
def test_another_process_samples_and_is_told_who_stores():
    made = of_trajectories(LazyMemmapStorage(12), SliceSampler(slice_len=2))
    made.extend(episode(1, 3, 5))
    context = multiprocessing.get_context("fork")
    told = context.Queue()
    child = context.Process(target=extend_elsewhere, args=(made, told))
    child.start()
    message, count = told.get(timeout=120)
    child.join()
    assert "chooses the best rows of this buffer" in message
    assert count == 4


@pytest.mark.parametrize(
    ("by", "parts", "message"),
    [
        ("row", {"storage": LazyTensorStorage(3, lossless=True)}, "continue no other row"),
        ("row", {"storage": LazyMemmapStorage(3)}, "replaced out of order"),
        ("trajectory", {"storage": LazyTensorStorage(4, ndim=2)}, "fill no columns"),
        ("row", {"sampler": ConsumingSampler()}, "draw them again"),
        ("trajectory", {"consume_after_n_samples": 2}, "draw them again"),
        ("trajectory", {"storage": LazyTensorStorage(8), "shared": True}, "give it lanes=1"),
        (
            "trajectory",
            {"storage": LazyMemmapStorage(3), "sampler": PrioritizedSampler(3, 0.5, 0.5)},
            "private_priorities=True",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(by, parts, message):
    parts = {"storage": LazyTensorStorage(3), **parts}
    with pytest.raises(ValueError, match=message):
        TensorDictReplayBuffer(writer=TensorDictMaxValueWriter("rank", by=by), **parts)


def test_priorities_of_this_process_go_with_a_file():
    sampler = PrioritizedSampler(12, 1.0, 1.0, private_priorities=True)
    made = of_trajectories(LazyMemmapStorage(12), sampler)
    index = made.extend(torch.cat([episode(1, 6, 5), episode(2, 6, 1)]))
    made.update_priority(index, torch.arange(12.0))
    made.extend(episode(3, 4, 3))
    made.sample(4)
    assert sampler.state_dict()["priorities"].tolist() == [0, 1, 2, 3, 4, 5, *[11] * 4]
