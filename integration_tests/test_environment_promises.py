"""What the five founding documents promise of environments, one by one."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
from torch import nn

from rl_collect import Collector
from rl_envs import (
    EnvBase,
    GymEnv,
    ParallelEnv,
    Pendulums,
    SerialEnv,
    TransformedEnv,
    check_env_specs,
)
from rl_layout import check_layout, step_mdp
from rl_policies import ProbabilisticActor, TanhNormal
from rl_recurrent import GRUModule
from rl_specs import Composite, OneHot, Unbounded
from rl_transforms import InitTracker, NextObservationDelta, StepCounter, TensorDictPrimer

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def cart() -> GymEnv:
    """A CartPole, as the documents make it."""
    return GymEnv("CartPole-v1", device=None)


def recurrent() -> TensorDictSequential:
    """A recurrent policy that chooses the first action."""
    gru = GRUModule(
        input_size=4,
        hidden_size=8,
        num_layers=1,
        in_keys=["observation", "recurrent_state", "is_init"],
        out_keys=["features", ("next", "recurrent_state")],
    )
    first = lambda seen: torch.eye(2, dtype=torch.bool)[0].expand(*seen.shape[:-1], 2)  # noqa: E731
    return TensorDictSequential(gru, TensorDictModule(first, ["features"], ["action"]))


def kinds(env: EnvBase) -> list[type]:
    """The transforms of an environment, by class."""
    return [type(one) for one in env.transforms] if isinstance(env, TransformedEnv) else []


def test_a_policy_for_the_constructor_brings_tracker_and_primer() -> None:
    """`GymEnv("CartPole-v1", policy=gru)`: both are attached, and one of each."""
    policy = recurrent()
    env = GymEnv("CartPole-v1", policy=policy)
    assert kinds(env) == [InitTracker, TensorDictPrimer]
    root = env.reset()
    assert root["is_init"].item()
    assert not root["recurrent_state"].any()
    collector = Collector(env, policy, frames_per_batch=20, total_frames=20)
    batch = next(iter(collector))
    assert kinds(env) == [InitTracker, TensorDictPrimer]
    assert check_layout(batch).ok
    collector.shutdown()


def test_wiring_sees_through_serial_and_parallel_environments() -> None:
    """Transforms of the child environments count."""
    policy = recurrent()
    make = lambda: GymEnv("CartPole-v1", policy=recurrent())  # noqa: E731
    assert kinds(SerialEnv(2, make, policy=policy)) == []
    with ParallelEnv(2, make, mp_start_method="fork", policy=policy) as env:
        assert kinds(env) == []
        batch = env.rollout(6, policy)
    assert batch["recurrent_state"].shape[:2] == batch.shape
    assert kinds(SerialEnv(2, cart, policy=policy)) == [InitTracker, TensorDictPrimer]


def test_a_step_is_the_root_with_next() -> None:
    """What was known before `step` is at the root, what it produced under `"next"`."""
    env = cart()
    data = env.rand_action(env.reset())
    step = env.step(data)
    named = ["action", "done", "next", "observation", "terminated", "truncated"]
    assert sorted(step.keys()) == named
    after = ["done", "observation", "reward", "terminated", "truncated"]
    assert sorted(step["next"].keys()) == after
    assert sorted(step_mdp(step).keys()) == ["done", "observation", "terminated", "truncated"]


def test_a_rollout_names_its_last_dimension_time() -> None:
    """`rollout.shape[-1] == 10`, `rollout.names[-1] == "time"`, and observations chain."""
    env = SerialEnv(2, cart)
    env.set_seed(0)
    rollout = env.rollout(10, env.rand_step, break_when_any_done=False)
    assert rollout.shape[-1] == 10
    assert rollout.names[-1] == "time"
    chained = rollout[..., 1:]["observation"] == rollout[..., :-1]["next", "observation"]
    assert chained[~rollout["next", "done"][:, :-1, 0]].all()


def test_no_done_flag_stands_at_the_root_where_rows_are_reset() -> None:
    """Any true flag triggers a (partial) reset, which turns it off."""
    env = TransformedEnv(SerialEnv(2, cart), StepCounter(3))
    batch = env.rollout(8, break_when_any_done=False)
    assert not batch["done"].any()
    assert batch["next", "truncated"].sum() >= 4


def test_marks_have_the_shape_of_the_batch() -> None:
    """`is_init` is `(*B, 1)`, True at explicit resets and after a done step."""
    env = TransformedEnv(SerialEnv(3, cart), InitTracker(), StepCounter(2))
    batch = env.rollout(5, break_when_any_done=False)
    assert batch["is_init"].shape == (3, 5, 1)
    assert batch["is_init"][..., 0].tolist() == [[True, False, True, False, True]] * 3


def test_differences_are_refused_inside_workers_when_these_are_made() -> None:
    """`TransformedEnv(ParallelEnv(N, ...), NextObservationDelta())`, never the other way."""
    inside = lambda: TransformedEnv(cart(), NextObservationDelta())  # noqa: E731
    for make in (
        lambda: SerialEnv(2, inside),
        lambda: ParallelEnv(2, inside, mp_start_method="fork"),
    ):
        with pytest.raises(ValueError, match="NextObservationDelta cannot sit in a worker"):
            make()
    batch = TransformedEnv(SerialEnv(2, cart), NextObservationDelta()).rollout(4)
    assert ("next", "delta", "observation") in batch.keys(True)
    assert ("next", "observation") not in batch.keys(True)


class Stateless(EnvBase):
    """Stateless: its position is in the tensordict; it gives no reward."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_locked = False
        self.observation_spec = Composite(place=Unbounded((1,)))
        self.action_spec = OneHot(2)
        self.reward_spec = Composite()

    def _reset(self, tensordict):
        shape = () if tensordict is None else tensordict.batch_size
        return TensorDict({"place": torch.zeros(*shape, 1)}, shape)

    def _step(self, tensordict):
        place = tensordict["place"] + tensordict["action"][..., :1]
        over = torch.zeros_like(place, dtype=torch.bool)
        return TensorDict({"place": place, "terminated": over}, tensordict.batch_size)

    def _set_seed(self, seed: int) -> None:
        """Nothing is random."""


