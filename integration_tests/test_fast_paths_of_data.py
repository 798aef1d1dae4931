"""Data, policies, transforms and trees take their fast paths in calls that an ordinary user makes.

What ran is read by `sys.setprofile`, as `nox -s shape` does, or from the operations of torch.
"""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from rl_collect import Collector
from rl_envs import EnvBase, GymEnv, SerialEnv, TransformedEnv
from rl_layout import Segments
from rl_layout.synthetic import trajectories
from rl_policies import (
    MLP,
    IndependentNormal,
    OneHotCategorical,
    ProbabilisticActor,
    TanhNormal,
    ValueOperator,
)
from rl_replay import LazyTensorStorage, PrioritizedSampler, ReplayBuffer
from rl_specs import Bounded
from rl_transforms import (
    Compose,
    DoubleToFloat,
    MultiStepTransform,
    NextStateReconstructor,
    ObservationNorm,
    RewardClipping,
    RewardSum,
    StepCounter,
)
from rl_trees import MCTSTrees, SipHash, TensorDictMap
from rl_value import GAE, SACLoss


def ran(act: Callable[[], object]) -> Counter[str]:
    """How often each Python function ran, as ``module.function`` without the package's folders."""
    found: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            module = frame.f_globals.get("__name__", "").rpartition(".")[2]
            found[f"{module}.{frame.f_code.co_name}"] += 1

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return found


class Operations(TorchDispatchMode):
    """Counts the operations of torch by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.__name__.partition(".")[0]] += 1
        return func(*args, **(kwargs or {}))


def operations(act: Callable[[], object]) -> Counter[str]:
    """How often each operation of torch ran."""
    mode = Operations()
    with mode:
        act()
    return mode.counts


def chooser(env: EnvBase, kind: type) -> ProbabilisticActor:
    """An actor of CartPole's two choices."""
    net = TensorDictModule(MLP(4, 2, num_cells=[8]), ["observation"], ["logits"])
    return ProbabilisticActor(
        net, ["logits"], spec=env.action_spec, distribution_class=kind, return_log_prob=True
    )


def drawer(env: EnvBase, kind: type) -> ProbabilisticActor:
    """An actor of Pendulum's torque."""
    body = nn.Sequential(MLP(3, 2, num_cells=[8]), NormalParamExtractor())
    net = TensorDictModule(body, ["observation"], ["loc", "scale"])
    return ProbabilisticActor(
        net, ["loc", "scale"], spec=env.action_spec, distribution_class=kind, return_log_prob=True
    )


def collected(env: EnvBase, actor: ProbabilisticActor) -> tuple[TensorDictBase, Counter[str]]:
    """A batch of 40 steps after the first one, and what ran for it."""
    collector = Collector(env, actor, frames_per_batch=40, total_frames=400)
    batches = iter(collector)
    next(batches)
    made: list[TensorDictBase] = []
    found = ran(lambda: made.append(next(batches)))
    collector.shutdown()
    return made[0], found


def test_layers_of_a_policy_are_called_without_the_calls_around_them() -> None:
    env = SerialEnv(2, lambda: GymEnv("CartPole-v1"))
    _, found = collected(env, chooser(env, OneHotCategorical))
    assert found["verified_calls.run"] >= 20  # one network, 20 steps
    assert found["container.forward"] == found["linear.forward"] == 0
    assert found["module._call_impl"] == 0


@pytest.mark.parametrize(
    ("name", "make", "kind", "draw"),
    [
        ("CartPole-v1", chooser, OneHotCategorical, "draw_one_hot"),
        ("CartPole-v1", chooser, torch.distributions.Categorical, "draw_categorical"),
        ("Pendulum-v1", drawer, TanhNormal, "draw_bounded"),
        ("Pendulum-v1", drawer, IndependentNormal, "draw_normal"),
    ],
    ids=["one-hot", "categorical", "tanh", "normal"],
)
def test_a_collected_action_is_drawn_without_a_distribution(
    name: str, make: Callable[[EnvBase, type], ProbabilisticActor], kind: type, draw: str
) -> None:
    categorical = kind is torch.distributions.Categorical
    env = GymEnv(name, categorical_action_encoding=categorical)
    _, found = collected(env, make(env, kind))
    assert found[f"fast_sampling.{draw}"] == 40
    assert found["probabilistic.distribution"] == 0
    assert found["distribution.__init__"] == 0


