"""Environments that show more or less from step to step: entries with a size of -1."""

import pytest
import torch
from tensordict import TensorDict

from rl_collect import Collector, MultiAsyncCollector, MultiSyncCollector
from rl_envs import EnvBase, SerialEnv
from rl_layout import check_layout
from rl_specs import Composite, OneHot, Unbounded

FORK = {"mp_start_method": "fork", "timeout_s": 60.0}


class Growing(EnvBase):
    """Shows 0 at first, then 0 and 1, and so on; its fourth step is its last."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(seen=Unbounded((-1,)))
        self.action_spec = Composite(action=OneHot(2))
        self.count = 1

    def _reset(self, tensordict, **kwargs):
        self.count = 1
        return TensorDict({"seen": torch.arange(1.0)})

    def _step(self, tensordict):
        self.count += 1
        after = {"seen": torch.arange(float(self.count)), "reward": torch.ones(1)}
        flags = {"terminated": torch.tensor([self.count > 4]), "truncated": torch.tensor([False])}
        return TensorDict(after | flags)

    def _set_seed(self, seed):
        pass

    def _get_state(self):
        return {"count": self.count}

    def _set_state(self, state):
        self.count = state["count"]


def sizes(batch, key="seen"):
    if batch.ndim == 1:
        return [len(step[key]) for step in batch.unbind(0)]
    return [sizes(one, key) for one in batch.unbind(0)]


OPTIONS = {
    "nothing": {},
    "cuts": {"set_truncated": True},
    "random frames": {"init_random_frames": 1},
    "compact": {"compact_obs": True},
    "no ids": {"track_traj_ids": False},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_steps_of_different_size_become_a_lazy_stack(option):
    def acting(root):
        return root.set("action", torch.tensor([True, False]))

    collector = Collector(Growing(), acting, frames_per_batch=6, **OPTIONS[option])
    first, second = collector.next(), collector.next()
    assert sizes(first) == [1, 2, 3, 4, 1, 2]
    assert sizes(second) == [3, 4, 1, 2, 3, 4]
    assert first.names == ["time"]
    if option != "compact":
        assert sizes(first["next"]) == [2, 3, 4, 5, 2, 3]
    done = first["next", "done"].flatten().tolist()
    assert done == [False, False, False, True, False, option == "cuts"]
    assert second["is_init"].flatten().tolist() == [option == "cuts", False, True] + [False] * 3
    assert collector.stats()["mean_return"] == 4
    if option != "no ids":
        assert not check_layout(first.select("is_init", "collector", ("next", "done"))).errors


def test_environments_side_by_side_differ_as_well():
    collector = Collector(SerialEnv(2, Growing), frames_per_batch=6)
    batches = [collector.next() for _ in range(2)]
    assert sizes(batches[0]) == [[1, 2, 3]] * 2
    assert sizes(batches[1]) == [[4, 1, 2]] * 2
    assert batches[1]["collector", "traj_step"].tolist() == [[3, 0, 1]] * 2


@pytest.mark.parametrize(("how", "shape"), [("stack", (2, 3)), (0, (6,)), (-1, (6,))])
def test_workers_hand_them_over_together(how, shape):
    options = {"frames_per_batch": 6, "cat_results": how}
    with MultiSyncCollector([Growing] * 2, **options, **FORK) as collector:
        batches = [collector.next() for _ in range(2)]
    assert [batch.shape for batch in batches] == [shape] * 2
    found = [sizes(batch) for batch in batches]
    if how == "stack":
        assert found == [[[1, 2, 3]] * 2, [[4, 1, 2]] * 2]
    else:
        assert found == [[1, 2, 3] * 2, [4, 1, 2] * 2]


def test_workers_hand_them_over_one_by_one():
    options = {"frames_per_batch": 3, "total_frames": 9}
    with MultiAsyncCollector([Growing], **options, **FORK) as collector:
        assert [sizes(batch) for batch in collector] == [[1, 2, 3], [4, 1, 2], [3, 4, 1]]


def test_a_saved_collector_goes_on():
    collector = Collector(Growing(), frames_per_batch=3)
    collector.next()
    state = collector.state_dict()
    expected = collector.next()
    other = Collector(Growing(), frames_per_batch=3)
    other.load_state_dict(state)
    found = other.next()
    assert sizes(found) == sizes(expected) == [4, 1, 2]
    assert (found["collector", "traj_ids"] == expected["collector", "traj_ids"]).all()
    assert (found["action"] == expected["action"]).all()


def test_options_that_need_one_size_refuse_ragged_steps_at_once():
    with pytest.raises(ValueError, match=r"\['seen'\] have no one size"):
        Collector(Growing(), frames_per_batch=3, trajs_per_batch=1)
    with (
        pytest.warns(UserWarning, match="pads every batch"),
        pytest.raises(ValueError, match=r"\['seen'\] have no one size"),
    ):
        Collector(Growing(), frames_per_batch=3, split_trajs=True)
