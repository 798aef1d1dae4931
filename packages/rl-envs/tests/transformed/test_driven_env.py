import pytest
import torch

from rl_envs import GymEnv, GymVectorEnv, ParallelEnv, SerialEnv, TransformedEnv
from rl_envs.testing import (
    CountingEnv,
    EpisodeStepEnv,
    GroupsEnv,
    MultiAgentEnv,
    NestedEnv,
    check_conformance,
)
from rl_envs.transformed.driven_env import DrivenEnv, row_effect
from rl_specs import Bounded, Unbounded
from rl_transforms import (
    Compose,
    EndOfLife,
    FrameSkip,
    InitTracker,
    NoopReset,
    RenameTransform,
    RewardClipping,
    RewardSum,
    StepCounter,
    TensorDictPrimer,
    TimeMaxPool,
    Transform,
)

ENDINGS = [(7, "terminated"), (4, "truncated"), (2, "terminated")]


def episodes(first=0):
    return EpisodeStepEnv(ENDINGS, first_episode=first)


def skipping(env, frames=3):
    return TransformedEnv(env, FrameSkip(frames))


def doing_nothing(env, noops=2, **given):
    return TransformedEnv(env, NoopReset(noops, **given))


MAKERS = {
    "one": lambda: skipping(episodes()),
    "rows": lambda: skipping(EpisodeStepEnv(ENDINGS, batch_size=(3,))),
    "serial": lambda: skipping(SerialEnv(3, episodes)),
    "gym": lambda: skipping(SerialEnv(2, lambda: GymEnv("CartPole-v1"))),
    "nested": lambda: skipping(NestedEnv(ENDINGS, batch_size=(2,))),
    "agents": lambda: skipping(MultiAgentEnv(2, ENDINGS, batch_size=(2,))),
    "noops": lambda: doing_nothing(SerialEnv(3, episodes), 3),
    "noops of one": lambda: doing_nothing(GymEnv("CartPole-v1"), 5),
    "both": lambda: TransformedEnv(
        SerialEnv(2, lambda: GymEnv("CartPole-v1")),
        Compose(
            TimeMaxPool(T=2),
            StepCounter(40),
            FrameSkip(3),
            NoopReset(4),
            InitTracker(),
            RewardSum(),
        ),
    ),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_driven_environments_keep_every_promise(make):
    check_conformance(make)


def test_rewards_of_skipped_frames_are_added_up_to_the_end():
    batch = skipping(EpisodeStepEnv([(7, "terminated"), (4, "truncated")])).rollout(
        5, break_when_any_done=False
    )
    assert batch["next", "reward"].flatten().tolist() == [1 + 2 + 3, 4 + 5 + 6, 7, 1 + 2 + 3, 4]
    assert batch["next", "observation"].tolist() == [[0, 3], [0, 6], [0, 7], [1, 3], [1, 4]]
    assert batch["observation"].tolist() == [[0, 0], [0, 3], [0, 6], [1, 0], [1, 3]]
    assert batch["next", "terminated"].flatten().tolist() == [False, False, True, False, False]
    assert batch["next", "truncated"].flatten().tolist() == [False] * 4 + [True]


@pytest.mark.parametrize("kind", ["serial", "rows"])
def test_rows_that_end_between_frames_stand_still(kind):
    base = SerialEnv(3, [lambda i=i: episodes(i) for i in range(3)])
    if kind == "rows":
        base = EpisodeStepEnv(ENDINGS, batch_size=(3,))
    batch = skipping(base).rollout(2, break_when_any_done=False)
    assert batch["next", "observation"][:, 0].tolist() == [[0, 3], [1, 3], [2, 2]]
    assert batch["next", "reward"][:, 0].flatten().tolist() == [6, 6, 1 + 2]
    assert batch["next", "observation"][:, 1, 1].tolist()[:2] == [6, 4]
    assert batch["next", "reward"][:, 1].flatten().tolist()[:2] == [4 + 5 + 6, 4]


@pytest.mark.parametrize("processes", [False, True])
def test_rows_of_transformed_environments_stand_still(processes):
    makers = [lambda i=i: TransformedEnv(episodes(i), RewardSum()) for i in range(3)]
    inside = ParallelEnv(3, makers, mp_start_method="fork") if processes else SerialEnv(3, makers)
    with skipping(inside) as env:
        batch = env.rollout(3, break_when_any_done=False)
    assert batch["next", "observation"][:, 0].tolist() == [[0, 3], [1, 3], [2, 2]]
    assert batch["next", "episode_reward"][:, :2].squeeze(-1).tolist() == [[6, 21], [6, 10], [3, 6]]
    assert batch["episode_reward"][:, 2].flatten().tolist() == [21, 0, 6]


def assert_alike(one, other):
    assert set(one.keys(True, True)) == set(other.keys(True, True))
    for key in one.keys(True, True):
        assert torch.equal(one[key], other[key]), key


def balanced(frames):
    """Around several CartPoles, which refuse steps after their end, or inside each."""
    around = skipping(SerialEnv(3, lambda: GymEnv("CartPole-v1")), frames)
    inside = SerialEnv(3, lambda: skipping(GymEnv("CartPole-v1"), frames))
    wrapped = SerialEnv(3, lambda: GymEnv("CartPole-v1", frame_skip=frames))
    return around, inside, wrapped


@pytest.mark.parametrize("frames", [1, 4])
def test_frame_skip_is_equal_around_inside_and_in_gymnasium(frames):
    batches = []
    for env in balanced(frames):
        env.set_seed(3)
        torch.manual_seed(3)
        policy = env.rand_action  # drawn step by step, whatever the environment is
        batches.append(
            env.rollout(40, lambda root, act=policy: act(root), break_when_any_done=False)
        )
    assert batches[0]["next", "done"].any()
    for other in batches[1:]:
        assert_alike(batches[0], other)


def test_processes_hold_their_rows():
    def make():
        return GymEnv("CartPole-v1")

    batches = []
    with ParallelEnv(2, make, mp_start_method="fork") as parallel:
        for base in (SerialEnv(2, make), parallel):
            env = TransformedEnv(base, Compose(FrameSkip(4), NoopReset(5)))
            env.set_seed(1)
            torch.manual_seed(1)
            batches.append(
                env.rollout(30, lambda root, e=env: e.rand_action(root), break_when_any_done=False)
            )
    assert batches[0]["next", "done"].any()
    assert_alike(*batches)


def test_transforms_in_front_see_each_frame_and_those_behind_each_step():
    env = EpisodeStepEnv([(9, "terminated")])
    changes = Compose(
        StepCounter(step_count_key="frames"), RewardClipping(0, 2), FrameSkip(4), StepCounter()
    )
    batch = TransformedEnv(env, changes).rollout(3)
    assert batch["next", "frames"].flatten().tolist() == [4, 8, 9]
    assert batch["next", "step_count"].flatten().tolist() == [1, 2, 3]
    assert batch["next", "reward"].flatten().tolist() == [1 + 2 + 2 + 2, 8, 2]


def test_a_limit_in_front_counts_frames():
    env = TransformedEnv(CountingEnv(99), Compose(StepCounter(5), FrameSkip(4)))
    batch = env.rollout(9)
    assert batch["next", "reward"].flatten().tolist() == [4, 1]
    assert batch["next", "truncated"].flatten().tolist() == [False, True]


def test_the_pool_in_front_has_the_last_two_frames():
    class Blinking(EpisodeStepEnv):
        def _show(self):
            seen = super()._show()
            dark = (self._count % 2 == 1).unsqueeze(-1)
            return seen.set("observation", seen["observation"].masked_fill(dark, -1))

    env = TransformedEnv(Blinking([(6, "terminated")]), Compose(TimeMaxPool(T=2), FrameSkip(3)))
    assert env.rollout(2)["next", "observation"].tolist() == [[0, 2], [0, 6]]


def test_recurrent_state_survives_skipped_frames():
    primer = TensorDictPrimer(hidden=Unbounded((2,)), expand_specs=True)
    env = TransformedEnv(SerialEnv(2, episodes), Compose(FrameSkip(3), InitTracker(), primer))

    def policy(root):
        root["next", "hidden"] = root["hidden"] + 1
        return env.rand_action(root)

    batch = env.rollout(3, policy, break_when_any_done=False)
    assert batch["hidden"][0, :, 0].tolist() == [0, 1, 2]
    assert batch["is_init"][0].flatten().tolist() == [True, False, False]


class Watched(CountingEnv):
    """Notes each action that it is given."""

    def __init__(self, max_steps=5):
        super().__init__(max_steps)
        self.given = []

    def _step(self, tensordict):
        self.given.append(tensordict["action"].tolist())
        return super()._step(tensordict)


def test_noops_follow_a_reset_and_are_in_no_rollout():
    env = TransformedEnv(
        Watched(), Compose(InitTracker(), StepCounter(), NoopReset(3, random=False))
    )
    batch = env.rollout(2, lambda root: root.set("action", torch.tensor([False, True])))
    assert env.base_env.given == [[True, False]] * 3 + [[False, True]] * 2
    assert batch["observation"].flatten().tolist() == [3, 4]
    assert batch["is_init"].flatten().tolist() == [True, False]
    assert batch["next", "step_count"].flatten().tolist() == [1, 2]
    assert batch["next", "done"].flatten().tolist() == [False, True]


def test_an_action_of_ones_own_does_nothing():
    right = torch.tensor([False, True])
    env = TransformedEnv(Watched(), NoopReset(2, random=False, noop_action=right))
    env.reset()
    assert env.base_env.given == [[False, True]] * 2


def test_an_episode_that_ends_in_the_noops_begins_anew():
    env = doing_nothing(EpisodeStepEnv([(2, "terminated"), (9, "terminated")]), 3, random=False)
    root = env.reset()
    assert root["observation"].tolist() == [1, 1]
    assert not root["done"].any()
    env = doing_nothing(EpisodeStepEnv([(3, "terminated"), (9, "terminated")]), 3, random=False)
    assert env.reset()["observation"].tolist() == [1, 0]


def test_partial_reset_leaves_other_rows_in_place():
    env = doing_nothing(
        SerialEnv(3, [lambda i=i: episodes(3 * i) for i in range(3)]), 2, random=False
    )
    root = env.reset()
    assert root["observation"].tolist() == [[0, 2], [3, 2], [6, 2]]
    _, root = env.step_and_maybe_reset(env.rand_action(root))
    again = env.reset(root.set("_reset", torch.tensor([[False], [True], [False]])))
    assert again["observation"].tolist() == [[0, 3], [4, 2], [6, 3]]
    assert [inner.state_dict()["state"]["count"].item() for inner in env.base_env.envs] == [3, 2, 3]


def test_random_noops_reach_every_number_and_only_those():
    env = doing_nothing(CountingEnv(99), 4)
    env.set_seed(0)
    found = {int(env.reset()["observation"]) for _ in range(80)}
    assert found == {1, 2, 3, 4}


def test_the_number_of_noops_is_seeded_saved_and_each_rows_own():
    def starts(env, times=6):
        return [env.reset()["observation"].flatten().tolist() for _ in range(times)]

    def make():
        return doing_nothing(SerialEnv(4, lambda: CountingEnv(99)), 30)

    one, other = make(), make()
    one.set_seed(5)
    other.set_seed(5)
    first = starts(one)
    assert first == starts(other)
    assert len(set(first[0])) > 1
    saved = one.state_dict()
    third = make()
    third.load_state_dict(saved)
    assert starts(one) == starts(third)
    fresh = make().state_dict()
    third.load_state_dict(fresh)


def test_seeds_differ_from_worker_to_worker():
    env = SerialEnv(6, lambda: doing_nothing(CountingEnv(99), 30))
    env.set_seed(0)
    assert len(set(env.reset()["observation"].flatten().tolist())) > 1


@pytest.mark.parametrize("name", ["one", "noops", "both"])
def test_a_saved_state_goes_on(name):
    env, other = MAKERS[name](), MAKERS[name]()
    env.set_seed(0)
    root = env.step_and_maybe_reset(env.rand_action(env.reset()))[1]
    other.load_state_dict(env.state_dict())
    for one in (env, other):
        torch.manual_seed(2)
        one.kept = one.rollout(12, auto_reset=False, tensordict=root, break_when_any_done=False)
    assert_alike(env.kept, other.kept)


def test_drivers_refuse_environments_that_cannot_pause_rows():
    rows = EpisodeStepEnv(ENDINGS, batch_size=(3,))
    with pytest.raises(ValueError, match="NoopReset needs rows that stand still"):
        doing_nothing(rows)
    with pytest.raises(ValueError, match="which those of GymVectorEnv cannot"):
        skipping(GymVectorEnv("CartPole-v1", 2, vectorization_mode="sync"))
    with pytest.raises(ValueError, match="a done flag at the root: GroupsEnv"):
        skipping(GroupsEnv())
    with ParallelEnv(2, episodes, num_processes=1, mp_start_method="fork") as shared:
        assert row_effect(shared) == "neither"
        with pytest.raises(ValueError, match="SerialEnv\\(n, lambda: TransformedEnv"):
            skipping(shared)


def test_two_skips_and_lives_in_front_of_one_are_refused():
    with pytest.raises(ValueError, match="Make them one"):
        TransformedEnv(episodes(), Compose(FrameSkip(2), FrameSkip(2)))

    class Lives(Transform):
        def transform_observation_spec(self, spec):
            spec = spec.clone()
            spec.set("lives", Unbounded((1,)))
            return spec

    with pytest.raises(ValueError, match="EndOfLife in front of FrameSkip"):
        TransformedEnv(episodes(), Compose(Lives(), EndOfLife(), FrameSkip(2)))


def test_actions_of_which_none_does_nothing_are_refused():
    with pytest.raises(ValueError, match=r"nothing says which 'action' does nothing.*noop_action="):
        doing_nothing(GymEnv("Pendulum-v1"))
    env = doing_nothing(GymEnv("Pendulum-v1"), noop_action=torch.zeros(1))
    assert env.reset()["observation"].shape == (3,)
    with pytest.raises(ValueError, match="is outside"):
        doing_nothing(GymEnv("Pendulum-v1"), noop_action=torch.full((1,), 9.0))
    with pytest.raises(ValueError, match=r"expected \[2\] or the last"):
        doing_nothing(CountingEnv(), noop_action=torch.zeros(2))


def test_the_bounds_of_rewards_grow_with_the_frames():
    class Paid(CountingEnv):
        def __init__(self):
            super().__init__(9)
            self.reward_spec = Bounded(-0.5, 1.0, (1,))

    spec = skipping(Paid(), 3).reward_spec
    assert (float(spec.low), float(spec.high)) == (-1.5, 3.0)


def test_the_environment_inside_and_all_transforms_stay_in_sight():
    env = TransformedEnv(TransformedEnv(CountingEnv(), FrameSkip(2)), StepCounter())
    assert isinstance(env.base_env, CountingEnv)
    assert [type(one).__name__ for one in env.transforms] == ["FrameSkip", "StepCounter"]
    assert isinstance(
        env.insert_transform(0, RenameTransform(["observation"], ["seen"])), TransformedEnv
    )
    assert env.rollout(2)["next", "seen"].flatten().tolist() == [2, 4]
    assert isinstance(DrivenEnv(CountingEnv(), FrameSkip(2)), DrivenEnv)


def test_step_rows_leaves_the_state_of_other_rows():
    env = DrivenEnv(SerialEnv(2, CountingEnv), FrameSkip(2))
    after = env.step_rows(env.rand_action(env.reset()), torch.tensor([True, False]))
    assert after["observation"].flatten().tolist() == [1, 0]
    assert after["done"].flatten().tolist() == [False, True]
    counts = [inner.state_dict()["state"]["count"].item() for inner in env.env.envs]
    assert counts == [1, 0]
