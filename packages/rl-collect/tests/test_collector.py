"""The collector in one process: what it plays, marks, returns, stores, saves and refuses."""

import warnings

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import nn

from rl_collect import Collector, SyncDataCollector
from rl_envs import GymEnv, SerialEnv
from rl_envs.testing import CountingEnv, GroupsEnv, RaisingEnv
from rl_layout import Segments, check_layout
from rl_specs import Unbounded
from rl_transforms import TensorDictPrimer


class Buffer(list):
    """Stores every batch."""

    def extend(self, batch):
        self.append(batch)

    def add(self, step):
        self.append(step)


class Memory(TensorDictModuleBase):
    """A policy that counts its own steps in a recurrent state."""

    def __init__(self):
        super().__init__()
        self.in_keys = ["observation", "hidden"]
        self.out_keys = ["action", ("next", "hidden")]

    def forward(self, tensordict):
        count = tensordict["hidden"]
        action = torch.zeros(*tensordict.batch_size, 2, dtype=torch.bool)
        action[..., 0] = True
        tensordict.set("action", action)
        return tensordict.set(("next", "hidden"), count + 1)

    def make_tensordict_primer(self):
        return TensorDictPrimer(hidden=Unbounded((1,)), expand_specs=True)


def cart_poles(count=3):
    return SerialEnv(count, [lambda: GymEnv("CartPole-v1")] * count)


def sampled(root):
    logits = root["observation"][..., :2]
    choice = torch.multinomial(logits.softmax(-1), 1)
    root["action"] = torch.zeros(logits.shape, dtype=torch.bool).scatter(-1, choice, True)
    return root


def weighted():
    """A policy with weights, which draws its actions."""
    layer = TensorDictModule(nn.Linear(4, 2), ["observation"], ["logits"])
    draw = TensorDictModule(
        lambda logits: nn.functional.one_hot(logits.softmax(-1).multinomial(1)[..., 0], 2) > 0,
        ["logits"],
        ["action"],
    )
    return TensorDictSequential(layer, draw)


def collected(env, policy=None, *, seed=0, **options):
    torch.manual_seed(seed)
    collector = Collector(env, policy, producer=7, **options)
    collector.set_seed(seed)
    with collector:
        return list(collector)


def test_every_batch_obeys_the_layout_and_follows_the_one_before():
    batches = collected(cart_poles(), sampled, frames_per_batch=60, total_frames=300)
    whole = torch.cat(batches, -1)
    assert whole.shape == (3, 100)
    assert whole.names == [None, "time"]
    assert not check_layout(whole).findings
    over = whole["next", "done"][:, :-1]
    assert (whole["is_init"][:, 1:] == over).all()
    same = (whole["next", "observation"][:, :-1] == whole["observation"][:, 1:]).all(-1)
    assert (same | over.squeeze(-1)).all()
    assert (whole["collector", "traj_ids"] >> 32 == 7).all()


def test_a_trajectory_does_not_depend_on_the_size_of_the_batches():
    options = {"total_frames": 240}
    one = collected(cart_poles(), sampled, frames_per_batch=240, **options)
    several = collected(cart_poles(), sampled, frames_per_batch=30, **options)
    assert len(several) == 8
    assert (torch.cat(several, -1) == one[0]).all()


def test_frames_are_rounded_up_with_one_warning():
    with pytest.warns(UserWarning, match="no multiple of 3") as found:
        collector = Collector(cart_poles(), frames_per_batch=10, total_frames=20)
    batches = list(collector)
    assert len(found) == 1
    assert [batch.shape for batch in batches] == [(3, 4), (3, 4)]
    assert (len(collector), collector.frames) == (2, 24)


def test_a_second_iterator_goes_on_where_the_first_stopped():
    collector = Collector(CountingEnv(max_steps=9), frames_per_batch=4, total_frames=12)
    first = next(iter(collector))
    rest = list(collector)
    assert first["observation"].flatten().tolist() == [0, 1, 2, 3]
    assert torch.cat(rest)["observation"].flatten().tolist() == [4, 5, 6, 7, 8, 0, 1, 2]
    assert collector.next() is None


def test_a_collector_without_an_end_has_no_length():
    collector = Collector(CountingEnv(), frames_per_batch=4)
    with pytest.raises(TypeError, match="no end"):
        len(collector)