def test_the_log_prob_of_a_drawn_action_is_not_computed_back_from_it() -> None:
    env = GymEnv("Pendulum-v1")
    critic = ValueOperator(MLP(4, 1, num_cells=[8]), ["observation", "action"])
    loss = SACLoss(drawer(env, TanhNormal), critic)
    rows = env.rollout(20)
    loss(rows.clone())
    counts = operations(lambda: loss(rows.clone()))
    assert counts["tanh"] >= 2  # the actor's loss and next actions are drawn
    assert counts["atanh"] == 0


def test_critics_that_a_loss_makes_are_computed_at_once() -> None:
    env = GymEnv("Pendulum-v1")
    critic = ValueOperator(MLP(4, 1, num_cells=[8]), ["observation", "action"])
    loss = SACLoss(drawer(env, TanhNormal), critic, num_qvalue_nets=7)
    assert "7 members at once" in repr(loss.qvalue_network)


def test_bounds_that_are_equal_are_two_numbers() -> None:
    spec = GymEnv("Pendulum-v1").action_spec
    assert isinstance(spec, Bounded)
    value = spec.rand((5,))
    draw = operations(lambda: spec.rand((5,)))
    assert {name for name in draw if name not in ("empty", "detach")} == {"uniform_"}
    look = operations(lambda: spec.is_in(value))
    assert look["aminmax"] == 1
    assert look["ge"] == look["le"] == 0


def test_cheap_transforms_step_on_arrays() -> None:
    base = SerialEnv(2, lambda: GymEnv("CartPole-v1"))
    norm, steps = ObservationNorm(0.0, 2.0, in_keys=["observation"]), StepCounter(max_steps=30)
    env = TransformedEnv(base, Compose(norm, RewardClipping(-1, 1), steps))
    _, found = collected(env, chooser(env, OneHotCategorical))
    assert found["pipeline.run"] >= 20
    assert found["transform.step"] == found["compose.step"] == found["step_counter.step"] == 0


def test_trackers_are_computed_once_for_a_batch() -> None:
    base = SerialEnv(2, lambda: GymEnv("CartPole-v1"))
    env = TransformedEnv(base, Compose(DoubleToFloat(), RewardSum(), StepCounter()))
    _, found = collected(env, chooser(env, OneHotCategorical))
    assert found["deferred_transforms.apply_deferred"] == 1
    assert found["reward_sum.rows"] == found["step_counter.rows"] == 1
    assert found["transform.step"] == found["compose.step"] == 0


def test_segments_of_a_batch_are_found_once() -> None:
    batch = trajectories([30, 20])
    critic = ValueOperator(MLP(2, 1, num_cells=[8]), ["observation"])
    gae = GAE(gamma=0.9, lmbda=0.9, value_network=critic)
    assert ran(lambda: gae(batch))["markers.find_runs"] == 1
    assert ran(lambda: (gae(batch), Segments.of(batch)))["markers.find_runs"] == 0


def test_cuts_of_thousands_of_rows_are_found_by_compiled_code() -> None:
    pytest.importorskip("numba")
    batch = trajectories([1000, 2000])
    found = ran(lambda: Segments.of(batch))
    assert found["markers.cut_on_cpu"] == 1
    assert found["markers.cut_by_numpy"] == 0


def test_rows_without_gaps_are_not_gathered() -> None:
    batch = trajectories([3, 4])
    segments, values = Segments.of(batch), batch["observation"]
    assert segments.gather(values).data_ptr() == values.data_ptr()
    assert segments.scatter(values).data_ptr() == values.data_ptr()


def test_observations_that_agree_are_looked_at_once() -> None:
    batch = trajectories([30, 20]).exclude("collector")
    batch.names = [None]  # as of rows that were not collected here
    found = ran(lambda: Segments.of(batch))
    assert found["contradiction.agree"] == 1
    assert found["contradiction.row"] == 0


