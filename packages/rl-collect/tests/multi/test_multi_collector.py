"""Collectors over processes: together, one by one, stopped early, killed, saved and refused."""

import functools
import math
import multiprocessing
import os
import signal
import warnings
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from rl_collect import Collector, MultiAsyncCollector, MultiCollector, MultiSyncCollector
from rl_envs import ParallelEnv, TransformedEnv
from rl_envs.testing import CountingEnv, MultiAgentEnv
from rl_layout import check_layout
from rl_specs import Unbounded
from rl_transforms import TensorDictPrimer

FORK = {"mp_start_method": "fork", "timeout_s": 60.0}


def test_workers_play_what_a_collector_in_this_process_plays(carrier, cart_poles, sampled):
    options = {"frames_per_batch": 40, "total_frames": 80}
    with carrier.sync([cart_poles, cart_poles], sampled, **options) as both:
        following = both.set_seed(3)
        batches = list(both)
    for worker, seed in enumerate((3, None)):
        one = Collector(cart_poles, sampled, frames_per_batch=20)
        if seed is None:
            seed = Collector(cart_poles, frames_per_batch=20).set_seed(3)
        torch.manual_seed(seed)
        assert one.set_seed(seed) > 0
        for batch in batches:
            mine = one.next().exclude(("collector", "traj_ids"))
            assert (batch[worker].exclude(("collector", "traj_ids")) == mine).all()
    assert following > 0
    assert [batch.shape for batch in batches] == [(2, 2, 10)] * 2
    assert batches[0].names == [None, None, "time"]
    assert not check_layout(torch.cat(batches, -1)).findings
    ids = [batch["collector", "traj_ids"][worker] >> 32 for batch in batches for worker in (0, 1)]
    assert len(torch.stack(ids).unique()) == 2


def two_that_draw():
    """Two processes, whose environments draw from torch at the beginnings of their trajectories."""
    primer = TensorDictPrimer(drawn=Unbounded((2,)), random=True)
    return ParallelEnv(2, lambda: TransformedEnv(CountingEnv(2), primer), mp_start_method="fork")


def test_what_environments_draw_from_torch_differs_between_workers_and_after_a_restart():
    options = {"frames_per_batch": 16, "restart_workers": True}
    with MultiSyncCollector([two_that_draw] * 2, **options, **FORK) as collector:
        found = [collector.next()]
        os.kill(collector.pids[0], signal.SIGKILL)
        found.append(collector.next())
        assert collector.restarts == 1
    begins = torch.cat([batch["drawn"][batch["is_init"][..., 0]] for batch in found])
    assert len(begins) == 2 * 2 * 2 * 2
    assert len(begins.unique(dim=0)) == len(begins)


class Warning_(UserWarning):
    """A class that only the workers may know."""


class Grumbling(CountingEnv):
    """Warns in each step, at one place."""

    def _step(self, tensordict):
        warnings.warn("the step is small", Warning_, stacklevel=1)
        return super()._step(tensordict)


def test_warnings_of_workers_are_heard_once(carrier):
    options = {"frames_per_batch": 8, "total_frames": 32}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with carrier.one_by_one([Grumbling] * 2, **options) as collector:
            assert len(list(collector)) == 4
    heard = [one for one in said if "small" in str(one.message)]
    assert [str(one.message) for one in heard] == [
        "the step is small (a worker of the collector says so)"
    ]
    assert heard[0].filename == __file__


def test_a_warning_of_a_worker_that_is_an_error_loses_no_batch(carrier):
    options = {"frames_per_batch": 8, "total_frames": 32}
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # in the workers
        collector = carrier.sync([Grumbling] * 2, **options)
    with collector:
        with pytest.raises(UserWarning, match="the step is small"):
            collector.next()
        assert collector.next()["observation"].flatten().tolist() == [0, 1, 2, 3] * 2


def test_workers_that_were_shut_down_say_how_far_they_came(carrier, counting, policy):
    options = {"frames_per_batch": 4, "total_frames": 8}
    with carrier.one_by_one([counting(5)] * 2, policy(), **options) as collector:
        assert len(list(collector)) == 2
        collector.update_policy_weights_()
        before = collector.stats()
    assert (before["frames"], before["policy_version"]) == (8, 1)
    collector.shutdown()
    assert collector.stats() == before
    assert collector.policy_version == 1


@pytest.mark.parametrize("limit_s", [math.inf, 1e9, Fraction(60)])
def test_batches_are_awaited_for_any_real_number_of_seconds(limit_s, counting):
    options = {"frames_per_batch": 6, "total_frames": 6}
    with MultiSyncCollector(
        counting(9), num_workers=2, **options, **FORK | {"timeout_s": limit_s}
    ) as collector:
        assert [len(batch) for batch in collector] == [2]