def test_a_cut_at_the_end_of_a_batch_begins_new_trajectories_and_keeps_the_state():
    env = CountingEnv(max_steps=7)
    batches = collected(env, Memory(), frames_per_batch=3, total_frames=9, set_truncated=True)
    whole = torch.cat(batches)
    assert whole["next", "truncated"].flatten().tolist() == [0, 0, 1, 0, 0, 1, 0, 0, 1]
    assert whole["next", "terminated"].flatten().tolist() == [0] * 6 + [1, 0, 0]
    assert whole["is_init"].flatten().tolist() == [1, 0, 0, 1, 0, 0, 1, 1, 0]
    assert whole["collector", "traj_step"].tolist() == [0, 1, 2, 0, 1, 2, 0, 0, 1]
    assert len(whole["collector", "traj_ids"].unique()) == 4
    # the state is carried over the cuts, and starts anew at the reset
    assert whole["hidden"].flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1]
    assert not check_layout(whole).errors


def test_a_terminated_last_step_stays_a_termination():
    batches = collected(CountingEnv(3), frames_per_batch=3, total_frames=3, set_truncated=True)
    assert batches[0]["next", "terminated"][-1].item()
    assert not batches[0]["next", "truncated"].any()


def test_environments_can_be_reset_before_each_batch():
    env = CountingEnv(max_steps=9)
    batches = collected(env, frames_per_batch=3, total_frames=9, reset_at_each_iter=True)
    whole = torch.cat(batches)
    assert whole["observation"].flatten().tolist() == [0, 1, 2] * 3
    assert whole["is_init"].flatten().tolist() == [True, False, False] * 3
    assert len(whole["collector", "traj_ids"].unique()) == 3
    assert not whole["next", "done"].any()


def test_the_state_of_a_policy_is_carried_from_batch_to_batch():
    envs = SerialEnv(2, [lambda: CountingEnv(max_steps=4), lambda: CountingEnv(max_steps=6)])
    whole = torch.cat(collected(envs, Memory(), frames_per_batch=6, total_frames=24), -1)
    assert whole["hidden"][..., 0].tolist() == [
        [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3],
        [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5],
    ]
    assert (whole["next", "hidden"] == whole["hidden"] + 1).all()


def test_random_frames_take_random_actions_and_keep_what_else_the_policy_writes():
    policy = TensorDictModule(
        lambda obs: (torch.tensor([True, False]), obs[..., 0], obs[..., 0] + 1),
        ["observation"],
        ["action", "action_log_prob", "value"],
    )
    batches = collected(
        CountingEnv(), policy, frames_per_batch=50, total_frames=100, init_random_frames=50
    )
    assert set(batches[0].keys(True, True)) == set(batches[1].keys(True, True))
    assert 0 < batches[0]["action"][:, 1].sum() < 50
    assert not batches[1]["action"][:, 1].any()
    assert batches[0]["action_log_prob"].isnan().all()
    assert (batches[0]["value"] == batches[0]["observation"][:, 0] + 1).all()


def test_random_frames_follow_a_part_of_the_policy_that_was_replaced():
    def part(value):
        return TensorDictModule(
            lambda obs: (torch.tensor([True, False]), torch.full_like(obs[..., 0], value)),
            ["observation"],
            ["action", "value"],
        )

    policy = TensorDictSequential(part(1.0))
    collector = Collector(
        CountingEnv(), policy, frames_per_batch=5, total_frames=20, init_random_frames=20
    )
    assert collector.next()["value"].eq(1).all()
    policy.module[0] = part(2.0)
    assert collector.next()["value"].eq(2).all()
    collector.shutdown()


@pytest.mark.parametrize("make", [CountingEnv, lambda: GymEnv("CartPole-v1")], ids=["own", "gym"])
@pytest.mark.parametrize("is_hooked", [False, True])
def test_random_frames_follow_a_part_that_writes_other_entries(make, is_hooked):
    def part(size, key):
        layer = torch.nn.Linear(env.observation_spec["observation"].shape[-1], size)
        return TensorDictModule(layer, ["observation"], [key])

    env = make()
    act = TensorDictModule(lambda _: torch.tensor([True, False]), ["observation"], ["action"])
    policy = TensorDictSequential(part(2, "former"), act)
    collector = Collector(env, policy, frames_per_batch=5, total_frames=20, init_random_frames=15)
    assert collector.next()["former"].shape == (5, 2)
    policy.module[0] = part(3, "other")
    if is_hooked:
        policy.module[0].register_forward_hook(lambda *_: None)
    for _ in range(3):  # the last one is the policy's
        assert collector.next()["other"].shape == (5, 3)
    collector.shutdown()


