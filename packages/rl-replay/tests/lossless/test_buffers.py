"""A lossless buffer alongside a plain one that is given the same."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_layout.testing import EndKind, trajectories
from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    RandomSampler,
    SliceSampler,
    TensorDictReplayBuffer,
)
from rl_replay.lossless.overflow import OverflowTable
from rl_replay.lossless.rows import LosslessRows
from rl_replay.storages.private_session import PrivateSession
from rl_slabs import Rows


def batch(lengths, first_id=0):
    rows = trajectories(lengths, first_id=first_id)
    count, pieces = len(rows), []
    frames = []
    for length in lengths:
        seen = torch.randint(2, (length + 1, 3)).float()
        frame = torch.randint(2, (length + 1, 5, 67), dtype=torch.uint8)
        pieces.append((seen[:-1], seen[1:]))
        frames.append((frame[:-1], frame[1:]))
    rows["observation"], rows["next", "observation"] = map(torch.cat, zip(*pieces, strict=True))
    rows["frame"], rows["next", "frame"] = map(torch.cat, zip(*frames, strict=True))
    assert len(rows) == count
    return rows


def pair(capacity, sampler=RandomSampler, kind=LazyTensorStorage, **options):
    return tuple(
        TensorDictReplayBuffer(
            storage=kind(capacity, lossless=lossless, **options),
            sampler=sampler(),
            batch_size=8,
            generator=torch.Generator().manual_seed(3),
        )
        for lossless in (False, True)
    )


def assert_same(one, two):
    keys = set(one.keys(True, True))
    assert set(two.keys(True, True)) == keys
    for key in keys:
        left, right = one[key].contiguous(), two[key].contiguous()
        assert left.numpy().tobytes() == right.numpy().tobytes(), key


def assert_alike(plain, lossless):
    assert_same(plain[:], lossless[:])
    for _ in range(3):
        assert_same(plain.sample(), lossless.sample())


SLICES = {"random": RandomSampler, "slices": lambda: SliceSampler(num_slices=2)}


@pytest.mark.parametrize("sampler", SLICES, ids=str)
@pytest.mark.parametrize("kind", [LazyTensorStorage, LazyMemmapStorage])
@settings(max_examples=8)
@given(data=st.data())
def test_samples_of_both_are_the_same(kind, sampler, data):
    plain, lossless = pair(data.draw(st.integers(12, 30)), SLICES[sampler], kind)
    for turn in range(data.draw(st.integers(1, 7))):
        lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=2))
        rows = batch(lengths, first_id=10 * turn)
        cut = data.draw(st.integers(0, len(rows)))
        for piece in (rows[:cut], rows[cut:]):
            if len(piece):
                assert torch.equal(plain.extend(piece), lossless.extend(piece))
        if data.draw(st.booleans()):
            numbers = plain.sample()["collector", "row"].unique()
            new = TensorDict({"observation": torch.randn(len(numbers), 3)}, [len(numbers)])
            assert plain.update_rows(numbers, new).all()
            assert lossless.update_rows(numbers, new).all()
            lossless.sample()
        if data.draw(st.booleans()):
            new = batch([1], first_id=999)
            plain[2 % len(plain)], lossless[2 % len(plain)] = new[0], new[0]
        assert_alike(plain, lossless)


@pytest.mark.parametrize("environments", [2, 4])
def test_columns_of_both_are_the_same(environments):
    plain, lossless = pair(6 * environments, ndim=2)
    for turn in range(5):
        rows = torch.stack([batch([3], first_id=100 * e + turn) for e in range(environments)])
        plain.extend(rows)
        lossless.extend(rows)
        assert_alike(plain, lossless)
    store = lossless.storage.store
    assert store.explain(len(lossless))["side_slots"] == 2 * environments


def test_rows_added_one_at_a_time_are_linked():
    plain, lossless = pair(20)
    for row in batch([12, 5]):
        plain.add(row)
        lossless.add(row)
    assert_alike(plain, lossless)
    assert lossless.storage.store.side.in_use() == 2


def test_an_emptied_buffer_starts_anew():
    plain, lossless = pair(20)
    for buffer in (plain, lossless):
        torch.manual_seed(0)
        buffer.extend(batch([9]))
        buffer.empty()
        buffer.extend(batch([4, 3]))
    assert_alike(plain, lossless)
    assert lossless.storage.store.side.in_use() == 2


def test_a_compact_batch_is_taken_and_its_missing_rows_are_marked():
    storage = LazyTensorStorage(20, lossless=["observation", "frame"])
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=4)
    rows = batch([4, 3])
    buffer.extend(rows.exclude(("next", "observation"), ("next", "frame")))
    found = buffer[:]
    missing = found["collector", "next_missing"]
    assert missing.tolist() == [False] * 3 + [True] + [False] * 2 + [True]
    for key in ("observation", "frame"):
        assert (found["next", key][~missing] == rows["next", key][~missing]).all()
    assert found["next", "observation"][missing].isnan().all()
    assert not found["next", "frame"][missing].any()


def test_a_sample_of_a_compact_buffer_can_be_stored_again():
    one, two = (
        TensorDictReplayBuffer(
            storage=LazyTensorStorage(20, lossless=["observation"]), batch_size=7
        )
        for _ in range(2)
    )
    one.extend(batch([4, 3]).exclude(("next", "observation"), "frame", ("next", "frame")))
    sample = one[:]
    two.extend(sample)
    assert torch.equal(two[:]["collector", "next_missing"], sample["collector", "next_missing"])


def test_a_dump_of_missing_rows_comes_back(tmp_path):
    one, two = (
        TensorDictReplayBuffer(
            storage=LazyTensorStorage(20, lossless=["observation"]), batch_size=7
        )
        for _ in range(2)
    )
    rows = batch([6]).exclude(("next", "observation"), "frame", ("next", "frame"))
    one.extend(rows[:4])
    one.dumps(tmp_path)
    two.loads(tmp_path)
    assert two[:]["collector", "next_missing"].tolist() == [False] * 3 + [True]
    two.extend(rows[4:])
    assert two[:]["collector", "next_missing"].tolist() == [False] * 5 + [True]
    assert two.storage.store.side.in_use() == 0


def test_a_warning_says_once_that_lossless_storage_saves_little() -> None:
    rows = trajectories([1] * 300)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4000, lossless=True))
    for _ in range(7):
        buffer.extend(rows)
    with pytest.warns(UserWarning, match="only 0% of 2400 rows name the row that holds"):
        buffer.extend(rows)
    buffer.extend(rows)
    # many environments, one step at a time: the newest rows wait, and that is no reason
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(40_000, lossless=True))
    steps = trajectories([12] * 1500, EndKind.CUT)
    for step in range(12):
        buffer.extend(steps[steps["collector", "traj_step"] == step])
    assert buffer.storage.store.explain(len(buffer))["linked_share"] > 0.9


@pytest.mark.parametrize("kind", [LazyTensorStorage, LazyMemmapStorage])
def test_single_rows_are_the_same_however_they_come(kind):
    lossless, plain = (
        TensorDictReplayBuffer(storage=kind(20, lossless=once)) for once in (True, False)
    )
    rows = batch([6, 1, 7, 5])
    for row in rows:
        for buffer in (lossless, plain):
            buffer.add(row)
    odd = batch([3], first_id=70)
    odd["observation"].requires_grad_()  # which has to be taken apart the long way
    for buffer in (lossless, plain):
        buffer.add(odd[0])
        buffer.extend(odd[1:])
    assert (lossless[:] == plain[:]).all()
    back = [buffer.storage.back.tolist() for buffer in (lossless, plain)]
    assert back[0] == back[1]
    assert lossless.storage.store.side.in_use() == 5  # the last steps of as many trajectories
    with pytest.raises(KeyError, match="missing"):
        lossless.add(rows[0].exclude("action"))
    with pytest.raises(TypeError, match="Cast it"):
        lossless.extend(rows[:2].update({"action": torch.zeros(2, 1)}))
    assert (lossless[:] == plain[:]).all()


def allocate_apart(layout, capacity, back, device):
    """Rows and slots in two memories, as on a device."""
    once = layout.lossless
    side = OverflowTable(once.side, capacity)
    return LosslessRows(once, Rows.zeros(once.stored, capacity), side, back=back)


def apart(size, **options):
    storage = LazyTensorStorage(size, **options)
    storage.session = PrivateSession(size, allocate_apart)
    return storage


PLACES = {"memory": LazyTensorStorage, "file": LazyMemmapStorage, "apart": apart}


@pytest.mark.parametrize(
    ("writes", "loads"),
    [("memory", "file"), ("file", "memory"), ("apart", "memory"), ("file", "apart")],
)
def test_rows_apart_from_their_slots_load_what_rows_in_one_memory_with_them_wrote(
    tmp_path, writes, loads
):
    one, two = (
        TensorDictReplayBuffer(storage=PLACES[kind](20, lossless=True)) for kind in (writes, loads)
    )
    for first in range(5):  # round the end of the ring
        one.extend(trajectories([4, 3], first_id=first * 10))
    one.dumps(tmp_path / "dump")
    two.loads(tmp_path / "dump")
    joined = [found.storage.store.joined for found in (one, two)]
    assert joined == [writes != "apart", loads != "apart"]
    assert (one[:] == two[:]).all()
    for found in (one, two):
        found.extend(trajectories([5], first_id=70))
    assert (one[:] == two[:]).all()
    assert one.storage.store.side.in_use() == two.storage.store.side.in_use()


def test_a_first_write_that_is_interrupted_leaves_no_slot_in_use(monkeypatch):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(50, lossless=True))
    buffer.extend(trajectories([5]))
    put = Rows.put

    def interrupted(*args):
        put(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(Rows, "put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        buffer.extend(trajectories([1, 1, 1, 1, 1], first_id=10))
    monkeypatch.undo()
    buffer.extend(trajectories([5], first_id=20))  # to the same positions, with one slot
    side = buffer.storage.store.side
    assert (side.in_use(), len(buffer)) == (2, 10)


@pytest.mark.parametrize("lossless", ["observation", 1, None])
def test_observations_are_named_in_a_list(lossless):
    with pytest.raises(TypeError, match=f"a list of keys, got {lossless!r}"):
        LazyTensorStorage(5, lossless=lossless)