@pytest.mark.parametrize(
    ("how", "shape"), [("stack", (2, 3)), (0, (6,)), (-1, (6,)), (np.int64(0), (6,))]
)
def test_batches_are_put_together_as_asked(how, shape, counting):
    options = {"frames_per_batch": 6, "total_frames": 6, "cat_results": how}
    with MultiSyncCollector(counting(9), num_workers=2, **options, **FORK) as collector:
        batch = next(iter(collector))
    assert batch.shape == shape
    assert batch["observation"].flatten().tolist() == [0, 1, 2, 0, 1, 2]


def test_workers_that_go_on_by_themselves_lose_and_repeat_nothing(carrier, counting):
    makers, options = [counting(10**6)] * 2, {"frames_per_batch": 5, "total_frames": 60}
    with carrier.one_by_one(makers, **options) as collector:
        batches = list(collector)
    assert len(batches) == 12
    seen = {}
    for batch in batches:
        assert len(batch["collector", "traj_ids"].unique()) == 1
        seen.setdefault(int(batch["collector", "traj_ids"][0]), []).append(batch["observation"])
    assert len(seen) == 2
    for rows in seen.values():
        counts = torch.cat(rows).flatten().tolist()
        assert counts == list(range(len(counts)))


def test_every_batch_of_a_worker_names_its_time_and_has_the_sizes_of_its_groups(carrier):
    makers = [functools.partial(MultiAgentEnv, 3)] * 2
    with carrier.one_by_one(makers, frames_per_batch=4, total_frames=24) as collector:
        batches = list(collector)
    assert [batch.names for batch in batches] == [["time"]] * 6
    groups = [step["agents"] for batch in batches for step in (batch, batch["next"])]
    assert {(group.shape, *group.names) for group in groups} == {((4, 3), "time", None)}


def test_a_batch_is_not_overwritten_by_those_that_follow(carrier, counting):
    options = {"frames_per_batch": 4, "total_frames": 40}
    with carrier.one_by_one([counting(10**6)], **options) as collector:
        batches = list(collector)
    assert torch.cat(batches)["observation"].flatten().tolist() == list(range(40))


def test_cut_batches_end_truncated_and_go_on_with_new_ids(carrier, counting):
    options = {"frames_per_batch": 6, "set_truncated": True, "cat_results": 0}
    with carrier.sync([counting(99)] * 2, **options) as collector:
        first, second = collector.next(), collector.next()
    for batch in (first, second):
        # three rows of each worker, of which the last one is cut
        assert batch["next", "truncated"].flatten().tolist() == [False, False, True] * 2
        assert not batch["next", "terminated"].any()
        assert batch["collector", "traj_step"].flatten().tolist() == [0, 1, 2] * 2
    ids = torch.cat([first, second])["collector", "traj_ids"]
    assert len(ids.unique()) == 4
    assert second["observation"].flatten().tolist() == [3, 4, 5] * 2


def test_the_slow_are_stopped_early_and_the_rest_is_padding(carrier, counting):
    class Slow(CountingEnv):
        def _step(self, tensordict):
            for _ in range(200):
                torch.rand(1000).sort()
            return super()._step(tensordict)

    options = {"frames_per_batch": 96, "preemptive_threshold": 0.5}
    with carrier.sync([counting(9), lambda: Slow(9)], **options) as collector:
        batches = [collector.next() for _ in range(2)]
    for batch in batches:
        mask = batch["collector", "mask"]
        assert batch.shape == (2, 48)
        assert mask[0].all()
        assert 0 < mask[1].sum() < 48
        assert (batch["collector", "traj_ids"][1][~mask[1]] == -1).all()
    played = torch.cat([batch[1][batch["collector", "mask"][1]] for batch in batches])
    assert played["collector", "traj_step"].tolist() == [n % 9 for n in range(len(played))]


def test_async_workers_cannot_be_saved():
    collector = MultiAsyncCollector([CountingEnv], frames_per_batch=2, **FORK)
    with collector, pytest.raises(NotImplementedError, match="no moment"):
        collector.state_dict()


def test_a_plain_module_acts_and_learns_in_workers():
    net = nn.Linear(1, 2)

    class Chosen(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, observation):
            return self.net(observation) > 0

    acting, options = Chosen(), {"frames_per_batch": 2, **FORK}
    with MultiSyncCollector([CountingEnv], acting, **options) as collector:
        collector.set_seed(0)
        for bias in (1.0, -1.0):
            with torch.no_grad():
                net.weight.zero_()
                net.bias.copy_(torch.tensor([bias, -bias]))
            collector.update_policy_weights_(acting)
            assert (collector.next()["action"] == torch.tensor([bias > 0, bias < 0])).all()
        state = collector.state_dict()
    with MultiSyncCollector([CountingEnv], Chosen(), **options) as other:
        other.load_state_dict(state)
        assert (other.next()["action"] == torch.tensor([False, True])).all()