def test_trajectories_can_be_limited():
    batch = collected(
        CountingEnv(max_steps=9), frames_per_batch=5, total_frames=5, max_frames_per_traj=2
    )[0]
    assert batch["next", "truncated"].flatten().tolist() == [False, True, False, True, False]
    assert batch["collector", "traj_step"].tolist() == [0, 1, 0, 1, 0]


def test_complete_trajectories_are_returned_by_count():
    batches = collected(cart_poles(), frames_per_batch=30, total_frames=900, trajs_per_batch=4)
    for batch in batches[:-1]:
        assert batch.ndim == 1
        assert len(Segments.of(batch)) == 4
        assert batch["next", "done"][-1].item()
        assert (batch["collector", "traj_step"] == Segments.of(batch).positions).all()
    rows = torch.cat(batches)
    keys = rows["collector", "traj_ids"] * 1000 + rows["collector", "traj_step"]
    assert len(keys.unique()) == len(keys)


def test_unfinished_trajectories_come_last_as_truncations():
    env = SerialEnv(2, [lambda: CountingEnv(3), lambda: CountingEnv(50)])
    options = {"frames_per_batch": 8, "total_frames": 24, "trajs_per_batch": 2}
    collector = Collector(env, **options)
    batches = list(collector)
    rows = torch.cat(batches)
    assert len(rows) == 24
    assert [len(Segments.of(batch)) for batch in batches] == [2, 2, 1]
    assert rows["observation"][-12:].flatten().tolist() == list(range(12))
    assert rows["next", "truncated"].flatten().tolist() == [False] * 23 + [True]
    following = collector.rollout()  # the environment continues, under a new id
    assert following["observation"][1].flatten().tolist() == [12, 13, 14, 15]
    assert following["is_init"][1, 0]
    assert following["collector", "traj_step"][1].tolist() == [0, 1, 2, 3]
    assert following["collector", "traj_ids"][1, 0] not in rows["collector", "traj_ids"]


def test_a_buffer_gets_whole_trajectories_and_the_rest_as_truncations():
    buffer, env = Buffer(), SerialEnv(2, [lambda: CountingEnv(3), lambda: CountingEnv(50)])
    options = {"frames_per_batch": 8, "total_frames": 24, "trajs_per_batch": 1}
    collector = Collector(env, replay_buffer=buffer, **options)
    assert list(collector) == [None, None, None]
    assert [len(batch) for batch in buffer] == [3, 3, 6]
    collector.shutdown()
    assert buffer[-1]["observation"].flatten().tolist() == list(range(12))
    assert buffer[-1]["next", "truncated"].flatten().tolist() == [False] * 11 + [True]
    assert sum(len(batch) for batch in buffer) == 24


def test_unfinished_trajectories_are_cut_at_the_bound():
    buffer = Buffer()
    collector = Collector(
        CountingEnv(max_steps=100),
        frames_per_batch=4,
        total_frames=16,
        trajs_per_batch=1,
        max_unfinished_frames=7,
        replay_buffer=buffer,
    )
    list(collector)
    collector.shutdown()
    rows = torch.cat(list(buffer))
    assert rows["observation"].flatten().tolist() == list(range(16))
    assert rows["next", "truncated"].flatten().nonzero().flatten().tolist() == [7, 15]
    assert rows["collector", "traj_step"].tolist() == [*range(8), *range(8)]
    assert rows["is_init"].flatten().nonzero().flatten().tolist() == [0, 8]
    assert not check_layout(rows).errors


