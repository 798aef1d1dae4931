import pickle

import pytest
import torch

from rl_envs import GymEnv, Pendulums, SerialEnv, TransformedEnv, check_env_specs
from rl_envs.rollouts.deferred_transforms import defer_independent
from rl_envs.testing import CountingEnv, EpisodeStepEnv, MultiAgentEnv, check_conformance
from rl_specs import Unbounded
from rl_transforms import (
    Compose,
    DTypeCastTransform,
    InitTracker,
    ObservationNorm,
    RenameTransform,
    RewardClipping,
    RewardScaling,
    RewardSum,
    SelectTransform,
    StepCounter,
    TensorDictPrimer,
    Transform,
)


def tracked(env):
    return TransformedEnv(env, Compose(InitTracker(), StepCounter(max_steps=3), RewardSum()))


@pytest.mark.parametrize(
    "make",
    [
        lambda: tracked(EpisodeStepEnv(batch_size=(2,))),
        lambda: tracked(GymEnv("CartPole-v1")),
        lambda: TransformedEnv(
            MultiAgentEnv(3, batch_size=(2,)), Compose(InitTracker(), StepCounter(max_steps=3))
        ),
        lambda: tracked(SerialEnv(2, lambda: tracked(CountingEnv()))),
        lambda: TransformedEnv(
            SerialEnv(3, lambda: GymEnv("Pendulum-v1")),
            DTypeCastTransform(torch.float32, torch.float64, ["observation"]),
        ),
        lambda: TransformedEnv(CountingEnv(), RenameTransform(["observation"], ["seen"])),
    ],
    ids=["scripted", "gym", "agents", "twice", "cast", "rename"],
)
def test_transformed_environments_keep_every_promise(make):
    check_conformance(make)


def test_rows_truncated_by_a_transform_are_reset():
    batch = tracked(EpisodeStepEnv([(9, "terminated")])).rollout(7, break_when_any_done=False)
    assert batch["observation"].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [2, 0]]
    assert batch["next", "observation"][2].tolist() == [0, 3]
    assert batch["is_init"].flatten().tolist() == [True, False, False] * 2 + [True]
    assert batch["next", "step_count"].flatten().tolist() == [1, 2, 3, 1, 2, 3, 1]


def test_rows_that_go_on_keep_what_they_carried():
    env = tracked(EpisodeStepEnv([(1, "terminated"), (9, "terminated")], batch_size=(2,)))
    _, root = env.step_and_maybe_reset(env.rand_action(env.reset()))
    assert root["is_init"].flatten().tolist() == [True, False]
    assert root["step_count"].flatten().tolist() == [0, 1]
    assert root["episode_reward"].flatten().tolist() == [0, 1]


class Shift(Transform):
    def apply_leaf(self, value):
        return value + 10


def test_a_leaf_is_transformed_once_also_in_rows_that_go_on():
    env = EpisodeStepEnv([(1, "terminated"), (9, "terminated")], batch_size=(2,))
    env = TransformedEnv(env, Shift(["observation"]))
    _, root = env.step_and_maybe_reset(env.rand_action(env.reset()))
    assert root["observation"].tolist() == [[12, 10], [11, 11]]


def test_nested_environments_are_taken_apart():
    inner = TransformedEnv(CountingEnv(), InitTracker())
    env = TransformedEnv(inner, Compose(StepCounter(), Compose(RewardSum())))
    assert isinstance(env.base_env, CountingEnv)
    names = [type(one).__name__ for one in env.transforms]
    assert names == ["InitTracker", "StepCounter", "RewardSum"]


def test_actions_pass_in_reverse():
    class Half(Transform):
        def invert_leaf(self, value):
            return value / 2

    env = TransformedEnv(GymEnv("Pendulum-v1"), Half(in_keys_inv=["action"]))
    env.base_env.set_seed(0)
    seen = []
    inner = env.base_env.env.unwrapped
    for native in (True, False):
        env.native_rows = native
        env.rollout(1, lambda root: root.set("action", torch.ones(1)))
        seen.append(float(inner.last_u))
    assert seen == [0.5, 0.5]


def test_a_select_cannot_drop_what_the_policy_wrote():
    primer = TensorDictPrimer(hidden=Unbounded((3,)), expand_specs=True)
    env = TransformedEnv(GymEnv("CartPole-v1"), Compose(SelectTransform("observation"), primer))

    def policy(root):
        root["next", "hidden"] = root["hidden"] + 1
        return env.rand_action(root)

    for native in (True, False):
        env.native_rows = native
        hidden = env.rollout(3, policy)["hidden"]
        assert hidden[:, 0].tolist() == [0, 1, 2]


def test_a_callable_is_a_transform():
    env = TransformedEnv(CountingEnv(), lambda td: td.set("twice", td["observation"] * 2))
    assert env.rollout(2)["next", "twice"].flatten().tolist() == [2, 4]


