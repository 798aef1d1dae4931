"""Rows of several lanes, loaded into other lanes and sizes, against lists of rows."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)

ENDS = 5  # steps of every other trajectory; the rest go on


def steps(traj, first, count, *, observed=True):
    """Steps `[count]` of a trajectory; its observations say whose they are, and are never equal."""
    step = torch.arange(first, first + count)
    ended = (step % ENDS == ENDS - 1) & (traj % 2 == 0)

    def observation(at):
        return torch.stack([at * 1.0, torch.full_like(at, traj) * 1.0, at.float().sin()], -1)

    following = {"observation": observation(step + 1)} if observed else {}
    done = {"terminated": ended, "truncated": torch.zeros_like(ended), "done": ended}
    return TensorDict(
        {
            "observation": observation(step),
            "is_init": (step == 0).unsqueeze(-1),
            "collector": {"traj_ids": torch.full_like(step, traj), "traj_step": step},
            "next": following | {key: flag.unsqueeze(-1) for key, flag in done.items()},
        },
        [count],
    )


def made(capacity, lanes, kind, *, mapped=False):
    storage = LazyMemmapStorage if mapped else LazyTensorStorage
    lossless = {"plain": False, "lossless": True, "waiting": ["observation"]}[kind]
    options = {} if lanes is None else {"lanes": lanes}
    return TensorDictReplayBuffer(
        storage=storage(capacity, lossless=lossless, **options),
        sampler=SamplerWithoutReplacement(),
        shared=lanes is not None,
        batch_size=3,
    )


def lists(buffer, order=None):
    """The rows of each lane with their next observations, the oldest first."""
    storage = buffer.storage
    window, found = storage.ring.window(), []
    for lane in range(len(window.first)) if order is None else order:
        numbers = torch.arange(window.counts[lane]) + window.first[lane]
        rows = storage.read(storage.ring.positions(numbers)) if len(numbers) else ()
        back = storage.back[storage.ring.positions(numbers).numpy()] if len(numbers) else ()
        found.append([(row, int(distance)) for row, distance in zip(rows, back, strict=True)])
    return found


def name(row):
    return int(row["collector", "traj_ids"]), int(row["collector", "traj_step"])


def require_linked(lane):
    """Each row continues the one of its trajectory a step before, unless that one ended."""
    places = {}
    for place, (row, distance) in enumerate(lane):
        traj, step = name(row)
        before = places.get((traj, step - 1))
        if before is None or lane[before][0]["next", "done"]:
            assert distance == 0 or distance > place  # to a row that is overwritten
        else:
            assert distance == place - before, (traj, step)
        places[traj, step] = place


def require_same(was, now, lane):
    """A row as it was; one that waited may have got the observation of the row after it."""
    was, now = was.clone(), now.clone()
    missing = ("collector", "next_missing")
    if missing in was.keys(True) and was[missing] and not now[missing]:
        following = {name(row): row["observation"] for row, _ in lane}
        traj, step = name(now)
        assert torch.equal(now["next", "observation"], following[traj, step + 1])
        was["next", "observation"], was[missing] = now["next", "observation"], now[missing]
    for key in was.keys(True, True):
        assert was[key].numpy().tobytes() == now[key].numpy().tobytes(), key


writes = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=14
)
lanes = st.sampled_from([None, 1, 2, 3, 5])


def filled(data, room, kind):
    """A buffer whose lanes threads wrote by turns, each its own trajectories."""
    capacity, of = room
    buffer, next_step = made(capacity, of, kind), {}
    limit = buffer.storage.capacity_for(torch.Size()) // (of or 1)
    with ExitStack() as stack:
        count = min(of or 1, 3)
        threads = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(count)]
        for writer, traj, length in data:
            writer, length = writer % count, min(length, limit)
            traj += 10 * writer
            first = next_step.get(traj, 0)
            next_step[traj] = first + length
            rows = steps(traj, first, length, observed=kind != "waiting")
            threads[writer].submit(buffer.extend, rows).result()
        for thread in threads:
            if of is not None:
                thread.submit(buffer.storage.ring.release_lane).result()
    return buffer, next_step


@pytest.mark.parametrize("how", ["dump", "state"])
@pytest.mark.parametrize("kind", ["plain", "lossless", "waiting"])
@settings(deadline=None, max_examples=25)
@given(
    writes,
    st.tuples(st.integers(6, 24), lanes),
    st.tuples(st.integers(10, 40), lanes),
    st.booleans(),
)
def test_rows_of_any_lanes_are_loaded_into_any_others(kind, how, data, room, other, mapped):
    buffer, next_step = filled(data, room, kind)
    storage = buffer.storage
    was = lists(buffer, storage.session.lane_order())
    target = made(*other, kind, mapped=mapped and other[1] in (None, 1))
    former, here = room[1] or 1, other[1] or 1
    room_here = target.storage.capacity_for(torch.Size())
    keeps_lanes = former == here and room_here >= storage.capacity_for(torch.Size())
    fits = room_here >= len(buffer)
    with tempfile.TemporaryDirectory() as folder:
        if how == "dump":
            buffer.dumps(folder)
        load = (
            (lambda: target.loads(folder))
            if how == "dump"
            else (lambda: target.load_state_dict(buffer.state_dict()))
        )
        if not fits:
            with pytest.raises(ValueError, match="make"):
                load()
            assert len(target) == 0
            return
        load()
    order = target.storage.session.lane_order() if keeps_lanes else range(here)
    now = lists(target, order)
    expected, found = ([row for lane in part for row, _ in lane] for part in (was, now))
    assert [name(row) for row in found] == [name(row) for row in expected]
    where = [lane for lane in now for _ in lane]
    for one, two, lane in zip(expected, found, where, strict=True):
        require_same(one, two, lane)
    if keeps_lanes:
        assert [len(lane) for lane in now] == [len(lane) for lane in was]
    for lane in now:
        require_linked(lane)
    target.storage.trajectories().check(target.storage.back)
    goes_on(target, next_step, kind)


def goes_on(target, next_step, kind):
    """Rows that are written next can be read, and older rows keep their values."""
    for traj, first in list(next_step.items())[:3]:
        before = {name(row): row for lane in lists(target) for row, _ in lane}
        target.extend(steps(traj, first, 2, observed=kind != "waiting"))
        after = lists(target)
        assert (traj, first + 1) in {name(row) for lane in after for row, _ in lane}
        for lane in after:
            for row, _ in lane:
                if name(row) in before:
                    require_same(before[name(row)], row, lane)
        target.storage.trajectories().check(target.storage.back)
    if len(target) >= 3:
        assert len(target.sample()) == 3


def test_rows_before_a_cut_keep_their_next_observations(tmp_path):
    """One trajectory over three lanes: each lane's last row owns a slot."""
    one, two = made(20, None, "lossless"), made(21, 3, "lossless")
    one.extend(steps(1, 0, 20))
    one.dumps(tmp_path)
    two.loads(tmp_path)
    assert torch.equal(two[:]["next", "observation"], one[:]["next", "observation"])
    assert (one.storage.store.side.in_use(), two.storage.store.side.in_use()) == (1, 3)
    assert sorted(two.storage.trajectories().lengths().tolist()) == [6, 7, 7]


def test_trajectory_over_several_lanes_is_joined_in_one_lane(tmp_path):
    one, two = made(21, 3, "lossless"), made(21, None, "lossless")
    for first in range(0, 20, 7):
        one.extend(steps(1, first, min(7, 20 - first)))
    one.storage.ring.release_lane()
    assert len(one.storage.trajectories().lengths()) == 3
    one.dumps(tmp_path)
    two.loads(tmp_path)
    assert two.storage.trajectories().lengths().tolist() == [20]
    assert two.storage.store.side.in_use() == 1
