"""Buffers in actors: attached to on their machine, sent to and asked from another one."""

import functools
import sys
import threading

import pytest
import torch
from tensordict import TensorDict

from rl_layout import Segments, check_layout
from rl_layout.synthetic import trajectories
from rl_replay import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RayReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
)

FAR = {"num_cpus": 0, "resources": {"far": 0.1}}
ROOM = functools.partial(LazyTensorStorage, 800)
LOSSLESS = functools.partial(LazyTensorStorage, 800, lossless=True)
KINDS = {
    "slices": {"storage": LOSSLESS, "sampler": SliceSampler(slice_len=4), "batch_size": 32},
    "priorities": {
        "storage": ROOM,
        "sampler": PrioritizedSampler(800, alpha=1.0, beta=1.0),
        "batch_size": 64,
    },
    "epochs": {
        "storage": ROOM,
        "sampler": SamplerWithoutReplacement,
        "batch_size": 4,
        "prefetch": 2,
    },
}


@pytest.fixture(scope="module")
def made(cluster):
    """Buffers by what they draw and where they are: an actor takes seconds to start."""
    found = {}
    yield found
    for buffer in found.values():
        buffer.close()


@pytest.fixture(params=["attached", "remote"])
def buffer_of(request, made):
    """An empty buffer that draws in a way, on this machine and on another one."""

    def make(kind):
        place = FAR if request.param == "remote" else None
        if (key := (kind, request.param)) not in made:
            made[key] = RayReplayBuffer(**KINDS[kind], remote_config=place)
        buffer = made[key]
        assert buffer.is_attached is (place is None)
        buffer.empty()
        return buffer

    return make


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'rl-replay\[ray\]'"):
        RayReplayBuffer(storage=ROOM)


def test_a_storage_that_is_there_already_is_refused():
    with pytest.raises(TypeError, match=r"must be a function.* got LazyTensorStorage"):
        RayReplayBuffer(storage=LazyTensorStorage(9))


@pytest.mark.ray
def test_rows_are_those_of_a_buffer_in_this_process(buffer_of):
    buffer, plain = buffer_of("slices"), TensorDictReplayBuffer(storage=LOSSLESS())
    before = buffer.write_count
    given = trajectories([20, 7, 5, 30, 1])
    for rows in (slice(0, 24), slice(24, 63)):
        index = buffer.extend(given[rows])
        assert torch.equal(index - index[0], plain.extend(given[rows]) - rows.start)
    assert len(buffer) == buffer.write_count - before == len(plain) == 63
    assert buffer.storage.max_size == 800
    stored, expected = buffer[:].exclude("index"), plain[:].exclude("index")
    assert set(stored.keys(True, True)) == set(expected.keys(True, True))
    assert (stored == expected).all()
    rows, part = buffer.sample()["collector", "row"][:4], given["action"][:4] + 7
    assert buffer.update_rows(rows, TensorDict({"action": part}, [4])).all()
    assert buffer.stats()["size"] == 63
    assert f"node {buffer.node[:8]}" in buffer.explain()
    buffer.add(given[0])
    assert len(buffer) == 64


@pytest.mark.ray
def test_slices_end_where_trajectories_do(buffer_of):
    buffer = buffer_of("slices")
    given = trajectories([20, 9, 30])
    buffer.extend(given)
    batch, info = buffer.sample(return_info=True)
    assert torch.equal(info["row"], batch["collector", "row"])
    assert Segments.of(batch).lengths.tolist() == [4] * 8
    assert not check_layout(batch).findings
    first = {7: 0, 8: 20, 9: 29}  # rows by id
    ids, steps = batch["collector", "traj_ids"].tolist(), batch["collector", "traj_step"].tolist()
    rows = [first[number] + step for number, step in zip(ids, steps, strict=True)]
    for key in ("observation", ("next", "observation"), "action"):
        assert torch.equal(batch[key], given[rows][key])
    assert buffer.sample(8).shape == (8,)


@pytest.mark.ray
def test_priorities_decide_what_is_drawn(buffer_of):
    buffer = buffer_of("priorities")
    index = buffer.extend(trajectories([40]))
    buffer.update_priority(index, torch.zeros(40))
    few = index[[3, 17]]
    buffer.update_priority(few, torch.tensor([1.0, 3.0]))
    sample = buffer.sample()
    assert set(sample["index"].tolist()) == set(few.tolist())
    sample["td_error"] = torch.where(sample["index"] == few[0], 9.0, 1.0)
    buffer.update_tensordict_priority(sample)
    drawn = torch.cat([buffer.sample()["index"] for _ in range(10)])
    assert set(drawn.tolist()) == set(few.tolist())
    assert 0.8 < (drawn == few[0]).float().mean() < 0.97  # 0.9 by the priorities
    with pytest.raises(KeyError, match="td_error"):
        buffer.update_tensordict_priority(sample.exclude("td_error"))