def test_an_entry_without_a_spec_is_warned_of_where_rollouts_leave_it_out():
    env = TransformedEnv(GymEnv("CartPole-v1"), lambda td: td.set("twice", td["observation"] * 2))
    with pytest.warns(UserWarning, match="'twice'.* no spec.*native_rows = False"):
        assert "twice" not in env.rollout(2)
    env.native_rows = False  # warnings are errors here
    batch = env.rollout(2)
    assert torch.equal(batch["twice"], batch["observation"] * 2)


def test_places_are_checked():
    env = TransformedEnv(CountingEnv())
    with pytest.raises(IndexError, match="from 0 to 0: got 3"):
        env.insert_transform(3, InitTracker())

    class Nowhere(Transform):
        places = frozenset({"buffer"})

    with pytest.raises(ValueError, match="Nowhere cannot sit in an environment"):
        env.append_transform(Nowhere())
    assert len(env.transforms) == 0


def test_a_new_transform_needs_a_reset():
    env = TransformedEnv(CountingEnv())
    root = env.reset()
    env.append_transform(StepCounter())
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        env.rand_step(root)


def test_state_holds_the_environment_and_the_transforms():
    env, other = (tracked(EpisodeStepEnv()) for _ in range(2))
    env.rollout(2)
    other.load_state_dict(env.state_dict())
    assert other.reset()["observation"].tolist() == env.reset()["observation"].tolist()


def test_closing_closes_the_environment_inside():
    env = tracked(CountingEnv())
    env.close()
    assert env.base_env.is_closed


def test_an_environment_that_goes_on_needs_a_reset_behind_new_transforms():
    base = CountingEnv()
    root = base.reset()
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        TransformedEnv(base, StepCounter()).rand_step(root)


class StartingWhereToldEnv(CountingEnv):
    """Counts on from the `start` that a reset is given."""

    def _reset(self, tensordict):
        root = super()._reset(tensordict)
        if tensordict is not None:
            mask = tensordict.get("_reset", torch.ones(*self.batch_size, 1, dtype=torch.bool))
            start = tensordict["start"].long()
            self._count = torch.where(mask.squeeze(-1), start.squeeze(-1), self._count)
            root = root.set("observation", self._count.float().unsqueeze(-1))
        return root


def test_a_primer_can_tell_the_environment_where_to_start():
    primer = TensorDictPrimer(
        start=Unbounded((3, 1)), default_value=2.0, call_before_env_reset=True
    )
    env = TransformedEnv(StartingWhereToldEnv(4, batch_size=(3,)), primer)
    root = env.reset()
    assert root["observation"].flatten().tolist() == [2, 2, 2]
    assert root["start"].flatten().tolist() == [2, 2, 2]
    batch = env.rollout(5, break_when_any_done=False)
    assert batch["observation"][0].flatten().tolist() == [2, 3, 2, 3, 2]
    assert (batch["start"] == 2).all()


@pytest.mark.parametrize(
    ("successor", "waits"),
    [
        (StepCounter(5), True),
        (InitTracker(), True),
        (Shift(["observation"]), True),
        (Shift(["reward"], ["shifted"]), False),
        (RenameTransform(["observation"], ["seen"]), False),
        (SelectTransform("observation"), False),
        (StepCounter(5, step_count_key="reward"), False),
        (DTypeCastTransform(torch.float32, torch.float64, ["observation"]), True),
        (DTypeCastTransform(torch.float32, torch.float64), False),
    ],
    ids=["limit", "mark", "apart", "same", "rename", "select", "own", "cast", "cast all"],
)
def test_transforms_whose_keys_no_later_one_reads_are_deferred(successor, waits):
    scaling = RewardScaling(0.0, 2.0)
    stepping, waiting = defer_independent([scaling, successor], [RewardSum()])
    assert stepping == ([successor] if waits else [scaling, successor])
    assert [type(one).__name__ for one in waiting][-1] == "RewardSum"
    assert (scaling in waiting) == waits


def test_order_is_kept_among_those_that_wait():
    first, second = RewardScaling(1.0, 2.0), RewardScaling(3.0, 4.0)
    count = StepCounter(5)
    assert defer_independent([first, count, second], []) == ([count], [first, second])
    assert defer_independent([first, Shift(["reward"]), second], [])[1] == [second]


def test_transforms_by_position_are_composed_in_order():
    env = TransformedEnv(CountingEnv(9), RewardScaling(0, 3.0), RewardSum(), StepCounter(2))
    assert [type(one).__name__ for one in env.transforms] == [
        "RewardScaling",
        "RewardSum",
        "StepCounter",
    ]
    assert env.rollout(5)["next", "episode_reward"].flatten().tolist() == [3, 6]


def test_a_transform_by_name_comes_last():
    env = TransformedEnv(CountingEnv(9), RewardSum(), transform=StepCounter(2))
    assert [type(one).__name__ for one in env.transforms] == ["RewardSum", "StepCounter"]


def test_none_is_accepted_for_no_transform():
    assert len(TransformedEnv(CountingEnv(), None).transforms) == 0


def without_done(env):
    return TransformedEnv(env, StepCounter(3, update_done=False))