def test_a_reset_between_batches_joins_no_two_trajectories():
    collector = Collector(
        CountingEnv(max_steps=5), frames_per_batch=3, total_frames=12, trajs_per_batch=1
    )
    assert collector.next()["observation"].flatten().tolist() == [0, 1, 2, 3, 4]
    collector.reset()
    piece, whole = collector.next(), collector.next()
    assert piece["observation"].flatten().tolist() == [0]
    assert piece["next", "truncated"].item()
    assert whole["observation"].flatten().tolist() == [0, 1, 2, 3, 4]


def test_a_buffer_gets_batches_and_the_caller_none():
    buffer = Buffer()
    options = {"frames_per_batch": 6, "total_frames": 12, "replay_buffer": buffer}
    assert list(Collector(cart_poles(2), **options)) == [None, None]
    assert [batch.shape for batch in buffer] == [(2, 3), (2, 3)]


def test_steps_can_be_written_one_by_one():
    buffer = Buffer()
    options = {"frames_per_batch": 4, "total_frames": 8, "replay_buffer": buffer}
    list(Collector(CountingEnv(max_steps=3), extend_buffer=False, **options))
    rows = torch.stack(list(buffer))
    assert rows["observation"].flatten().tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert rows["collector", "traj_step"].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert [step.shape for step in buffer] == [()] * 8


def test_next_observations_can_be_left_out():
    env = SerialEnv(2, [CountingEnv] * 2)
    full = collected(env, Memory(), frames_per_batch=8, total_frames=8)[0]
    env = SerialEnv(2, [CountingEnv] * 2)
    options = {"frames_per_batch": 8, "total_frames": 8, "compact_obs": True}
    batch = collected(env, Memory(), **options)[0]
    gone = full.exclude(("next", "observation"), ("next", "hidden"), ("next", "is_init"))
    assert set(batch.keys(True, True)) == set(gone.keys(True, True))


def test_hooks_see_what_is_handed_out_and_their_errors_come_through():
    seen = []
    batches = collected(
        CountingEnv(max_steps=9),
        frames_per_batch=3,
        total_frames=6,
        pre_collect_hook=lambda: seen.append("before"),
        post_collect_hook=lambda batch: seen.append(batch["twice"].sum().item()),
        postproc=lambda batch: batch.set("twice", batch["observation"] * 2),
    )
    assert seen == ["before", 6, "before", 24]
    assert batches[1]["twice"].flatten().tolist() == [6, 8, 10]

    def fails():
        raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        collected(CountingEnv(), frames_per_batch=3, total_frames=3, pre_collect_hook=fails)


def test_trajectories_can_be_padded():
    with pytest.warns(UserWarning, match="pads every batch"):
        batch = collected(CountingEnv(3), frames_per_batch=5, total_frames=5, split_trajs=True)[0]
    assert batch["collector", "mask"].tolist() == [[True] * 3, [True, True, False]]


def test_ids_can_be_left_out():
    batch = collected(CountingEnv(), frames_per_batch=2, total_frames=2, track_traj_ids=False)[0]
    assert ("collector", "traj_ids") not in batch.keys(True)
    assert batch["is_init"].flatten().tolist() == [True, False]


def test_rows_carry_the_version_of_the_weights_that_acted():
    collector = Collector(CountingEnv(), Memory(), frames_per_batch=2)
    batches = [collector.next()]
    collector.update_policy_weights_()
    batches += [collector.next()]
    assert torch.cat(batches)["collector", "policy_version"].tolist() == [0, 0, 1, 1]


def test_new_weights_act_from_the_next_batch_on():
    policy = TensorDictModule(nn.Linear(1, 2, bias=False), ["observation"], ["action"])
    env = CountingEnv()
    env.check_values = False
    collector = Collector(env, policy, frames_per_batch=1)
    collector.update_policy_weights_({"module.weight": torch.full((2, 1), 3.0)})
    assert (policy.module.weight == 3).all()
    assert collector.policy_version == 1


