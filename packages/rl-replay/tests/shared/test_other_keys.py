"""A buffer that others have, emptied and then given rows with other keys."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rl_layout.testing import trajectories
from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
)
from rl_replay.checkpoint.contents import Contents
from rl_replay.shared.files import LEFT, UPDATING

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forked alongside threads

HAND_OVER = "hand the buffer over again"
KINDS = {
    "memory, two lanes": lambda **options: LazyTensorStorage(24, lanes=2, **options),
    "file, two lanes": lambda **options: LazyMemmapStorage(24, lanes=2, **options),
    "file, one lane": lambda **options: LazyMemmapStorage(24, **options),
}


def rows(key: str, count: int) -> TensorDict:
    return TensorDict({key: torch.arange(count) + 1.0}, [count])


def shared(storage: Any, **options: Any) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=storage, shared=storage.lanes is not None, **options)


def both(kind: str, count: int, **options: Any) -> tuple[TensorDictReplayBuffer, ...]:
    """Two handles of a buffer that holds some rows, which both have seen."""
    buffer = shared(KINDS[kind](**options))
    buffer.extend(rows("a", count))
    other = handed(buffer)
    assert len(other) == count
    return buffer, other


def handed(buffer: TensorDictReplayBuffer) -> TensorDictReplayBuffer:
    return pickle.loads(pickle.dumps(buffer))


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_rows_may_have_other_keys(kind: str) -> None:
    buffer = shared(KINDS[kind]())
    other = handed(buffer)
    buffer.extend(rows("a", 10))
    numbers = set(buffer.sample(50)["collector", "row"].tolist())
    assert len(other) == 10
    buffer.empty()
    assert len(other) == 0
    buffer.extend(rows("b", 4))
    assert not set(buffer.sample(50)["collector", "row"].tolist()) & numbers
    for use in (len, lambda it: it.sample(2), lambda it: it.extend(rows("a", 2)), lambda it: it[0]):
        with pytest.raises(RuntimeError, match=HAND_OVER):
            use(other)
    new = handed(buffer)
    new.extend(rows("b", 3))
    assert sorted(buffer[:]["b"].tolist()) == [1, 1, 2, 2, 3, 3, 4]
    assert new.write_count == buffer.write_count == 17


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_is_given_it_empty_may_bring_them_as_well(kind: str) -> None:
    buffer = shared(KINDS[kind]())
    buffer.extend(rows("a", 10))
    buffer.empty()
    assert len(buffer) == 0
    other = handed(buffer)
    other.extend(rows("b", 5))
    assert sorted(other[:]["b"].tolist()) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_did_not_empty_it_may_bring_them_as_well(kind: str) -> None:
    buffer, other = both(kind, 10)
    buffer.empty()
    epoch = other.storage.epoch
    other.extend(rows("b", 5))
    assert other.storage.epoch > epoch
    assert sorted(other[:]["b"].tolist()) == [1, 2, 3, 4, 5]
    with pytest.raises(RuntimeError, match=HAND_OVER):
        len(buffer)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_others_wrote_since_stay(kind: str) -> None:
    buffer, other = both(kind, 10)
    buffer.empty()
    other.extend(rows("a", 3))
    assert buffer.storage.state_dict()["rows"]["a"].tolist() == [1, 2, 3]
    with pytest.raises((ValueError, KeyError), match=r"'a'|\('a',\)"):
        buffer.extend(rows("b", 4))
    buffer.extend(rows("a", 2))
    assert sorted(buffer[:]["a"].tolist()) == sorted(other[:]["a"].tolist()) == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_handles_that_were_handed_over_before_the_first_row_hear_it_too(kind: str) -> None:
    buffer = shared(KINDS[kind]())
    other = handed(buffer)
    buffer.extend(rows("a", 10))
    buffer.empty()
    buffer.extend(rows("b", 4))
    with pytest.raises(RuntimeError, match=HAND_OVER):
        other.extend(rows("a", 2))


@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_in_the_middle_of_a_span_is_told_and_delays_nobody(kind: str) -> None:
    buffer, other = both(kind, 4)
    other.extend(rows("a", 12))
    buffer.empty()
    ring = _begun(other)
    numbers = ring.reserve(2).numbers
    buffer.extend(rows("b", 5))
    with pytest.raises(RuntimeError, match=HAND_OVER):
        ring.publish(2)
    assert buffer[:]["b"].tolist() == [1, 2, 3, 4, 5]
    handed(buffer).extend(rows("b", 7))
    assert not set(buffer.sample(200)["collector", "row"].tolist()) & set(numbers)


@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_that_looked_before_is_refused_when_it_reserves(kind: str) -> None:
    buffer, other = both(kind, 4)
    other.extend(rows("a", 2))
    buffer.empty()
    ring = _begun(other)
    before = ring.states()
    buffer.extend(rows("b", 5))
    with pytest.raises(RuntimeError, match=HAND_OVER):
        ring.reserve(2)
    assert [state.lost for state in ring.states()] == [state.lost for state in before]


def _begun(buffer: TensorDictReplayBuffer) -> Any:
    """The ring of a buffer that has looked where it writes, and has a lane."""
    buffer.storage.sync()
    buffer.storage.session.begin(2)
    return buffer.storage.ring


@pytest.mark.parametrize("kind", KINDS)
def test_rows_published_while_it_is_left_are_kept(kind: str) -> None:
    buffer, other = both(kind, 4)
    buffer.empty()
    meanwhile(buffer, lambda: other.extend(rows("a", 3)))  # after the first look
    with pytest.raises(ValueError, match=r"3 rows with the leaves \['a'\] .* \['b'\] instead"):
        buffer.extend(rows("b", 5))
    assert not buffer.storage.session.memory.board[[LEFT, UPDATING]].any()
    other.extend(rows("a", 1))
    assert sorted(buffer[:]["a"].tolist()) == [1, 1, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_other_columns_and_other_structures_are_other_rows(kind: str) -> None:
    changes = [
        (2, torch.arange(12.0).reshape(2, 6), torch.arange(12.0).reshape(4, 3)),
        (1, torch.arange(4.0), {"a": torch.arange(4.0)}),
        (1, {"a": torch.arange(4.0)}, TensorDict({"a": torch.arange(4.0)}, [4])),
    ]
    for ndim, first, then in changes:
        storage = KINDS[kind](ndim=ndim)
        buffer = ReplayBuffer(storage=storage, shared=storage.lanes is not None)
        buffer.extend(first)
        other = handed(buffer)
        assert len(other) == len(buffer)
        buffer.empty()
        buffer.extend(then)
        with pytest.raises(RuntimeError, match=HAND_OVER):
            other[:]
        again = handed(buffer)[:]
        assert type(again) is type(then)
        if ndim == 2:
            assert again.equal(then)


@pytest.mark.parametrize("kind", KINDS)
def test_only_one_leaves_it(kind: str) -> None:
    buffer, other = both(kind, 4)
    buffer.empty()
    meanwhile(buffer, lambda: other.extend(rows("c", 3)))
    with pytest.raises(RuntimeError, match=HAND_OVER):
        buffer.extend(rows("b", 5))
    assert other[:]["c"].tolist() == [1, 2, 3]


def meanwhile(buffer: TensorDictReplayBuffer, act: Any) -> None:
    """Let something happen once, when the storage makes other files."""
    source = buffer.storage.session.source
    make = source.files

    def files(lanes: int, mark: str) -> Any:
        del source.files
        act()
        return make(lanes, mark)

    source.files = files


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_loaded_while_it_is_left_are_not_lost_silently(kind: str) -> None:
    buffer = shared(KINDS[kind]())
    buffer.extend(rows("a", 4))
    other = handed(buffer)
    state, schema = buffer.storage.state_dict(), buffer.storage.store.schema
    buffer.empty()
    assert len(other) == 0

    def fill(*_: Any) -> None:
        other.extend(rows("b", 3))

    with pytest.raises(RuntimeError, match=HAND_OVER):
        buffer.storage.stand(Contents.of_state(state, schema), fill)
    assert other[:]["b"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_who_made_the_first_rows_says_what_they_are(kind: str) -> None:
    buffer = shared(KINDS[kind]())
    other = handed(buffer)
    buffer.storage._make(rows("a", 3), None)  # and has written none yet
    with pytest.raises(KeyError, match="a"):
        other.extend(rows("b", 3))
    buffer.extend(rows("a", 3))
    assert other[:]["a"].tolist() == [1, 2, 3]


def test_whoever_is_killed_while_it_leaves_leaves_nothing() -> None:
    buffer = shared(LazyTensorStorage(24, lanes=2))
    buffer.extend(rows("a", 4))
    buffer.empty()
    child = os.fork()
    if not child:
        torch.set_num_threads(1)
        with buffer.storage.session.memory.update_lock.left():
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    board = buffer.storage.session.memory.board
    assert board[[LEFT, UPDATING]].all()
    buffer.extend(rows("a", 2))
    assert not board[[LEFT, UPDATING]].any()
    buffer.empty()
    buffer.extend(rows("b", 2))
    assert buffer[:]["b"].tolist() == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lossless", [False, True])
def test_slices_of_what_is_stored_then_are_genuine(kind: str, lossless: bool) -> None:
    buffer = shared(KINDS[kind](lossless=lossless), sampler=SliceSampler(slice_len=2, num_slices=6))
    buffer.extend(trajectories([6, 5]))
    buffer.empty()
    more = trajectories([3, 4], first_id=9)
    more["more"] = torch.arange(7)
    buffer.extend(more)
    other = handed(buffer)
    other.extend(more[:3].set("more", torch.arange(7, 10)))
    for one in (buffer, other):
        sample = one.sample(12)
        first, second = sample["more"].reshape(6, 2).unbind(1)
        assert (second == first + 1).all()
        assert not set(first.tolist()) & {2, 6, 9}
        assert (sample["next", "observation"][::2] == sample["observation"][1::2]).all()
        one.storage.session.memory.index.check(one.storage.back)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_other_columns_are_loaded_as_they_were(kind: str, tmp_path: Path) -> None:
    rows_of = {2: torch.arange(12.0).reshape(2, 6), 4: torch.arange(12.0).reshape(4, 3)}
    buffers = {}
    for columns, data in rows_of.items():
        storage = KINDS[kind](ndim=2)
        buffers[columns] = ReplayBuffer(storage=storage, shared=storage.lanes is not None)
        buffers[columns].extend(data)
    buffers[4].dumps(tmp_path / "dump")
    buffers[2].storage.ring.release_lane()
    buffers[2].loads(tmp_path / "dump")
    assert buffers[2][:].equal(rows_of[4])
    assert handed(buffers[2])[:].equal(rows_of[4])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_with_other_keys_are_loaded_in_place_of_others(kind: str, tmp_path: Path) -> None:
    source = shared(KINDS[kind]())
    source.extend(rows("b", 5))
    source.dumps(tmp_path / "dump")
    buffer = shared(KINDS[kind]())
    buffer.extend(rows("a", 7))
    other = handed(buffer)
    assert len(other) == 7
    buffer.storage.ring.release_lane()
    buffer.loads(tmp_path / "dump")
    assert buffer[:]["b"].tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(RuntimeError, match=HAND_OVER):
        len(other)
    again = handed(buffer)
    again.extend(rows("b", 2))
    assert len(buffer) == 7


@pytest.mark.parametrize("kind", ["file, two lanes", "file, one lane"])
def test_the_files_of_who_leaves_first_keep_their_names(kind: str, tmp_path: Path) -> None:
    buffer, other = both(kind, 4, scratch_dir=tmp_path)
    buffer.empty()
    meanwhile(buffer, lambda: other.extend(rows("c", 3)))
    with pytest.raises(RuntimeError, match=HAND_OVER):
        buffer.extend(rows("b", 5))
    assert sorted(os.listdir(tmp_path)) == ["rows.slab", "tables.slab"]
    # private: only the open file tells which one of two with that name it is
    made = os.fstat(other.storage.session.memory.files.rows.fileno())
    assert os.stat(tmp_path / "rows.slab").st_ino == made.st_ino


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_keys_in_another_order_are_the_same_rows(kind: str) -> None:
    storage = KINDS[kind]()
    buffer = ReplayBuffer(storage=storage, shared=storage.lanes is not None)
    buffer.extend({"a": torch.zeros(3), "b": torch.ones(3)})
    other = handed(buffer)
    assert len(other) == 3
    buffer.empty()
    buffer.extend({"b": torch.ones(2), "a": torch.zeros(2)})
    assert other[:]["b"].tolist() == [1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_the_column_that_cuts_them_are_emptied_like_others(kind: str) -> None:
    sampler = SliceSampler(slice_len=2, num_slices=1, traj_key="episode")
    buffer = shared(KINDS[kind](), sampler=sampler)
    cut = rows("a", 2).set("episode", torch.zeros(2, dtype=torch.int64))
    buffer.extend(cut)
    buffer.empty()
    buffer.extend(rows("a", 3))
    with pytest.raises(KeyError, match="episode"):
        buffer.sample(2)
    buffer.empty()
    assert len(buffer) == 0
    buffer.extend(cut)
    assert len(buffer.sample(2)) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_count_of_writes_does_not_stand_still_silently(kind: str) -> None:
    buffer = shared(KINDS[kind]())
    buffer.extend(rows("a", 3))
    other = handed(buffer)
    assert other.write_count == 3
    buffer.empty()
    buffer.extend(rows("b", 3))
    with pytest.raises(RuntimeError, match=HAND_OVER):
        assert other.write_count
