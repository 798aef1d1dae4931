"""Arguments that a collector refuses."""

import pytest
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collect import Collector
from rl_envs.testing import CountingEnv


def test_a_collector_that_was_shut_down_says_so():
    collector = Collector(CountingEnv(), frames_per_batch=3, total_frames=9)
    collector.shutdown()
    collector.shutdown()
    state = Collector(CountingEnv(), frames_per_batch=3).state_dict()
    for call in (
        collector.next,
        collector.rollout,
        collector.reset,
        collector.start,
        collector.state_dict,
        collector.update_policy_weights_,
        lambda: collector.set_seed(0),
        lambda: collector.load_state_dict(state),
        lambda: next(iter(collector)),
    ):
        with pytest.raises(RuntimeError, match="shut down"):
            call()
    assert collector.env.is_closed


def test_a_collector_that_was_shut_down_says_how_far_it_came():
    collector = Collector(CountingEnv(), frames_per_batch=3, total_frames=9)
    batches = list(collector)
    before = collector.stats(), collector.explain()
    collector.shutdown()
    assert len(batches) == 3
    assert before[0]["frames"] == 9
    assert (collector.stats(), collector.explain()) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frames_per_batch": 0}, "frames_per_batch is too small"),
        ({"total_frames": 0}, "total_frames is too small"),
        ({"split_trajs": True, "track_traj_ids": False}, "split_trajs needs"),
        ({"trajs_per_batch": 2, "track_traj_ids": False}, "trajs_per_batch needs"),
        ({"trajs_per_batch": 2, "split_trajs": True}, "exclude each other"),
        ({"extend_buffer": False}, "needs a replay_buffer"),
        ({"max_frames_per_traj": 0}, "at least 1"),
        ({"init_random_frames": -1}, "init_random_frames is too small"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Collector(CountingEnv(), **{"frames_per_batch": 4, **options})


def test_things_of_the_wrong_kind_are_refused():
    with pytest.raises(TypeError, match="needs extend"):
        Collector(CountingEnv(), frames_per_batch=2, replay_buffer=3)
    with pytest.raises(TypeError, match="must be callable"):
        Collector(CountingEnv(), frames_per_batch=2, postproc=3)
    with pytest.raises(TypeError, match="can be called on a tensordict"):
        Collector(CountingEnv(), 3, frames_per_batch=2)
    with pytest.raises(TypeError, match="create_env_fn must be"):
        Collector(3, frames_per_batch=2)
    with pytest.raises(TypeError, match="must make an environment"):
        Collector(dict, frames_per_batch=2)
    with pytest.raises(TypeError, match=r"got 'CartPole-v1'\. GymEnv takes an id"):
        Collector("CartPole-v1", frames_per_batch=2)
    with pytest.raises(ValueError, match="create_env_fn is empty"):
        Collector([], frames_per_batch=2)
    with pytest.raises(TypeError, match=r"frames_per_batch must be an integer: got 2\.5"):
        Collector(CountingEnv(), frames_per_batch=2.5)
    with pytest.raises(TypeError, match="postproc must return the batch to return: got NoneType"):
        Collector(CountingEnv(), frames_per_batch=2, postproc=lambda batch: None).next()
    with pytest.raises(RuntimeError, match="replay_buffer"):
        Collector(CountingEnv(), frames_per_batch=2).start()
    with pytest.raises(RuntimeError, match="no device 'cuda:99'"):
        Collector(CountingEnv(), frames_per_batch=2, storing_device="cuda:99")


@pytest.mark.parametrize("name", ["device", "policy_device", "storing_device", "env_device"])
def test_a_device_that_is_none_is_refused_by_its_argument(name):
    policy = TensorDictModule(nn.Linear(1, 2), ["observation"], ["action"])
    for acting in (policy, None):
        with pytest.raises(ValueError, match=rf"^{name}: expected a torch\.device .* 'nope'"):
            Collector(CountingEnv(), acting, frames_per_batch=2, **{name: "nope"})


def test_a_policy_that_reads_what_is_not_there_is_refused_at_once(memory_policy):
    policy = TensorDictModule(nn.Linear(1, 2), ["pixels"], ["action"])
    with pytest.raises(KeyError, match="pixels"):
        Collector(CountingEnv(), policy, frames_per_batch=2)
    with pytest.raises(KeyError, match="hidden"):
        Collector(
            CountingEnv(),
            memory_policy(),
            frames_per_batch=2,
            auto_register_policy_transforms=False,
        )