@pytest.mark.parametrize(
    "make",
    [
        lambda: without_done(CountingEnv(5)),
        lambda: without_done(GymEnv("CartPole-v1")),
        lambda: without_done(SerialEnv(2, lambda: CountingEnv(5))),
        lambda: SerialEnv(2, lambda: without_done(CountingEnv(5))),
        lambda: SerialEnv(2, lambda: without_done(GymEnv("CartPole-v1"))),
        lambda: TransformedEnv(without_done(CountingEnv(5)), RewardSum()),
        lambda: without_done(Pendulums(2, max_steps=5)),
    ],
    ids=["alone", "in place", "around", "inside", "inside, in place", "nested", "on tensors"],
)
def test_a_count_that_sets_no_done_flag_lets_the_trajectory_go_on(make):
    env = make()
    batch = env.rollout(4, break_when_any_done=False)
    flags = {name: batch["next", name].reshape(-1, 4) for name in ("truncated", "done")}
    assert flags["truncated"].tolist() == [[False, False, True, True]] * len(flags["done"])
    assert not flags["done"].any()
    assert batch["next", "step_count"].reshape(-1, 4)[0].tolist() == [1, 2, 3, 4]


def test_a_count_that_sets_no_done_flag_goes_on_beside_rows_that_are_reset():
    env = without_done(SerialEnv(2, [lambda: CountingEnv(2), lambda: CountingEnv(9)]))
    batch = env.rollout(6, break_when_any_done=False)
    assert batch["next", "truncated"][1, :, 0].tolist() == [False] * 2 + [True] * 4
    assert batch["next", "step_count"][:, :, 0].tolist() == [
        [1, 2, 1, 2, 1, 2],
        [1, 2, 3, 4, 5, 6],
    ]


def test_flags_must_agree_where_no_such_count_sets_them():
    def contradict(step):
        return step.set("truncated", torch.ones(1, dtype=torch.bool)) if "reward" in step else step

    assert not without_done(CountingEnv(5)).flags_agree
    with pytest.raises(ValueError, match="must be terminated or truncated"):
        TransformedEnv(CountingEnv(5), contradict, StepCounter(update_done=False)).rollout(2)


@pytest.mark.parametrize("update_done", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda limit: TransformedEnv(CountingEnv(9), limit),
        lambda limit: TransformedEnv(CountingEnv(9, batch_size=(2,)), limit),
        lambda limit: TransformedEnv(GymEnv("CartPole-v1"), limit),
        lambda limit: TransformedEnv(MultiAgentEnv(3, batch_size=(2,)), limit),
    ],
    ids=["one", "two", "gym", "agents"],
)
def test_a_limit_of_its_own_name_is_an_observation_and_ends_as_told(make, update_done):
    limited = lambda: make(StepCounter(3, truncated_key="limit", update_done=update_done))  # noqa: E731
    check_conformance(limited)
    env = limited()
    assert env.flags_agree
    batch = env.rollout(4, break_when_any_done=False)
    group = () if "limit" in batch else ("agents",)
    assert not batch[(*group, "limit")].select(len(env.batch_size), 0).any()
    marks, done = (batch[("next", *group, name)] for name in ("limit", "done"))
    assert marks.select(len(env.batch_size), 2).all()
    assert not marks.narrow(len(env.batch_size), 0, 2).any()
    assert done.select(len(env.batch_size), 2).all() == update_done


@pytest.mark.parametrize(
    "make",
    [
        lambda: CountingEnv(5),
        lambda: GymEnv("Pendulum-v1"),
        lambda: SerialEnv(2, lambda: CountingEnv(5)),
    ],
    ids=["alone", "gym", "serial"],
)
def test_a_clipped_reward_is_bounded_in_every_spec_of_rewards(make):
    env = TransformedEnv(make(), RewardClipping(-0.5, 0.5))
    for spec in (env.reward_spec, env.full_reward_spec["reward"]):
        assert spec.is_in(torch.full(spec.shape, 0.5))
        assert not spec.is_in(torch.full(spec.shape, 0.6))
    check_env_specs(env)


def test_statistics_are_those_of_rows_that_passed_the_transforms_in_front():
    double = ObservationNorm(0.0, 2.0)
    norm = ObservationNorm(standard_normal=True)
    env = TransformedEnv(CountingEnv(3), Compose(double, norm, StepCounter()))
    env.transform[1].init_stats(num_iter=(num_iter := 12))
    plain = CountingEnv(3).rollout(num_iter, break_when_any_done=False)["observation"] * 2
    assert norm.loc.item() == plain.mean()
    assert norm.scale.item() == pytest.approx(plain.std().item())
    seen = env.rollout(12, break_when_any_done=False)["observation"]
    torch.testing.assert_close(seen, (plain - plain.mean()) / plain.std())


def test_a_copy_of_a_transform_is_in_no_environment():
    norm = ObservationNorm()
    TransformedEnv(CountingEnv(), norm)
    copy = pickle.loads(pickle.dumps(norm))
    with pytest.raises(RuntimeError, match="there is none: pass rows"):
        copy.init_stats(5)
    with pytest.raises(RuntimeError, match="is gone: pass rows"):
        norm.init_stats(5)