def test_wrong_weights_are_refused_by_name_and_change_nothing():
    policy = TensorDictModule(nn.Linear(1, 2), ["observation"], ["action"])
    collector = Collector(CountingEnv(), policy, frames_per_batch=1)
    before = {name: leaf.clone() for name, leaf in policy.state_dict().items()}
    weight, bias = torch.full((2, 1), 3.0), torch.ones(2)
    for wrong, message in [
        ({"module.weight": weight}, r"'module\.bias': expected float32 \[2\], got nothing"),
        ({"module.weight": weight, "module.bias": weight}, r"float32 \[2\], got float32 \[2, 1\]"),
        ({"module.weight": weight, "module.bias": bias.cfloat()}, r"\[2\], got complex64 \[2\]"),
        ({"module.weight": weight, "module.bias": bias, "x": bias}, r"\['x'\] are none of its"),
    ]:
        with pytest.raises(ValueError, match=message):
            collector.update_policy_weights_(wrong)
        assert all(torch.equal(leaf, before[name]) for name, leaf in policy.state_dict().items())
    assert collector.policy_version == 0


def test_weights_of_modules_that_have_no_sizes_yet_are_loaded():
    policy = TensorDictModule(nn.LazyLinear(2), ["observation"], ["action"])
    collector = Collector(CountingEnv(), policy, frames_per_batch=1)
    with pytest.raises(ValueError, match=r"'module\.bias': expected one, got nothing"):
        collector.update_policy_weights_({"module.weight": torch.ones(2, 1)})
    weights = {"module.weight": torch.ones(2, 1), "module.bias": torch.ones(2)}
    collector.update_policy_weights_(weights)
    assert torch.equal(policy.module.weight, weights["module.weight"])


@pytest.mark.parametrize("trajs_per_batch", [None, 2])
def test_a_saved_collector_goes_on_bit_for_bit(trajs_per_batch):
    options = {"frames_per_batch": 30, "trajs_per_batch": trajs_per_batch}
    torch.manual_seed(3)
    collector = Collector(cart_poles(), sampled, **options)
    collector.set_seed(0)
    for _ in range(3):
        collector.next()
    state = collector.state_dict()
    expected = [collector.next() for _ in range(3)]
    other = Collector(cart_poles(), sampled, **options)
    torch.manual_seed(99)
    other.load_state_dict(state)
    for batch in expected:
        assert (other.next() == batch).all()
    assert other.frames == collector.frames
    assert other.stats()["episodes"] == collector.stats()["episodes"]


@pytest.mark.parametrize("part", ["env", "policy", "batches", "random"])
def test_a_state_that_does_not_fit_changes_nothing(part):
    options = {"frames_per_batch": 6}
    torch.manual_seed(3)
    saved = Collector(cart_poles(), weighted(), **options)
    saved.next()
    state = saved.state_dict()
    state[part] = dict(list(state[part].items())[1:]) if isinstance(state[part], dict) else None
    collector = Collector(cart_poles(), weighted(), **options)
    collector.set_seed(0)
    collector.next()
    before = collector.state_dict()
    expected = collector.next()
    collector.load_state_dict(before)
    with pytest.raises((KeyError, RuntimeError, ValueError, TypeError)):
        collector.load_state_dict(state)
    assert (collector.next() == expected).all()
    assert collector.frames == 12


def test_a_saved_collector_can_be_written_without_code(tmp_path):
    collector = Collector(CountingEnv(max_steps=5), Memory(), frames_per_batch=3)
    collector.next()
    torch.save(collector.state_dict(), tmp_path / "state")
    other = Collector(CountingEnv(max_steps=5), Memory(), frames_per_batch=3)
    other.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    assert other.next()["observation"].flatten().tolist() == [3, 4, 0]


def test_collecting_in_the_background_stops_when_it_is_told():
    buffer = Buffer()
    collector = Collector(CountingEnv(10**6), frames_per_batch=2, replay_buffer=buffer)
    collector.start()
    while len(buffer) < 3:
        pass
    collector.shutdown()
    count = len(buffer)
    assert not collector.is_running
    rows = torch.cat(list(buffer))
    assert rows["collector", "traj_step"].tolist() == list(range(2 * count))


def test_iteration_is_refused_during_background_collection():
    collector = Collector(CountingEnv(10**6), frames_per_batch=2, replay_buffer=Buffer())
    collector.start()
    for call in (collector.next, lambda: next(iter(collector))):
        with pytest.raises(RuntimeError, match="runs in the background"):
            call()
    with pytest.raises(RuntimeError, match="already"):
        collector.start()
    collector.shutdown()