def test_next_observations_of_single_rows_are_read_at_once() -> None:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(100), batch_size=8, transform=NextStateReconstructor()
    )
    rows = trajectories([50, 40]).exclude(("next", "observation"))
    buffer.extend(rows)
    found = ran(buffer.sample)
    if not found["reconstruct._from_source"]:  # two neighbours were drawn
        found = ran(buffer.sample)
    assert found["reconstruct._from_source"] == 1
    assert found["reconstruct._neighbours"] == 0


def test_n_step_rewards_of_a_few_steps_are_one_gather() -> None:
    transform = MultiStepTransform(n_steps=3, gamma=0.9)
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), transform=transform)
    found = ran(lambda: buffer.extend(trajectories([30, 20])))
    assert found["horizon._sums"] == 1
    assert found["on_sample.sums_ahead"] == 0


def test_samples_are_assembled_without_checks_of_what_is_known() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=8)
    buffer.extend(trajectories([50, 40]))
    found = ran(buffer.sample)
    assert found["construction.assembled"] >= 1
    assert found["_td.set"] == found["_td.__init__"] == 0


@pytest.mark.parametrize("lossless", [False, True], ids=["plain", "lossless"])
def test_a_row_that_is_added_is_written_without_a_batch(lossless: bool) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100, lossless=lossless))
    rows = trajectories([9])
    for row in rows[:-1]:
        buffer.add(row)
    found = ran(lambda: buffer.add(rows[8]))
    assert found["table.append_one"] == 1
    assert found["table.append"] == found["links.match"] == 0
    assert found["linker.link_one"] == found["one_row.write"] == int(lossless)


@pytest.mark.parametrize("lossless", [False, True], ids=["plain", "lossless"])
def test_small_leaves_of_a_sample_are_one_gather(lossless: bool) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100, lossless=lossless), batch_size=8)
    buffer.extend(trajectories([50, 40]))
    buffer.sample()
    assert ran(buffer.sample)[".unpack"] == 1  # the function that is compiled for these leaves
    counts = operations(buffer.sample)
    assert counts["index_select"] + counts["index"] + counts["gather"] <= 1


def test_priorities_are_drawn_by_compiled_code() -> None:
    pytest.importorskip("numba")
    sampler = PrioritizedSampler(100, alpha=0.7, beta=0.5)
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), sampler=sampler, batch_size=8)
    buffer.extend(trajectories([50, 40]))
    buffer.sample()
    found = ran(buffer.sample)
    assert found["row_priorities.draw"] == 1
    assert not [name for name in found if name.startswith("numpy_tree.")]


def test_keys_of_a_map_are_hashed_and_found_by_compiled_code() -> None:
    pytest.importorskip("numba")
    states = TensorDict({"board": torch.arange(60).reshape(20, 3)}, [20])
    values = TensorDict({"value": torch.rand(20)}, [20])
    table = TensorDictMap.from_tensordict_pair(states, values, in_keys=["board"])

    def use() -> None:
        table[states] = values
        assert (table[states]["value"] == values["value"]).all()
        SipHash()(states["board"])

    use()  # the factors of keys of a width are made once in a process
    found = ran(use)
    assert found["key_table.find"] >= 1
    assert not [name for name in found if name.startswith(("numpy_probe.", "numpy_rounds."))]


def test_trees_are_searched_by_compiled_code() -> None:
    pytest.importorskip("numba")
    trees = MCTSTrees(num_trees=4, num_nodes=9, num_actions=2)
    trees.reset(logits=torch.zeros(4, 2))

    def search() -> None:
        for _ in range(8):
            leaves = trees.select()
            reward = leaves.action.float()
            trees.expand(leaves, reward, logits=torch.zeros(4, 2), value=torch.zeros(4))
            trees.backup(leaves)

    found = ran(search)
    assert found["trees.select"] == 8
    assert not [name for name in found if name.startswith("numpy_search.")]