@pytest.mark.ray
def test_an_epoch_ends_where_all_rows_were_drawn(buffer_of):
    buffer = buffer_of("epochs")
    index = buffer.extend(trajectories([12]))
    drawn = torch.cat([batch["index"] for batch in buffer])
    assert sorted(drawn.tolist()) == sorted(index.tolist())


@pytest.mark.ray
def test_batches_ahead_of_time_are_never_older_than_a_write_of_the_same_client(buffer_of):
    buffer, rows = buffer_of("epochs"), trajectories([4])
    for number in range(5):
        buffer.empty()
        buffer.extend(rows.set("action", torch.full_like(rows["action"], number)))
        for _ in range(4):
            assert (buffer.sample()["action"] == number).all()
    assert buffer.sample(3).shape == (3,)


@pytest.mark.ray
def test_clients_on_both_machines_write_and_see_what_others_wrote(buffer_of):
    import ray

    @ray.remote(num_cpus=0)
    def write(buffer, lengths):
        rows = trajectories(lengths)
        rows["collector", "traj_ids"] += 1000 * lengths[0]
        buffer.extend(rows)
        return buffer.is_attached, rows

    buffer = buffer_of("slices")
    here = write.options(resources={"here": 0.1}).remote(buffer, [11, 6])
    far = write.options(resources={"far": 0.1}).remote(buffer, [9, 30])
    for reference, is_here in ((here, True), (far, False)):
        was_attached, rows = ray.get(reference)
        assert was_attached is (is_here is buffer.is_attached)
        stored = buffer[:].exclude("index")
        mine = stored[torch.isin(stored["collector", "traj_ids"], rows["collector", "traj_ids"])]
        numbers = mine["collector", "traj_ids"] * 100 + mine["collector", "traj_step"]
        assert (mine[numbers.argsort()] == rows).all()  # a lane may begin again in between
    assert len(buffer) == 56
    assert not check_layout(stored).findings


@pytest.mark.ray
def test_errors_are_those_of_a_buffer_here(buffer_of):
    buffer = buffer_of("slices")
    with pytest.raises(ValueError, match="there is no trajectory yet"):
        buffer.sample(4)
    with pytest.raises(TimeoutError, match=r"waited 0\.05 s"):
        buffer.wait_until(3, timeout=0.05)
    with pytest.raises(ValueError, match="never holds 801 rows"):
        buffer.wait_until(801)
    with pytest.raises(TimeoutError):
        buffer.sample(4, timeout=0.05)
    buffer.extend(trajectories([5]))
    with pytest.raises(KeyError, match="action"):
        buffer.extend(trajectories([5]).exclude("action"))
    with pytest.raises(ValueError, match="batch_size"):
        buffer.sample(0)
    assert len(buffer) == 5


@pytest.mark.ray
def test_a_buffer_is_dumped_and_restored(buffer_of, tmp_path):
    buffer = buffer_of("priorities")
    buffer.extend(trajectories([20, 7]))
    buffer.dumps(str(tmp_path))
    state, expected = buffer.state_dict(), buffer[:].exclude("index")
    for restore in (lambda: buffer.loads(str(tmp_path)), lambda: buffer.load_state_dict(state)):
        buffer.empty()
        restore()
        assert (buffer[:].exclude("index") == expected).all()


@pytest.mark.ray
def test_what_cannot_be_is_said_before_or_while_the_actor_starts(cluster):
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"transform of a RayReplayBuffer.*cannot be pickled"):
        RayReplayBuffer(storage=ROOM, transform=lambda batch: batch if lock.locked() else None)
    with pytest.raises(TypeError, match=r"a ListStorage .* cannot be shared"):
        RayReplayBuffer(storage=functools.partial(ListStorage, 10))
    with pytest.raises(ValueError, match="asks for 5 GPU"):
        RayReplayBuffer(storage=ROOM, remote_config={"num_gpus": 5})


@pytest.mark.ray
def test_who_is_attached_goes_on_without_the_actor_and_others_are_told(buffer_of, made):
    import ray

    buffer = buffer_of("epochs")
    buffer.extend(trajectories([20]))
    buffer.close()
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(buffer._handle.counts.remote())  # private: whether it is gone
    if buffer.is_attached:
        assert buffer.extend(trajectories([10])).shape == (10,)
        assert (len(buffer), buffer.sample().shape) == (30, (4,))
    else:
        with pytest.raises(ConnectionError, match=f"actor on node {buffer.node[:8]} is gone"):
            buffer.sample(2)
    del made["epochs", "attached" if buffer.is_attached else "remote"]