def test_stateless_simulators_and_missing_rewards_fit_the_format() -> None:
    """Some elements may be missing; a state may be passed through the tensordict."""
    env = Stateless()
    check_env_specs(env)
    batch = env.rollout(4)
    assert "reward" not in batch["next"]
    root = env.rand_action(TensorDict({"place": torch.ones(5, 1)}, [5]))
    assert env.step(root)["next", "place"].shape == (5, 1)


def test_dynamic_sizes_avoid_buffers_of_processes() -> None:
    """A size of -1 tells batched environments that shapes are not predictable."""

    class Growing(Stateless):
        def __init__(self) -> None:
            super().__init__()
            self.batch_locked, self.count = True, 1
            self.observation_spec = Composite(seen=Unbounded((-1, 2)))

        def _reset(self, tensordict):
            self.count = 1
            return TensorDict({"seen": torch.zeros(1, 2)})

        def _step(self, tensordict):
            self.count += 1
            over = torch.tensor([self.count == 4])
            return TensorDict({"seen": torch.ones(self.count, 2), "terminated": over})

    with ParallelEnv(2, Growing, mp_start_method="fork") as env:
        batch = env.rollout(5, break_when_any_done=False)
    sizes = [row["next", "seen"].shape[0] for row in batch[0]]
    assert sizes == [2, 3, 4, 2, 3]


def test_layers_are_sized_by_the_specs() -> None:
    """`env.observation_spec["observation"].shape[-1]` and `env.action_spec.shape[-1]`."""
    env = cart()
    observation, action = env.observation_spec["observation"], env.action_spec
    policy = nn.Linear(observation.shape[-1], action.shape[-1])
    assert policy(env.reset()["observation"]).shape == action.shape


def test_an_actor_without_the_action_spec_is_told_what_it_leaves_out() -> None:
    """Bounds of a distribution that nobody chose are no wish."""
    env = Pendulums(2)

    def actor(**options: object) -> ProbabilisticActor:
        body = nn.Sequential(nn.Linear(3, 2), NormalParamExtractor())
        parameters = TensorDictModule(body, ["observation"], ["loc", "scale"])
        return ProbabilisticActor(
            parameters, ["loc", "scale"], distribution_class=TanhNormal, **options
        )

    with pytest.warns(
        UserWarning, match="by TanhNormal from -1 to 1, and the environment takes -2"
    ):
        Collector(env, actor(), frames_per_batch=4)
    Collector(env, actor(spec=env.action_spec), frames_per_batch=4)
    Collector(env, actor(distribution_kwargs={"low": -1.5, "high": 1.5}), frames_per_batch=4)