class Twice(nn.Module):
    """Reads its weight twice in a step, and writes down both."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, observation):
        return torch.tensor([True, False]), self.weight.clone(), self.weight.clone()


def test_calls_during_background_collection_run_between_two_batches():
    acting = TensorDictModule(Twice(), ["observation"], ["action", "first", "second"])
    buffer = Buffer()
    options = {"frames_per_batch": 5, "replay_buffer": buffer}
    collector = Collector(CountingEnv(10**6), acting, **options)
    collector.start()
    for number in range(1, 30):
        before = len(buffer)
        collector.update_policy_weights_({"module.weight": torch.full((1,), float(number))})
        while len(buffer) < before + 2:
            pass
        if number % 10 == 0:
            collector.reset()
        assert collector.stats()["frames"] % 5 == 0
        assert collector.state_dict()["batches"]["frames"] % 5 == 0
    collector.shutdown()
    rows = torch.cat(list(buffer))
    versions = rows["collector", "policy_version"].unsqueeze(-1).float()
    assert torch.equal(rows["first"], versions)
    assert torch.equal(rows["second"], versions)
    assert set(versions.flatten().tolist()) == set(map(float, range(30)))
    assert len(rows["collector", "traj_ids"].unique()) == 3
    assert not check_layout(rows).errors


def test_calls_after_background_collection_run_in_the_caller():
    options = {"frames_per_batch": 2, "total_frames": 4, "replay_buffer": Buffer()}
    collector = Collector(CountingEnv(), **options)
    collector.start()
    while collector.is_running:
        pass
    assert collector.stats()["frames"] == 4
    collector.wait()
    assert collector.next() is None


def test_an_error_in_the_background_reaches_the_caller():
    collector = Collector(RaisingEnv(at_step=3), frames_per_batch=2, replay_buffer=Buffer())
    collector.start()
    with pytest.raises(ZeroDivisionError, match="always fails"):
        collector.wait()
    assert collector.stats()["frames"] == 2
    collector.start()  # the environment is reset, and fails again
    with pytest.raises(ZeroDivisionError, match="always fails"):
        collector.wait()


def test_the_caller_may_change_a_batch():
    collector = Collector(CountingEnv(max_steps=9), Memory(), frames_per_batch=3)
    collector.next().zero_()
    assert collector.next()["hidden"].flatten().tolist() == [3, 4, 5]


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
        collector.stats,
        collector.state_dict,
        collector.update_policy_weights_,
        lambda: collector.set_seed(0),
        lambda: collector.load_state_dict(state),
        lambda: next(iter(collector)),
    ):
        with pytest.raises(RuntimeError, match="shut down"):
            call()
    assert collector.env.is_closed


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


def test_a_policy_that_reads_what_is_not_there_is_refused_at_once():
    policy = TensorDictModule(nn.Linear(1, 2), ["pixels"], ["action"])
    with pytest.raises(KeyError, match="pixels"):
        Collector(CountingEnv(), policy, frames_per_batch=2)
    with pytest.raises(KeyError, match="hidden"):
        Collector(
            CountingEnv(), Memory(), frames_per_batch=2, auto_register_policy_transforms=False
        )


def test_the_name_of_the_seeds_is_an_alias():
    assert SyncDataCollector is Collector


def test_the_repr_says_how_far_it_is():
    collector = Collector(CountingEnv(), frames_per_batch=4)
    collector.next()
    assert "4 frames a batch, 4 of any number played" in repr(collector)


def test_nothing_warns_without_a_reason():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        collected(cart_poles(), sampled, frames_per_batch=30, total_frames=60)


def test_a_plain_module_takes_weights_under_its_own_names():
    net, other = nn.Linear(1, 2), nn.Linear(1, 2)
    collector = Collector(CountingEnv(), net, frames_per_batch=3)
    collector.update_policy_weights_(other)
    assert (net.weight == other.weight).all()
    assert collector.state_dict()["policy"].keys() == net.state_dict().keys()
    collector.update_policy_weights_(TensorDictModule(nn.Linear(1, 2), ["a"], ["b"]))
    assert (net.weight != other.weight).any()


@pytest.mark.parametrize("make", [cart_poles, lambda: GymEnv("CartPole-v1")])
def test_the_random_step_of_an_environment_is_a_policy_of_random_actions(make):
    env = make()
    found = collected(env, env.rand_step, frames_per_batch=30, total_frames=60)
    expected = collected(make(), None, frames_per_batch=30, total_frames=60)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one["observation"], other["observation"])
        assert torch.equal(one["action"], other["action"])


class FirstAction(nn.Module):
    """Takes an action by the sign of one weight."""

    def __init__(self, weight=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, observation):
        first = (self.weight > 0).expand(observation.shape)
        return torch.cat([first, ~first], -1)


def first_action(weight=1.0):
    return TensorDictModule(FirstAction(weight), ["observation"], ["action"])


@pytest.mark.parametrize("make", [FirstAction, first_action])
def test_a_compiled_policy_acts_and_takes_weights_of_a_plain_one_and_gives_them(make):
    plain, weak = make(), make(-1.0)
    compiled = torch.compile(plain, backend="eager")
    collector = Collector(CountingEnv(), compiled, frames_per_batch=3)
    assert collector.next()["action"][:, 0].all()
    for weights in (weak, weak.state_dict(), torch.compile(weak, backend="eager")):
        collector.update_policy_weights_(make())
        collector.update_policy_weights_(weights)
        assert not collector.next()["action"][:, 0].any()
    saved = collector.state_dict()
    other = Collector(CountingEnv(), make(), frames_per_batch=3)
    other.load_state_dict(saved)  # whichever of them is compiled
    assert torch.equal(other.next()["action"], collector.next()["action"])


def test_a_compiled_recurrent_policy_gets_its_primer():
    compiled = torch.compile(Memory(), backend="eager")
    batch = Collector(CountingEnv(max_steps=3), compiled, frames_per_batch=4).next()
    assert batch["hidden"].flatten().tolist() == [0, 1, 2, 0]


def test_the_keys_of_a_compiled_policy_are_checked():
    policy = TensorDictModule(FirstAction(), ["pixels"], ["action"])
    with pytest.raises(KeyError, match=r"the policy reads .*pixels"):
        Collector(CountingEnv(), torch.compile(policy, backend="eager"), frames_per_batch=4)


class TwoRewards(GroupsEnv):
    """Groups that gain the number of their step, the second a hundred times as much."""

    def _step(self, tensordict):
        after = super()._step(tensordict)
        for name, scale in (("first", 1.0), ("second", 100.0)):
            after.set((name, "reward"), scale * after[name, "observation"])
        return after


def test_the_returns_of_several_rewards_are_those_of_their_own_steps():
    env = TwoRewards({"first": 2, "second": 2})
    collector = Collector(env, frames_per_batch=5)
    batch = collector.next()
    assert collector.stats()["episodes"] == 2
    assert collector.stats()["mean_length"] == 2
    assert collector.stats()["mean_return"] == 303
    episodes = collector.state_dict()["batches"]["episodes"]
    assert [one for one, _ in episodes["recent"]] == [303, 303]
    assert episodes["return"].tolist() == [101]  # of the step that a next batch continues
    assert batch["next", "second", "reward"].flatten().tolist() == [100, 200, 100, 200, 100]


IN_PLACE = "steps: in place: the environment writes its rows into the columns of the batch"


@pytest.mark.parametrize(
    ("make", "policy", "expected"),
    [
        (lambda: GymEnv("CartPole-v1"), None, [IN_PLACE, "policy: none, actions are drawn"]),
        (
            lambda: SerialEnv(2, lambda: GymEnv("Pendulum-v1")),
            lambda: TensorDictModule(nn.Linear(3, 1), ["observation"], ["action"]),
            [IN_PLACE, "policy: flattened into 1 calls on tensors"],
        ),
        (
            lambda: GymEnv("Pendulum-v1"),
            lambda: lambda root: root.set("action", root["observation"][:1]),
            [IN_PLACE, "policy: called through tensordicts: "],
        ),
        (
            CountingEnv,
            None,
            ["steps: through tensordicts: CountingEnv writes no rows itself", "policy: none"],
        ),
    ],
    ids=["random", "module", "callable", "tensordicts"],
)
def test_a_collector_explains_how_steps_are_taken_and_the_policy_is_called(make, policy, expected):
    collector = Collector(make(), policy and policy(), frames_per_batch=4)
    for _ in range(2):
        for line, start in zip(collector.explain().splitlines(), expected, strict=True):
            assert line.startswith(start), line
        collector.next()
