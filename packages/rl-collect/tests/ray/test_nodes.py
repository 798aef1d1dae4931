"""Workers on another machine, played by a second raylet on this one."""

import functools
import time

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collect import RayCollector
from rl_envs.testing import CountingEnv, EpisodeStepEnv
from rl_layout import Segments, check_layout
from rl_replay import LazyTensorStorage, RayReplayBuffer, ReplayBuffer, SliceSampler

pytestmark = pytest.mark.ray
FAR = {"num_cpus": 1, "resources": {"far": 1}}
HERE = {"num_cpus": 1, "resources": {"here": 1}}
EPISODES = functools.partial(EpisodeStepEnv, [(7, "terminated"), (4, "truncated")])


@pytest.fixture(scope="module")
def cluster(ray_home):
    """Two nodes: this one, and one that shares no memory with it as far as Ray knows."""
    import ray
    from ray.cluster_utils import Cluster

    store = {"object_store_memory": 100 * 2**20}
    head = {"num_cpus": 2, "resources": {"here": 2}, "temp_dir": ray_home, **store}
    found = Cluster(initialize_head=True, head_node_args=head)
    found.far = [found.add_node(num_cpus=2, resources={"far": 2}, **store)]
    ray.init(address=found.address, include_dashboard=False, log_to_driver=False)
    yield found
    ray.shutdown()
    found.shutdown()


class Weighted(nn.Module):
    """Writes its weight where it can be seen."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, observation):
        return torch.tensor([True, False]), self.weight.clone()


def policy():
    return TensorDictModule(Weighted(), ["observation"], ["action", "weight"])


def test_batches_and_weights_travel_and_each_version_is_put_once(cluster, monkeypatch):
    import ray

    puts = []
    put = ray.put
    monkeypatch.setattr(ray, "put", lambda value: puts.append(value) or put(value))
    acting, places = policy(), [HERE, FAR, FAR]
    options = {"frames_per_batch": 15, "remote_configs": places, "sync": True}
    with RayCollector([EPISODES] * 3, acting, **options) as collector:
        assert collector.stats()["routes"] == ["socket", "blocks", "blocks"]
        batches = []
        for number in range(1, 6):
            batches.append(collector.next())
            with torch.no_grad():
                acting.module.weight.fill_(number)
            collector.update_policy_weights_()
            if number == 3:  # no worker has time for this version
                acting.module.weight.data.fill_(33)
                collector.update_policy_weights_()
        assert len(puts) == 5  # one for each version that acted; the last and the skipped one none
        state = collector.state_dict()
        expected = [collector.next() for _ in range(2)]
        collector.load_state_dict(state)
        for batch in expected:
            assert (collector.next() == batch).all()
    rows = torch.cat(batches, -1)
    assert rows.shape == (3, 25)
    versions = [batch["collector", "policy_version"].unique().tolist() for batch in batches]
    assert versions == [[0], [1], [2], [4], [5]]
    weights = [batch["weight"].unique().tolist() for batch in batches]
    assert weights == [[0], [1], [2], [33], [4]]
    assert not check_layout(rows).findings
    assert torch.equal(rows["observation"][..., 1], rows["collector", "traj_step"])
    assert torch.equal(rows["observation"][0], rows["observation"][2])


def test_a_buffer_in_the_memory_of_this_machine_is_not_for_workers_elsewhere(cluster):
    buffer = ReplayBuffer(storage=LazyTensorStorage(100, lanes=2), shared=True)
    options = {"frames_per_batch": 4, "replay_buffer": buffer}
    with pytest.raises(ValueError, match=r"its replay_buffer is in the memory.*RayReplayBuffer"):
        RayCollector([CountingEnv] * 2, remote_configs=[HERE, FAR], **options)
    with RayCollector([CountingEnv] * 2, remote_configs=HERE, **options) as collector:
        collector.next()
    assert len(buffer) >= 2


@pytest.mark.parametrize("whole", [None, 1])
def test_workers_of_all_machines_write_to_a_buffer_in_an_actor(cluster, whole):
    storage = functools.partial(LazyTensorStorage, 4000, lossless=True)
    parts = {"storage": storage, "sampler": SliceSampler(slice_len=4), "batch_size": 32}
    options = {"frames_per_batch": 24, "total_frames": 480, "trajs_per_batch": whole}
    with RayReplayBuffer(**parts) as buffer:
        places = {"remote_configs": [HERE, FAR], "replay_buffer": buffer}
        with RayCollector([EPISODES] * 2, sync=True, **places, **options) as collector:
            assert list(collector) == [None] * 20
            held = sum(one["unfinished_frames"] for one in collector.stats()["workers"])
            assert len(buffer) == 480 - held
        rows, sample = buffer[:], buffer.sample()
        assert len(rows) == 480  # what was not whole is cut at the end
        assert not check_layout(rows.exclude("index")).findings
        assert len((rows["collector", "traj_ids"] >> 32).unique()) == 2
        assert torch.equal(rows["observation"][:, 1], rows["collector", "traj_step"])
        assert torch.equal(rows["next", "observation"][:, 1], rows["collector", "traj_step"] + 1)
        assert Segments.of(sample).lengths.tolist() == [4] * 8


def test_the_stream_goes_on_when_a_node_is_lost_and_a_new_one_takes_part(cluster):
    options = {"frames_per_batch": 6, "restart_workers": True, "min_workers": 1}
    with RayCollector([EPISODES] * 2, remote_configs=[HERE, FAR], **options) as collector:
        batches, producers, waits_s = [], set(), []

        def play_until(is_enough):
            end = time.monotonic() + 120
            while not is_enough() and (begin := time.monotonic()) < end:
                batches.append(collector.next())
                waits_s.append(time.monotonic() - begin)
                producers.update((batches[-1]["collector", "traj_ids"] >> 32).tolist())
            assert is_enough()

        play_until(lambda: len(producers) == 2)
        waits_s.clear()
        cluster.remove_node(cluster.far.pop(), allow_graceful=False)
        play_until(lambda: collector.stats()["missing"] == [1])
        count = len(batches)
        play_until(lambda: len(batches) == count + 20)  # without it
        cluster.far.append(cluster.add_node(num_cpus=2, resources={"far": 2}))
        play_until(lambda: not collector.stats()["missing"] and len(producers) == 3)
        assert max(waits_s) < 3  # a worker that is lost, or that starts, is not waited for
        # a node that is lost may be given a new worker before Ray knows
        assert 1 <= collector.restarts <= 3
    rows = torch.cat(batches)
    numbers = rows["collector", "traj_ids"] * 10 + rows["collector", "traj_step"]
    assert len(numbers.unique()) == len(numbers) == 6 * len(batches)
    assert torch.equal(rows["observation"][:, 1], rows["collector", "traj_step"])
