"""The calls that the field's documents show, with the same arguments, on these packages."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

import rl_collect
import rl_datasets
import rl_text
import rl_trees
from rl_collect import Collector, MultiCollector, SyncDataCollector
from rl_envs import GymEnv, RandomPolicy, SerialEnv, TransformedEnv
from rl_layout import Segments, check_layout, set_recurrent_mode
from rl_policies import OneHotCategorical, ProbabilisticActor, ValueOperator
from rl_recurrent import GRUModule
from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
    TensorStorage,
)
from rl_transforms import NextObservationDelta, NextStateReconstructor, StepCounter
from rl_value import GAE, ClipPPOLoss

TRAJ_IDS = ("collector", "traj_ids")


def env_maker():
    return GymEnv("CartPole-v1")


def collected(frames=200, **options):
    make = options.pop("env", env_maker)
    options = {"frames_per_batch": frames, "total_frames": frames, **options}
    collector = Collector(create_env_fn=make, **options)
    collector.set_seed(0)  # whether any episode is long enough is no matter of chance
    data = next(iter(collector))
    collector.shutdown()
    return data


def norm():
    """A value function without parameters: the length of the observation."""
    return TensorDictModule(
        lambda x: x.pow(2).sum(-1, keepdim=True).sqrt(),
        in_keys=["observation"],
        out_keys=["state_value"],
    )


def recurrent_body(prefix, obs_dim, hidden_size, backend):
    return TensorDictSequential(
        TensorDictModule(
            nn.Linear(obs_dim, hidden_size),
            in_keys=["observation"],
            out_keys=[f"{prefix}_embed"],
        ),
        GRUModule(
            input_size=hidden_size,
            hidden_size=hidden_size,
            in_keys=[f"{prefix}_embed", f"{prefix}_rs", "is_init"],
            out_keys=[f"{prefix}_features", ("next", f"{prefix}_rs")],
            recurrent_backend=backend,
        ),
    )


@pytest.mark.parametrize("backend", ["pad", "pack", "scan", "auto"])
def test_recurrent_ppo_is_wired_by_the_collector(backend):
    env = GymEnv("CartPole-v1")
    obs_dim = env.observation_spec["observation"].shape[-1]
    action_dim = env.action_spec.shape[-1]
    actor = ProbabilisticActor(
        module=TensorDictSequential(
            recurrent_body("actor", obs_dim, 32, backend),
            TensorDictModule(
                nn.Linear(32, action_dim), in_keys=["actor_features"], out_keys=["logits"]
            ),
        ),
        in_keys=["logits"],
        out_keys=["action"],
        spec=env.action_spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = TensorDictSequential(
        recurrent_body("critic", obs_dim, 32, backend),
        ValueOperator(nn.Linear(32, 1), in_keys=["critic_features"]),
    )
    collector = Collector(
        env,
        TensorDictSequential(actor, critic),
        frames_per_batch=96,
        total_frames=96,
        auto_register_policy_transforms=True,
    )
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(96), sampler=SliceSampler(slice_len=16), batch_size=4 * 16
    )
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, deactivate_vmap=True)
    loss_module = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_coeff=0.0)
    try:
        data = next(iter(collector))
    finally:
        collector.shutdown()
    assert {"is_init", "actor_rs", "critic_rs"} <= set(data.keys())

    rb.extend(data.exclude("state_value"))
    sequence = rb.sample()
    assert not check_layout(sequence).errors
    with set_recurrent_mode(True), torch.no_grad():
        advantage(sequence)
    rb.empty()
    rb.extend(sequence)
    minibatch = rb.sample()
    with set_recurrent_mode(True), torch.no_grad():
        loss_td = loss_module(minibatch)
    assert loss_td["loss_objective"].isfinite()


def test_duplicated_observations_are_dropped_and_rebuilt():
    data, compact = collected(), collected(compact_obs=True)
    gone = set(data.keys(True, True)) - set(compact.keys(True, True))
    assert gone == {("next", "observation")}
    rb = ReplayBuffer(
        storage=LazyTensorStorage(200),
        sampler=SliceSampler(slice_len=20, traj_key=TRAJ_IDS),
        transform=NextStateReconstructor(),
        batch_size=40,
    )
    rb.extend(compact)
    sample = rb.sample()
    lost = torch.isnan(sample["next", "observation"]).any(-1)
    assert (lost == sample["collector", "next_missing"]).all()
    last = Segments.of(sample).lasts
    assert set(lost.nonzero().flatten().tolist()) <= set(last.tolist())


@pytest.mark.parametrize("options", [{}, {"shifted": True}, {"num_chunks": 4}])
def test_estimators_are_finite_where_next_observations_are_missing(options):
    rb = ReplayBuffer(
        storage=LazyTensorStorage(200),
        sampler=SliceSampler(slice_len=20, traj_key=TRAJ_IDS, strict_length=True),
        transform=NextStateReconstructor(),
        batch_size=40,
    )
    rb.extend(collected(compact_obs=True))
    gae = GAE(gamma=0.99, lmbda=0.95, value_network=norm(), **options)
    out = gae(rb.sample().reshape(-1, 20).clone())
    assert torch.isfinite(out["advantage"]).all()
    assert ("shifted_valid" in out) == ("shifted" in options)


def test_differences_are_kept_instead_of_next_observations():
    def env_maker_delta():
        return TransformedEnv(GymEnv("CartPole-v1"), NextObservationDelta())

    data = collected(env=env_maker_delta)
    assert data["next", "delta", "observation"].dtype == torch.float16
    assert ("next", "observation") not in data.keys(True, True)
    rb = ReplayBuffer(
        storage=LazyTensorStorage(200),
        sampler=SliceSampler(slice_len=20, traj_key=TRAJ_IDS),
        transform=NextObservationDelta(in_keys=["observation"]),
        batch_size=40,
    )
    rb.extend(data)
    sample = rb.sample()
    assert ("next", "delta", "observation") not in sample.keys(True, True)
    assert torch.isfinite(sample["next", "observation"]).all()


def test_a_buffer_in_a_file(tmp_path):
    rb = ReplayBuffer(
        storage=LazyMemmapStorage(max_size=1_000, scratch_dir=tmp_path),
        sampler=SliceSampler(slice_len=20, traj_key=TRAJ_IDS),
        transform=NextStateReconstructor(),
        batch_size=40,
    )
    rb.extend(collected(compact_obs=True))
    assert rb.sample().ndim == 1


def test_buffers_of_anything():
    rb = ReplayBuffer(storage=ListStorage(10))
    rb.add("a string!")
    rb.extend([30, None])
    assert rb[0] == "a string!"
    assert rb[:] == ["a string!", 30, None]
    images = ReplayBuffer(storage=TensorStorage(torch.empty(10, 3, 64, 64, dtype=torch.uint8)))
    images.add(torch.randint(255, (3, 64, 64), dtype=torch.uint8))
    assert len(images) == 1
    rb_td = ReplayBuffer(storage=LazyMemmapStorage(10), batch_size=1)
    step = {"img": torch.randint(255, (3, 64, 64), dtype=torch.uint8)}
    rb_td.add(TensorDict({**step, "labels": torch.randint(100, ())}, batch_size=[]))
    assert rb_td.sample(128)["img"].shape == (128, 3, 64, 64)
    rb_pytree = ReplayBuffer(storage=LazyMemmapStorage(10))
    rb_pytree.extend({"a": {"b": torch.randn(3), "c": [torch.zeros(3, 2), (torch.ones(3, 10),)]}})
    assert len(rb_pytree) == 3


def test_trajectories_of_one_environment_lie_end_to_end():
    env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter())
    collector = SyncDataCollector(
        env, RandomPolicy(env.action_spec), frames_per_batch=10, total_frames=-1
    )
    rb = ReplayBuffer(
        storage=LazyTensorStorage(100),
        sampler=SliceSampler(
            num_slices=8, traj_key=TRAJ_IDS, truncated_key=None, strict_length=False
        ),
        batch_size=64,
    )
    for i, data in enumerate(collector):
        rb.extend(data)
        if i == 10:
            break
    assert len(rb) == 100
    counts = rb[:]["next", "step_count"].flatten()
    assert (counts == rb[:]["collector", "traj_step"] + 1).all()
    sample = rb.sample()
    assert len(sample["collector", "slice_ids"].unique()) == 8


def test_trajectories_of_several_environments_are_columns():
    env = TransformedEnv(SerialEnv(2, lambda: GymEnv("CartPole-v1")), StepCounter())
    collector = SyncDataCollector(
        env, RandomPolicy(env.action_spec), frames_per_batch=2, total_frames=-1
    )
    rb = ReplayBuffer(
        storage=LazyTensorStorage(100, ndim=2),
        sampler=SliceSampler(
            num_slices=8, traj_key=TRAJ_IDS, truncated_key=None, strict_length=False
        ),
        batch_size=64,
    )
    for i, data in enumerate(collector):
        rb.extend(data)
        if i == 100:
            break
    assert len(rb) == 100
    assert not check_layout(rb.sample()).errors


def test_workers_write_whole_trajectories_into_a_buffer():
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100_000), sampler=SliceSampler(slice_len=32), batch_size=256
    )
    collector = MultiCollector(
        [env_maker] * 2,
        None,
        replay_buffer=rb,
        frames_per_batch=200,
        total_frames=-1,
        trajs_per_batch=8,
        sync=False,
        mp_start_method="fork",
    )
    with collector:
        collector.start()
        rb.wait_until(1000, timeout=60)
        batch = rb.sample()
    assert batch.ndim == 1
    assert not check_layout(batch).errors
    rows = rb[:]
    ends = Segments.of(rows).lasts
    assert rows["next", "done"][ends].all()


def test_an_environment_takes_what_a_recurrent_policy_needs():
    gru = GRUModule(
        input_size=4,
        hidden_size=8,
        num_layers=1,
        in_keys=["observation", "recurrent_state", "is_init"],
        out_keys=["features", ("next", "recurrent_state")],
    )
    root = GymEnv("CartPole-v1", policy=gru).reset()
    assert root["is_init"].item()
    assert root["recurrent_state"].shape == (1, 8)


def test_names_of_text_and_of_several_machines_are_listed_and_there():
    page = Path(__file__).parent.parent / "docs" / "coming-from-torchrl.md"
    text = page.read_text(encoding="utf-8")
    part = text.split("## Language models, and more than one machine")[1]
    text, *others = [row for row in part.splitlines() if row.startswith("| `")]
    names = re.findall(r"`(\w+)`", text)
    assert len(names) == 11
    assert all(hasattr(rl_text, name) for name in names)
    kinds = re.findall(r"`(\w+Collector)`", "".join(row.split("|")[1] for row in others))
    assert len(kinds) == 4
    assert all(hasattr(rl_collect, name) for name in kinds)


def test_datasets_have_the_names_of_the_seed():
    names = (
        "AtariDQN BaseDataset D4RL GenDGRL LeRobot Minari OpenML OpenX Roboset VD4RL".split()  # noqa: SIM905
    )
    assert all(hasattr(rl_datasets, f"{name}ExperienceReplay") for name in names)
    shared = "available_datasets data_path data_path_root delete preprocess".split()  # noqa: SIM905
    assert all(hasattr(rl_datasets.BaseDatasetExperienceReplay, name) for name in shared)


def test_maps_and_hashes_have_the_names_of_the_seed():
    names = (
        "BinaryToDecimal HashToInt QueryModule RandomProjectionHash SipHash TensorDictMap".split()  # noqa: SIM905
    )
    assert all(hasattr(rl_trees, name) for name in [*names, "TensorMap", "MCTSForest", "Tree"])
