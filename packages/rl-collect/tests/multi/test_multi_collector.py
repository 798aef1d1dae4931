"""Collectors over processes: together, one by one, stopped early, killed, saved and refused."""

import copy
import functools
import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tensordict import NonTensorData
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collect import Collector, MultiAsyncCollector, MultiCollector, MultiSyncCollector
from rl_envs import GymEnv, SerialEnv
from rl_envs.testing import CountingEnv, DyingEnv, EpisodeStepEnv, RaisingEnv
from rl_layout import check_layout
from rl_workers import WorkerDied

FORK = {"mp_start_method": "fork", "timeout_s": 60.0}


class Buffer(list):
    """Stores every batch, in this process."""

    def extend(self, batch):
        self.append(batch)


class Weighted(nn.Module):
    """Writes its weight where it can be seen."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, observation):
        choice = torch.zeros(*observation.shape[:-1], 2, dtype=torch.bool)
        choice[..., 0] = True
        return choice, self.weight.expand(observation.shape).clone()


def policy():
    return TensorDictModule(Weighted(), ["observation"], ["action", "weight"])


def counting(length):
    return functools.partial(CountingEnv, length)


def sampled(root):
    choice = torch.multinomial(root["observation"][..., :2].softmax(-1), 1)
    root["action"] = torch.zeros(*choice.shape[:-1], 2, dtype=torch.bool).scatter(-1, choice, True)
    return root


def cart_poles():
    return SerialEnv(2, lambda: GymEnv("CartPole-v1"))


def test_workers_play_what_a_collector_in_this_process_plays():
    options = {"frames_per_batch": 40, "total_frames": 80}
    with MultiSyncCollector([cart_poles, cart_poles], sampled, **options, **FORK) as both:
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


@pytest.mark.parametrize(("how", "shape"), [("stack", (2, 3)), (0, (6,)), (-1, (6,))])
def test_batches_are_put_together_as_asked(how, shape):
    options = {"frames_per_batch": 6, "total_frames": 6, "cat_results": how}
    with MultiSyncCollector(counting(9), num_workers=2, **options, **FORK) as collector:
        batch = next(iter(collector))
    assert batch.shape == shape
    assert batch["observation"].flatten().tolist() == [0, 1, 2, 0, 1, 2]


def test_workers_that_go_on_by_themselves_lose_and_repeat_nothing():
    makers, options = [counting(10**6)] * 2, {"frames_per_batch": 5, "total_frames": 60}
    with MultiAsyncCollector(makers, **options, **FORK) as collector:
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


def test_a_batch_is_not_overwritten_by_those_that_follow():
    options = {"frames_per_batch": 4, "total_frames": 40}
    with MultiAsyncCollector([counting(10**6)], **options, **FORK) as collector:
        batches = list(collector)
    assert torch.cat(batches)["observation"].flatten().tolist() == list(range(40))


def test_new_weights_reach_all_workers_and_rows_say_which_acted():
    acting = policy()
    options = {"frames_per_batch": 4}
    with MultiSyncCollector([counting(99)] * 2, acting, **options, **FORK) as collector:
        first = collector.next()
        with torch.no_grad():
            acting.module.weight.fill_(3)
        second = collector.next()
        collector.update_policy_weights_()
        third = collector.next()
        collector.update_policy_weights_({"module.weight": torch.full((1,), 5.0)})
        fourth = collector.next()
    for batch, weight, version in zip(
        (first, second, third, fourth), (0, 0, 3, 5), (0, 0, 1, 2), strict=True
    ):
        assert (batch["weight"] == weight).all()
        assert (batch["collector", "policy_version"] == version).all()


WRONG_WEIGHTS = [
    (
        "other",
        torch.ones(1),
        r"\['other'\] are none of its weights; 'module\.weight': expected float32 .*nothing",
    ),
    ("module.weight", torch.ones(2), r"'module\.weight': expected .* \[1\], got float32 \[2\]"),
    ("module.weight", torch.ones(1, dtype=torch.complex64), r"expected .*, got complex64 \[1\]"),
    ("module.weight", "text", r"expected float32 \[1\], got a str"),
]


def test_wrong_weights_are_refused():
    with MultiSyncCollector([CountingEnv], policy(), frames_per_batch=2, **FORK) as collector:
        for name, weights, message in WRONG_WEIGHTS:
            with pytest.raises(ValueError, match=message):
                collector.update_policy_weights_({name: weights})
        collector.update_policy_weights_({"module.weight": torch.ones(1, dtype=torch.float64)})
        assert (collector.next()["weight"] == 1).all()
    collector = MultiSyncCollector([CountingEnv], frames_per_batch=2, **FORK)
    with collector, pytest.raises(TypeError, match="no weights"):
        collector.update_policy_weights_()


def test_a_buffer_here_gets_every_batch():
    buffer, options = Buffer(), {"frames_per_batch": 6, "total_frames": 12}
    with MultiSyncCollector([counting(4)] * 2, replay_buffer=buffer, **options, **FORK) as workers:
        assert list(workers) == [None, None]
    assert [batch.shape for batch in buffer] == [(3,)] * 4


def test_a_buffer_gets_whole_trajectories_and_the_rest_at_the_end():
    buffer = Buffer()
    options = {"frames_per_batch": 8, "total_frames": 32, "trajs_per_batch": 1}
    makers = [counting(3), counting(100)]
    with MultiSyncCollector(makers, replay_buffer=buffer, **options, **FORK) as collector:
        list(collector)
        assert all(batch["next", "done"][-1].item() for batch in buffer)
        assert not any(batch["next", "truncated"].any() for batch in buffer)
    lengths = sorted(len(batch) for batch in buffer)
    assert sum(lengths) == 32
    assert lengths[-1] == 16
    assert max(buffer, key=len)["next", "truncated"][-1].item()


def test_collecting_in_the_background_into_a_buffer():
    buffer = Buffer()
    collector = MultiAsyncCollector(
        [counting(5)] * 2, frames_per_batch=4, total_frames=40, replay_buffer=buffer, **FORK
    )
    collector.start()
    collector.wait()
    assert sum(len(batch) for batch in buffer) == 40
    collector.shutdown()


def test_the_slow_are_stopped_early_and_the_rest_is_padding():
    class Slow(CountingEnv):
        def _step(self, tensordict):
            for _ in range(200):
                torch.rand(1000).sort()
            return super()._step(tensordict)

    options = {"frames_per_batch": 96, "preemptive_threshold": 0.5}
    with MultiSyncCollector([counting(9), lambda: Slow(9)], **options, **FORK) as collector:
        batches = [collector.next() for _ in range(2)]
    for batch in batches:
        mask = batch["collector", "mask"]
        assert batch.shape == (2, 48)
        assert mask[0].all()
        assert 0 < mask[1].sum() < 48
        assert (batch["collector", "traj_ids"][1][~mask[1]] == -1).all()
    played = torch.cat([batch[1][batch["collector", "mask"][1]] for batch in batches])
    assert played["collector", "traj_step"].tolist() == [n % 9 for n in range(len(played))]


def test_an_exception_in_a_worker_reaches_the_caller_with_its_number():
    makers = [counting(5), functools.partial(RaisingEnv, 3)]
    collector = MultiSyncCollector(makers, frames_per_batch=8, **FORK)
    with collector, pytest.raises(ZeroDivisionError, match="always fails") as found:
        collector.next()
    assert "collector worker 1" in str(found.value.__cause__)


def test_a_worker_that_dies_is_named():
    makers = [counting(5), functools.partial(DyingEnv, 3)]
    collector = MultiSyncCollector(makers, frames_per_batch=8, **FORK)
    with collector, pytest.raises(WorkerDied, match=r"collector worker 1.*SIGKILL"):
        list(collector)


def test_a_worker_that_dies_is_replaced_and_every_step_stays_genuine():
    makers = [functools.partial(EpisodeStepEnv, [(7, "terminated")])] * 2
    options = {"frames_per_batch": 6, "restart_workers": True}
    with MultiAsyncCollector(makers, **options, **FORK) as collector:
        batches: list = []

        def play_until(num_producers):
            for _ in range(10_000):  # far more than two workers need
                if (
                    len({int(b["collector", "traj_ids"][0]) >> 32 for b in batches})
                    == num_producers
                ):
                    return
                batch = collector.next()
                batches.extend([] if batch is None else [batch])
            pytest.fail("the worker that restarts_workers a dead one hands nothing over")

        play_until(2)
        for deaths, index in enumerate([1, 0, 0], start=1):
            os.kill(collector.pids[index], signal.SIGKILL)
            play_until(2 + deaths)
        restarts = collector.stats()["restarts"]
    assert restarts == 3
    rows = torch.cat(batches)
    shown, after = rows["observation"], rows["next", "observation"]
    assert (shown[:, 1] == rows["collector", "traj_step"]).all()  # (episode, step)
    assert (after[:, 1] == shown[:, 1] + 1).all()
    numbers = rows["collector", "traj_ids"] * 10 + rows["collector", "traj_step"]
    assert len(numbers.unique()) == len(numbers)
    assert len((rows["collector", "traj_ids"] >> 32).unique()) == 5


def test_saved_workers_go_on_bit_for_bit():
    options = {"frames_per_batch": 24, **FORK}
    with MultiSyncCollector([cart_poles] * 2, sampled, **options) as collector:
        collector.set_seed(1)
        collector.next()
        state = collector.state_dict()
        expected = [collector.next() for _ in range(2)]
    with MultiSyncCollector([cart_poles] * 2, sampled, **options) as other:
        other.load_state_dict(state)
        for batch in expected:
            assert (other.next() == batch).all()
        assert other.frames == 72


def test_a_state_that_does_not_fit_a_worker_changes_none():
    options = {"frames_per_batch": 24, **FORK}
    with MultiSyncCollector([cart_poles] * 2, sampled, **options) as collector:
        collector.set_seed(1)
        collector.next()
        state = collector.state_dict()
        other = copy.deepcopy(state)
        collector.next()
        other["workers"][1]["env"]["state"] = {}
        before = collector.state_dict()
        expected = collector.next()
        collector.load_state_dict(before)
        with pytest.raises(ValueError, match="the state is of another environment"):
            collector.load_state_dict(other)
        assert (collector.next() == expected).all()
        assert collector.frames == 72


def test_versions_go_on_after_a_load():
    options = {"frames_per_batch": 2, **FORK}
    with MultiSyncCollector([CountingEnv], policy(), **options) as collector:
        for _ in range(3):
            collector.update_policy_weights_()
        collector.next()
        state = collector.state_dict()
    with MultiSyncCollector([CountingEnv], policy(), **options) as other:
        other.load_state_dict(state)
        other.update_policy_weights_({"module.weight": torch.full((1,), 7.0)})
        batch = other.next()
    assert (batch["collector", "policy_version"] == 4).all()
    assert (batch["weight"] == 7).all()


def test_nothing_is_left_when_it_is_over():
    before = set(os.listdir("/dev/shm"))
    collector = MultiAsyncCollector([counting(5)] * 2, frames_per_batch=4, **FORK)
    pids = collector.pids
    collector.next()
    collector.shutdown()
    collector.shutdown()
    assert not any(os.path.exists(f"/proc/{pid}/cmdline") for pid in pids)
    assert set(os.listdir("/dev/shm")) == before
    with pytest.raises(RuntimeError, match="shut down"):
        collector.next()


def test_options_that_cannot_be_are_refused():
    def make(**options):
        MultiCollector([CountingEnv], **{"sync": True, "frames_per_batch": 2, **options})

    with pytest.raises(TypeError, match="unknown options"):
        make(frames=3)
    with pytest.raises(ValueError, match="exclude each other"):
        make(policy=policy(), policy_factory=policy)
    with pytest.raises(ValueError, match="for sync=True"):
        make(sync=False, cat_results=0)
    with pytest.raises(ValueError, match="'stack' or a dimension"):
        make(cat_results="flat")
    with pytest.raises(ValueError, match="preemptive_threshold"):
        make(preemptive_threshold=1.5)
    with pytest.raises(ValueError, match="no worker"):
        MultiCollector([], sync=True, frames_per_batch=2)
    with pytest.raises(ValueError, match="give one of them"):
        MultiCollector([CountingEnv], sync=True, num_workers=2, frames_per_batch=2)
    with pytest.raises(TypeError, match="give functions"):
        MultiCollector([CountingEnv()], sync=True, frames_per_batch=2)


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


def test_workers_draw_different_actions_that_a_seed_here_decides():
    def make():
        return MultiSyncCollector([counting(99)] * 2, frames_per_batch=80, **FORK)

    torch.manual_seed(5)
    first = actions_of(make())
    second = actions_of(make())
    torch.manual_seed(5)
    assert torch.equal(actions_of(make()), first)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(second, first)


def test_complete_trajectories_of_the_last_batches_are_returned():
    makers = [counting(3), counting(5)]
    options = {"frames_per_batch": 40, "total_frames": 40, "trajs_per_batch": 2}
    with MultiSyncCollector(makers, **options, **FORK) as collector:
        batches = list(collector)
        held = sum(one["unfinished_frames"] for one in collector.stats()["workers"])
    rows = torch.cat(batches)
    assert len(rows) + held == collector.frames
    assert rows["next", "done"][-1]
    assert not check_layout(rows).findings


def test_saved_workers_that_hold_unfinished_trajectories_go_on():
    options = {"frames_per_batch": 32, "trajs_per_batch": 2, **FORK}
    with MultiSyncCollector([cart_poles] * 2, sampled, **options) as collector:
        collector.set_seed(1)
        collector.next()
        state = collector.state_dict()
        expected = [collector.next() for _ in range(2)]
    with MultiSyncCollector([cart_poles] * 2, sampled, **options) as other:
        other.load_state_dict(state)
        for batch in expected:
            assert (other.next() == batch).all()


def test_entries_without_one_size_come_by_message():
    def lists():
        return lambda batch: batch.set("text", NonTensorData("a", batch_size=batch.batch_size))

    options = {"frames_per_batch": 4, "postproc": lists()}
    with MultiSyncCollector([counting(9)] * 2, **options, **FORK) as collector:
        batches = [collector.next() for _ in range(2)]
    assert torch.cat(batches, -1)["observation"][1].flatten().tolist() == [0, 1, 2, 3]


def test_weights_may_change_while_workers_play():
    acting, options = policy(), {"frames_per_batch": 8, "total_frames": 400}
    seen = []
    with MultiAsyncCollector([counting(9)] * 2, acting, **options, **FORK) as collector:
        for number, batch in enumerate(collector, 1):
            with torch.no_grad():
                acting.module.weight.fill_(number)
            versions = batch["collector", "policy_version"]
            assert (batch["weight"] == versions.unsqueeze(-1)).all()  # never torn, never mixed
            seen += versions.unique().tolist()
            collector.update_policy_weights_()
        assert collector.stats()["policy_lag"] > 0
    assert len(set(seen)) > 5


def test_progress_says_how_far_the_weights_are_behind(capsys):
    options = {"frames_per_batch": 8, "total_frames": 32, "progress": True}
    with MultiAsyncCollector([counting(3)] * 2, policy(), **options, **FORK) as collector:
        for _ in collector:
            collector.update_policy_weights_()
            collector.update_policy_weights_()
    told = capsys.readouterr().err
    assert "episodes=" in told
    assert "return=3.0" in told
    assert "lag=" in told


def test_numbers_that_do_not_divide_are_rounded_up_with_a_warning():
    with pytest.warns(UserWarning, match="frames_per_batch=7 is no multiple of 2 workers"):
        collector = MultiSyncCollector([CountingEnv] * 2, frames_per_batch=7, **FORK)
    with collector:
        assert collector.next().numel() == 8


class Arranged(Buffer):
    """A buffer whose storage has two dimensions."""

    class storage:
        ndim = 2


def test_a_buffer_with_columns_is_refused_where_workers_would_share_them():
    def make(kind, count=2, **options):
        options = {"frames_per_batch": 8, "replay_buffer": Arranged(), **options, **FORK}
        return kind([counting(9)] * count, **options)

    for kind, options in (
        (MultiAsyncCollector, {}),
        (MultiSyncCollector, {"cat_results": 0}),
        (MultiSyncCollector, {"trajs_per_batch": 2}),
    ):
        with pytest.raises(ValueError, match="ndim=2"):
            make(kind, **options)
    for kind, options in (
        (MultiAsyncCollector, {"count": 1}),
        (MultiAsyncCollector, {"set_truncated": True}),
    ):
        make(kind, **options).shutdown()
    with make(MultiSyncCollector) as collector:
        collector.next()
    assert [batch.shape for batch in collector.options.replay_buffer] == [(2, 4)]


def test_policies_that_workers_make_begin_alike_and_take_new_weights():
    class Begins(Weighted):
        def __init__(self):
            super().__init__()
            with torch.no_grad():
                self.weight.fill_(float(os.getpid()))

    def make():
        return TensorDictModule(Begins(), ["observation"], ["action", "weight"])

    options = {"frames_per_batch": 4, "policy_factory": make, **FORK}
    with MultiSyncCollector([counting(9)] * 2, **options) as collector:
        pid = collector.pids[0]
        assert (collector.next()["weight"] == pid).all()
        collector.update_policy_weights_({"module.weight": torch.full((1,), 3.0)})
        batch = collector.next()
        assert (batch["weight"] == 3).all()
        assert (batch["collector", "policy_version"] == 1).all()
        state = collector.state_dict()
    with MultiSyncCollector([counting(9)] * 2, **options) as other:
        other.load_state_dict(state)
        batch = other.next()
        assert (batch["weight"] == 3).all()
        assert (batch["collector", "policy_version"] == 1).all()


def test_an_environment_and_a_buffer_that_cannot_be_used_are_refused_at_once():
    with pytest.raises(TypeError, match="workers make their environments themselves"):
        MultiAsyncCollector(CountingEnv(), frames_per_batch=4)
    with pytest.raises(TypeError, match=r"replay_buffer needs extend\(\): got str"):
        MultiAsyncCollector([CountingEnv], frames_per_batch=4, replay_buffer="rows")


def test_weights_of_policies_that_workers_make_must_be_passed():
    def make():
        return TensorDictModule(Weighted(), ["observation"], ["action", "weight"])

    options = {"frames_per_batch": 4, **FORK}
    with MultiSyncCollector([counting(9)] * 2, policy_factory=make, **options) as collector:
        with pytest.raises(TypeError, match=r"policy_factory made.*pass the policy"):
            collector.update_policy_weights_()
        assert collector.policy_version == 0
        collector.update_policy_weights_(make())
        assert collector.policy_version == 1
    with (
        MultiSyncCollector([counting(9)] * 2, **options) as collector,
        pytest.raises(TypeError, match="drawn at random"),
    ):
        collector.update_policy_weights_()


def test_batches_of_workers_are_brought_to_the_storing_device():
    options = {"frames_per_batch": 4, "storing_device": "meta", **FORK}
    with MultiSyncCollector([counting(9)] * 2, **options) as collector:
        for _ in range(2):  # the first by message, the second through shared memory
            batch = collector.next()
            assert batch.shape == (2, 2)
            assert {leaf.device.type for leaf in batch.values(True, True)} == {"meta"}


def test_calls_during_background_collection_skip_no_batch():
    buffer, options = Buffer(), {"frames_per_batch": 4, "total_frames": 160, **FORK}
    with MultiAsyncCollector(
        [counting(10**6)] * 2, policy(), replay_buffer=buffer, **options
    ) as collector:
        collector.start()
        while collector.is_running:
            assert collector.stats()["frames"] % 4 == 0
            collector.update_policy_weights_()
        collector.wait()
    rows = torch.cat(list(buffer))
    assert len(rows) == 160
    for number in rows["collector", "traj_ids"].unique():
        one = rows[rows["collector", "traj_ids"] == number]
        assert one["observation"].flatten().tolist() == list(range(len(one)))


def test_a_batch_that_is_only_half_there_is_not_left_out_of_a_state():
    class FailsOnce(CountingEnv):
        def _step(self, tensordict):
            if not hasattr(self, "failed"):
                self.failed = True
                raise ZeroDivisionError("once")
            return super()._step(tensordict)

    makers = [counting(10**6), lambda: FailsOnce(10**6)]
    with MultiSyncCollector(makers, frames_per_batch=6, **FORK) as collector:
        with pytest.raises(ZeroDivisionError, match="once"):
            collector.next()
        with pytest.raises(RuntimeError, match="take it by next"):
            collector.state_dict()
        collector.next()
        assert collector.state_dict()["frames"] == 6


def test_hooks_run_in_workers():
    def hook():
        raise ValueError(f"a hook in {os.getpid()}")

    with MultiSyncCollector(
        [CountingEnv], frames_per_batch=2, pre_collect_hook=hook, **FORK
    ) as one:
        pid = one.pids[0]
        with pytest.raises(ValueError, match=f"a hook in {pid}"):
            one.next()


def test_worker_waiting_in_a_hook_acts_with_weights_that_arrive_meanwhile():
    made = multiprocessing.get_context("fork")
    waits, goes_on = made.Event(), made.Event()

    def hook():
        waits.set()
        goes_on.wait()

    acting, batches = policy(), Buffer()
    options = {"frames_per_batch": 4, "total_frames": 4, "replay_buffer": batches}
    with MultiAsyncCollector(
        [counting(9)], acting, pre_collect_hook=hook, **options, **FORK
    ) as collector:
        collector.start()
        assert waits.wait(60)
        with torch.no_grad():
            acting.module.weight.fill_(1)
        collector.update_policy_weights_()
        goes_on.set()
        collector.wait()
    assert (batches[0]["collector", "policy_version"] == 1).all()
    assert (batches[0]["weight"] == 1).all()


def test_stats_do_not_wait_for_workers():
    made = multiprocessing.get_context("fork")
    turns, waits = made.Semaphore(1), made.Event()

    def hook():
        if not turns.acquire(block=False):
            waits.set()
            turns.acquire()

    options = {"frames_per_batch": 4, "total_frames": 8, "replay_buffer": Buffer()}
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


def test_a_policy_compiled_in_place_that_would_be_pickled_is_refused_by_name():
    policy = TensorDictModule(nn.Linear(1, 2), ["observation"], ["action"])
    policy.compile(backend="eager")
    with pytest.raises(TypeError, match=r"a TensorDictModule, cannot be pickled .* in place"):
        MultiSyncCollector([CountingEnv], policy, frames_per_batch=4, mp_start_method="spawn")


class Signed(nn.Module):
    """Takes an action by the sign of one weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, observation):
        first = (self.weight > 0).expand(observation.shape)
        return torch.cat([first, ~first], -1)


def test_a_compiled_policy_acts_in_workers_and_takes_new_weights():
    plain = Signed()
    module = TensorDictModule(plain, ["observation"], ["action"])
    with MultiSyncCollector(
        [CountingEnv],
        torch.compile(module, backend="eager"),
        frames_per_batch=4,
        mp_start_method="fork",
    ) as collector:
        for version, weight in enumerate((-1.0, 1.0), start=1):
            nn.init.constant_(plain.weight, weight)
            collector.update_policy_weights_()
            batch = collector.next()
            assert batch["action"][..., 0].eq(weight > 0).all()
            assert batch["collector", "policy_version"].eq(version).all()
