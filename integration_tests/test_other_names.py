"""Every row of the page's table of other names holds, and what is given under both is refused."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch import nn

import rl_collect
import rl_envs
import rl_policies
import rl_replay
import rl_specs
import rl_value
from rl_envs.testing import CountingEnv
from rl_layout.testing import trajectories
from rl_policies import OneHotCategorical, ProbabilisticActor
from rl_specs import Composite, OneHot, Unbounded
from rl_transforms import StepCounter

PAGE = Path(__file__).parent.parent / "docs" / "coming-from-torchrl.md"
FORKED: dict[str, Any] = {"mp_start_method": "fork"}

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def rows() -> list[str]:
    """The first cells of the table of names."""
    section = PAGE.read_text(encoding="utf-8").split("## Other names")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [re.split(r"(?<!\\)\|", line)[1].strip() for line in lines[2:]]


def actor() -> Any:
    """A policy of two actions."""
    return ProbabilisticActor(
        TensorDictModule(nn.Linear(1, 2), ["observation"], ["logits"]),
        in_keys=["logits"],
        spec=OneHot(2),
        distribution_class=OneHotCategorical,
    )


def critic() -> Any:
    """A critic of one number."""
    return TensorDictModule(nn.Linear(1, 1), ["observation"], ["state_value"])


def transforms() -> None:
    env = rl_envs.TransformedEnv(CountingEnv(), StepCounter())
    assert env.transform is env.transforms


def appended() -> None:
    env = CountingEnv().append_transform(StepCounter())
    made = rl_envs.TransformedEnv(CountingEnv(), StepCounter())
    assert [type(one) for one in env.transforms] == [type(one) for one in made.transforms]
    assert env.append_transform(StepCounter(step_count_key="again")) is env


def keys_of_roles() -> None:
    env = CountingEnv()
    assert [env.action_key] == env.action_keys
    assert [env.reward_key] == env.reward_keys
    assert env.done_key == "done"
    with pytest.raises(KeyError, match="expected one"):
        rl_envs.testing.MultiAgentEnv(2).done_key  # noqa: B018


def keys_of_resets() -> None:
    env = rl_envs.testing.MultiAgentEnv(2)
    made = [(*group, "_reset") for group in env.done_groups]
    assert [one if isinstance(one, tuple) else (one,) for one in env.reset_keys] == made


def specs_in_and_out() -> None:
    env = CountingEnv()
    assert env.input_spec["full_action_spec"] == env.full_action_spec
    names = ["full_observation_spec", "full_reward_spec", "full_done_spec"]
    assert all(env.output_spec[name] == getattr(env, name) for name in names)


def assigned_specs() -> None:
    one, other = CountingEnv(), CountingEnv()
    one.full_observation_spec = Composite(observation=Unbounded((7,)))
    other.observation_spec = Composite(observation=Unbounded((7,)))
    assert one.observation_spec == other.observation_spec


def parts_of_batched() -> None:
    serial = rl_envs.SerialEnv(2, CountingEnv)
    assert serial[1] is serial.envs[1]
    assert serial.endings == [env.endings for env in serial.envs]
    with rl_envs.ParallelEnv(2, CountingEnv, **FORKED) as env:
        assert env.endings == serial.endings
        assert env[1].endings == serial[1].endings


def renewed() -> None:
    serial = rl_envs.SerialEnv(2, CountingEnv)
    serial.update_kwargs({"max_steps": 3})
    with rl_envs.ParallelEnv(2, CountingEnv, **FORKED) as env:
        env.update_kwargs({"max_steps": 3})
        assert env.endings == serial.endings == [[(3, "terminated")]] * 2


def creator() -> None:
    made = rl_envs.EnvCreator(CountingEnv)()
    assert type(made) is CountingEnv


def safe_modules() -> None:
    assert rl_policies.SafeModule is rl_policies.Actor
    assert rl_policies.SafeProbabilisticModule is rl_policies.SamplingModule


def safe_sequences() -> None:
    assert issubclass(rl_policies.SafeSequential, TensorDictSequential)
    kind = rl_policies.SafeProbabilisticTensorDictSequential
    assert issubclass(kind, ProbabilisticTensorDictSequential)


def data_collector() -> None:
    assert rl_collect.SyncDataCollector is rl_collect.Collector


def shut_down() -> None:
    collector = rl_collect.Collector(CountingEnv(), frames_per_batch=4)
    collector.async_shutdown()
    collector.shutdown()  # twice is once
    with pytest.raises(RuntimeError, match="shut down"):
        collector.next()


def unlimited_frames() -> None:
    for given in (-1, None):
        one = rl_collect.Collector(
            CountingEnv(9), frames_per_batch=20, max_frames_per_traj=given
        ).next()
        assert one["next", "done"].sum() == 2
        assert not one["next", "truncated"].any()


def explored() -> None:
    assert rl_policies.ExplorationType is InteractionType
    with rl_policies.set_exploration_type(rl_policies.ExplorationType.MODE):
        assert rl_policies.exploration_type() is InteractionType.MODE


def names_of_entries() -> None:
    for one in (rl_value.A2CLoss(actor(), critic()), rl_value.GAE(gamma=0.9, lmbda=0.9)):
        one.set_keys(advantage="my_advantage")
        assert one.tensor_keys.advantage == one.entries["advantage"] == "my_advantage"


def networks_of_losses() -> None:
    policy, value = actor(), critic()
    one = rl_value.A2CLoss(actor=policy, critic=value)
    assert (one.actor_network, one.critic_network) == (policy, value)


def shape_of_slices() -> None:
    one = rl_replay.SliceSampler(slice_len=3, num_slices=2, traj_key="episode")
    assert (one.slice_len, one.num_slices) == (one.shape.slice_len, one.shape.num_slices) == (3, 2)
    assert [one.traj_key] == one.id_keys == ["episode"]


def rows_of_storages() -> None:
    buffer = rl_replay.ReplayBuffer(storage=rl_replay.LazyTensorStorage(9))
    buffer.extend(trajectories([3, 4]))
    storage = buffer.storage
    assert (storage.get(2) == storage[2]).all()
    assert (storage[2] == buffer[2]).all()
    storage.set(2, storage[3])
    assert torch.equal(buffer[2]["observation"], buffer[3]["observation"])


def old_specs() -> None:
    with pytest.warns(DeprecationWarning, match="BoundedTensorSpec"):
        made = rl_specs.BoundedTensorSpec(0, 1, (2,))
    assert isinstance(made, rl_specs.Bounded)


HELD = {
    "`env.transform`": transforms,
    "`env.append_transform(t)`": appended,
    "`env.action_key`, `reward_key`, `done_key`": keys_of_roles,
    "`env.reset_keys`": keys_of_resets,
    "`env.input_spec`, `env.output_spec`": specs_in_and_out,
    "`env.full_action_spec = ...` and so on": assigned_specs,
    "`env[i]`, `env.some_attribute`, `env.some_method()`": parts_of_batched,
    "`env.update_kwargs(...)`": renewed,
    "`EnvCreator(make)`": creator,
    "`SafeModule(net, ins, outs, spec, safe)`, `SafeProbabilisticModule`": safe_modules,
    "`SafeSequential`, `SafeProbabilisticTensorDictSequential`": safe_sequences,
    "`SyncDataCollector`": data_collector,
    "`collector.async_shutdown()`": shut_down,
    "`max_frames_per_traj=-1`": unlimited_frames,
    "`ExplorationType`, `set_exploration_type`, `exploration_type`": explored,
    "`loss.tensor_keys.advantage`, `gae.tensor_keys`": names_of_entries,
    "`actor=`, `critic=`": networks_of_losses,
    "`sampler.slice_len`, `num_slices`, `traj_key`": shape_of_slices,
    "`storage.get(i)`, `storage.set(i, data)`, `storage[i]`": rows_of_storages,
    "`BoundedTensorSpec` and the other old names": old_specs,
}


def test_every_row_of_the_table_is_tried() -> None:
    assert rows() == list(HELD)


def test_every_exported_alias_is_in_the_table() -> None:
    aliases = [
        name
        for package in (rl_collect, rl_envs, rl_policies, rl_replay, rl_value)
        for name in package.__all__
        if getattr(getattr(package, name), "__name__", name)
        not in (name, f"{package.__name__}.{name}")
    ]
    assert "SyncDataCollector" in aliases
    assert [name for name in aliases if not any(f"`{name}" in row for row in HELD)] == []


@pytest.mark.parametrize("row", HELD)
def test_both_names_say_the_same(row: str) -> None:
    HELD[row]()


def test_the_page_names_every_ported_script() -> None:
    files = {path.name for path in (PAGE.parent.parent / "integration_tests/ported").glob("test_*")}
    named = set(re.findall(r"`(test_\w+\.py)`", PAGE.read_text(encoding="utf-8")))
    assert named == files - {"test_errors.py"}


BOTH = {
    "actor": lambda: rl_value.A2CLoss(actor(), critic(), actor=actor()),
    "critic": lambda: rl_value.ClipPPOLoss(actor(), critic(), critic=critic()),
    "eps": lambda: rl_value.SoftUpdate(
        rl_value.DQNLoss(critic(), action_space="one_hot"), eps=0.9, tau=0.1
    ),
    "batch_size": lambda: Composite(shape=(2,), batch_size=(2,)),
    "end_keys": lambda: rl_replay.SliceSampler(slice_len=2, end_key="done", end_keys=["done"]),
    "storages": lambda: rl_replay.ReplayBufferEnsemble(
        rl_replay.ReplayBuffer(), storages=rl_replay.ListStorage(2)
    ),
}
OTHER = {
    "actor": "actor_network",
    "critic": "critic_network",
    "eps": "tau",
    "batch_size": "shape",
    "end_keys": "end_key",
    "storages": "buffers",
}


@pytest.mark.parametrize("name", BOTH)
def test_an_argument_under_both_names_is_refused_by_both(name: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        BOTH[name]()
    assert re.search(rf"\b{name}\b", str(caught.value))
    assert re.search(rf"\b{OTHER[name]}\b", str(caught.value))


def test_an_attribute_that_no_worker_has_is_named_with_both_classes() -> None:
    told = "{} has no attribute 'depth', and nor has the CountingEnv inside"
    serial = rl_envs.SerialEnv(2, CountingEnv)
    with pytest.raises(AttributeError, match=told.format("SerialEnv")):
        serial.depth  # noqa: B018
    with rl_envs.ParallelEnv(2, CountingEnv, **FORKED) as env:
        with pytest.raises(AttributeError, match=told.format("ParallelEnv")):
            env.depth  # noqa: B018
        with pytest.raises(AttributeError, match=told.format("RemoteEnv")):
            env[1].depth  # noqa: B018
        assert env.rollout(3).shape == (2, 3)  # the workers go on