def actions_of(collector):
    with collector:
        batch = collector.next()
        return batch["action"][..., 0]


def test_workers_draw_different_actions_that_a_seed_here_decides(counting):
    def make():
        return MultiSyncCollector([counting(99)] * 2, frames_per_batch=80, **FORK)

    torch.manual_seed(5)
    first = actions_of(make())
    second = actions_of(make())
    torch.manual_seed(5)
    assert torch.equal(actions_of(make()), first)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(second, first)


def test_every_step_is_returned_where_trajectories_are_the_unfinished_last(carrier, counting):
    makers = [counting(3), counting(7)]
    options = {"frames_per_batch": 40, "total_frames": 40, "trajs_per_batch": 2}
    with carrier.sync(makers, **options) as collector:
        batches = list(collector)
        assert not any(one["unfinished_frames"] for one in collector.stats()["workers"])
    rows = torch.cat(batches)
    assert len(rows) == collector.frames == 40
    assert all(batch["next", "done"][-1] for batch in batches)
    # 20 steps of each: 2 of an episode of 3, and 6 of one of 7
    cuts = rows["next", "truncated"] & ~rows["next", "terminated"]
    assert sorted(rows["collector", "traj_step"][cuts.squeeze(-1)].tolist()) == [1, 5]
    assert not check_layout(rows).findings


def test_a_dimension_that_batches_lack_is_refused(counting):
    for wrong in (1, -2):
        options = {"frames_per_batch": 4, "cat_results": wrong, **FORK}
        with (
            MultiSyncCollector([counting(9)] * 2, **options) as collector,
            pytest.raises(IndexError, match=rf"cat_results={wrong}: .* \[2\], without"),
        ):
            collector.next()


def test_numbers_that_do_not_divide_are_rounded_up_with_a_warning():
    with pytest.warns(UserWarning, match="frames_per_batch=7 is no multiple of 2 workers"):
        collector = MultiSyncCollector([CountingEnv] * 2, frames_per_batch=7, **FORK)
    with collector:
        assert collector.next().numel() == 8


def test_batches_of_workers_are_brought_to_the_storing_device(counting):
    options = {"frames_per_batch": 4, "storing_device": "meta", **FORK}
    with MultiSyncCollector([counting(9)] * 2, **options) as collector:
        for _ in range(2):  # the first by message, the second through shared memory
            batch = collector.next()
            assert batch.shape == (2, 2)
            assert {leaf.device.type for leaf in batch.values(True, True)} == {"meta"}


def test_hooks_run_in_workers(carrier):
    def hook():
        raise ValueError(f"a hook in {os.getpid()}")

    with carrier.sync([CountingEnv], frames_per_batch=2, pre_collect_hook=hook) as one:
        pid = one.pids[0]
        with pytest.raises(ValueError, match=f"a hook in {pid}"):
            one.next()


def test_stats_do_not_wait_for_workers(list_buffer, counting):
    made = multiprocessing.get_context("fork")
    turns, waits = made.Semaphore(1), made.Event()

    def hook():
        if not turns.acquire(block=False):
            waits.set()
            turns.acquire()

    options = {"frames_per_batch": 4, "total_frames": 8, "replay_buffer": list_buffer()}
    with MultiAsyncCollector([counting(3)], pre_collect_hook=hook, **options, **FORK) as collector:
        assert collector.stats()["workers"][0]["frames"] == 0
        collector.start()
        assert waits.wait(60)
        with ThreadPoolExecutor(1) as aside:
            try:
                told = aside.submit(collector.stats).result(30)
            finally:
                turns.release()
        collector.wait()
        last = collector.stats()
    assert (told["frames"], told["workers"][0]["frames"]) == (4, 4)
    assert (told["workers"][0]["episodes"], told["workers"][0]["mean_return"]) == (1, 3)
    assert (last["frames"], last["workers"][0]["frames"]) == (8, 8)


def test_workers_deliver_one_by_one_where_nothing_is_said():
    env = CountingEnv()
    with MultiCollector(
        [CountingEnv, CountingEnv], env.rand_step, frames_per_batch=4, total_frames=16, **FORK
    ) as collector:
        assert [len(batch) for batch in collector] == [4, 4, 4, 4]
