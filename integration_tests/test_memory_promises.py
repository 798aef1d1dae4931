"""What the founding document on memory promises, knob by knob, on CartPole and by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule

from rl_collect import Collector
from rl_envs import GymEnv, SerialEnv, TransformedEnv
from rl_layout import Segments, check_layout, set_recurrent_mode, split_trajectories
from rl_layout.synthetic import EndKind, trajectories
from rl_policies import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
from rl_recurrent import GRUModule
from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    RandomSampler,
    ReplayBuffer,
    SliceSampler,
)
from rl_transforms import (
    Compose,
    MultiStepTransform,
    NextObservationDelta,
    NextStateReconstructor,
)
from rl_value import GAE, ClipPPOLoss, TD0Estimator, TDLambdaEstimator

IDS = ("collector", "traj_ids")
AFTER = ("next", "observation")
MISSING = ("collector", "next_missing")


def collected(env: Any = None, **options: Any) -> TensorDictBase:
    """Two hundred steps of CartPole, the same in every call."""
    torch.manual_seed(0)
    env = env or (lambda: GymEnv("CartPole-v1"))
    collector = Collector(env, frames_per_batch=200, total_frames=200, producer=0, **options)
    collector.set_seed(0)
    with collector:
        return next(iter(collector))


def differences() -> TransformedEnv:
    """CartPole that gives differences for next observations."""
    return TransformedEnv(GymEnv("CartPole-v1"), NextObservationDelta())


def buffer_of(rows: TensorDictBase, transform: Any = None, **options: Any) -> ReplayBuffer:
    """Slices of 20 steps, as the document draws them."""
    storage = options.pop("storage", None) or LazyTensorStorage(200)
    sampler = options.pop("sampler", None) or SliceSampler(slice_len=20, traj_key=IDS)
    buffer = ReplayBuffer(storage=storage, sampler=sampler, transform=transform, batch_size=40)
    buffer.extend(rows)
    return buffer


def norm() -> TensorDictModule:
    """V(s) is the length of s."""
    return TensorDictModule(
        lambda x: x.pow(2).sum(-1, keepdim=True).sqrt(),
        in_keys=["observation"],
        out_keys=["state_value"],
    )


def test_inside_a_trajectory_observations_are_stored_twice() -> None:
    """They overlap by T - 1 entries, bit for bit."""
    data = collected()
    inside = ~data["next", "done"][:-1, 0]
    assert torch.equal(data["observation"][1:][inside], data[AFTER][:-1][inside])
    assert not torch.equal(data["observation"][1:][~inside], data[AFTER][:-1][~inside])


def test_compact_batches_save_all_next_observations_and_nothing_else() -> None:
    """3,200 bytes of 200 steps; rewards and done flags are unchanged."""
    data, compact = collected(), collected(compact_obs=True)
    assert data.bytes() - compact.bytes() == 3_200
    for key in compact.keys(True, True):
        assert torch.equal(compact[key], data[key])


def test_differences_save_half_of_the_next_observations() -> None:
    """1,600 bytes; the root keeps its full precision."""
    data, delta = collected(), collected(differences)
    assert data.bytes() - delta.bytes() == 1_600
    assert torch.equal(delta["observation"], data["observation"])


def test_observations_that_cannot_be_rebuilt_are_nan_at_slice_ends() -> None:
    """The rows with NaN are ends of slices with an unknown next observation."""
    buffer = buffer_of(collected(compact_obs=True), NextStateReconstructor())
    sample = buffer.sample()
    lost = sample[AFTER].isnan().any(-1)
    assert torch.equal(lost, sample[MISSING])
    boundary = torch.zeros_like(lost)
    boundary[Segments.of(sample).lasts] = True
    assert not (lost & ~boundary).any()
    assert lost[buffer[:]["next", "done"].flatten()[sample["index"]]].all()


def test_any_other_value_may_stand_for_what_is_missing() -> None:
    """NaN unless another one is configured."""
    compact = trajectories([3, 2]).exclude(AFTER)
    found = NextStateReconstructor(fill_value=-5.0)(compact)[AFTER]
    assert (found[:, 0] == -5.0).tolist() == [False, False, True, False, True]


def test_rebuilding_works_with_any_sampler() -> None:
    """Position i + 1 of the same trajectory, wherever the sample has it."""
    data, compact = collected(), collected(compact_obs=True)
    buffer = buffer_of(compact, NextStateReconstructor(), sampler=RandomSampler())
    sample = buffer.sample(150)
    known = ~sample[MISSING]
    assert known.sum() > 100
    assert torch.equal(sample[AFTER][known], data[AFTER][sample["index"]][known])


def test_nested_observations_are_rebuilt() -> None:
    """`("agents", "pos")` like any other."""
    rows = trajectories([4, 3], EndKind.CUT)
    nested = rows.select("collector", "is_init", "next")
    nested["agents"] = TensorDict({"pos": rows["observation"]}, [7])
    found = NextStateReconstructor([("agents", "pos")])(nested.exclude(AFTER))
    known = ~found[MISSING]
    assert known.tolist() == [True] * 3 + [False] + [True] * 2 + [False]
    assert torch.equal(found["next", "agents", "pos"][known], rows[AFTER][known])


@pytest.mark.parametrize("kind", [GAE, TD0Estimator, TDLambdaEstimator])
@pytest.mark.parametrize("options", [{}, {"shifted": True}, {"num_chunks": 4}])
def test_estimators_are_finite_out_of_the_box(kind: type, options: dict[str, Any]) -> None:
    """`compact_obs` with `NextStateReconstructor`, flat or as `[num_slices, slice_len]`."""
    if kind is not TD0Estimator:
        options = {"lmbda": 0.95, **options}
    estimator = kind(gamma=0.99, value_network=norm(), **options)
    sampler = SliceSampler(slice_len=20, traj_key=IDS, strict_length=True)
    buffer = buffer_of(collected(compact_obs=True), NextStateReconstructor(), sampler=sampler)
    sample = buffer.sample()
    for rows in (sample.clone(), sample.reshape(-1, 20).clone()):
        found = estimator(rows)
        assert found["advantage"].isfinite().all()
        assert found["value_target"].isfinite().all()


def test_lossless_rows_and_differences_bootstrap_at_truncations() -> None:
    """Both know the next observation of each end, exactly or within the delta's precision."""
    data = collected(max_frames_per_traj=7)
    delta = collected(differences, max_frames_per_traj=7)
    assert data["next", "truncated"].sum() > 10
    exact = GAE(gamma=0.99, lmbda=0.95, value_network=norm())(data.clone())["advantage"]
    whole = buffer_of(data, storage=LazyTensorStorage(200, lossless=True))[:]
    near = buffer_of(delta, NextObservationDelta(in_keys=["observation"]))[:]
    gae = GAE(gamma=0.99, lmbda=0.95, value_network=norm())
    assert torch.equal(gae(whole)["advantage"], exact)
    torch.testing.assert_close(gae(near)["advantage"], exact, rtol=0, atol=5e-3)


def test_multi_step_rows_are_built_on_differences() -> None:
    """Next observations are rebuilt first, then the n-step rows are made."""
    rows = trajectories([6, 3])
    delta = rows.clone()
    delta["next", "delta", "observation"] = (rows[AFTER] - rows["observation"]).half()
    delta = delta.exclude(AFTER)
    first = NextObservationDelta(in_keys=["observation"], side="rebuild")
    plain = buffer_of(rows, MultiStepTransform(3, 0.5))[:]
    found = buffer_of(delta, Compose(MultiStepTransform(3, 0.5), first))[
        :
    ]  # inverses run backwards
    for key in (AFTER, ("next", "reward"), ("next", "done"), ("next", "steps_to_next_obs")):
        assert torch.equal(found[key], plain[key])


def test_multi_step_rows_are_not_made_up_on_the_compact_path() -> None:
    """`data[t + n]` where it is stored, and a mark where it is unknown."""
    rows = trajectories([6, 3], EndKind.TRUNCATED)
    both = Compose(NextStateReconstructor(), MultiStepTransform(3, 0.5))
    found = buffer_of(rows.exclude(AFTER), both)[:]
    plain = buffer_of(rows, MultiStepTransform(3, 0.5))[:]
    known = ~found[MISSING]
    assert known.tolist() == [True] * 3 + [False] * 3 + [False] * 3
    assert torch.equal(found[AFTER][known], plain[AFTER][known])


def test_a_file_is_a_drop_in_for_memory(tmp_path: Path) -> None:
    """The same rows, samples and transforms."""
    compact = collected(compact_obs=True)
    mapped = buffer_of(
        compact,
        NextStateReconstructor(),
        storage=LazyMemmapStorage(max_size=1_000, scratch_dir=tmp_path),
    )
    plain = buffer_of(compact, NextStateReconstructor())
    for key in compact.keys(True, True):
        assert torch.equal(mapped[:][key], plain[:][key])
    samples = (buffer.sample() for buffer in (mapped, plain))
    first, second = (set(sample.keys(True, True)) for sample in samples)
    assert first == second


@pytest.mark.parametrize("backend", ["scan", "pad", "pack", "auto"])
def test_a_trained_sequence_is_the_concatenation_of_its_slices(backend: str) -> None:
    """No padding, and the flat batch gives what the same slices give in rows."""
    gru = GRUModule(
        input_size=4,
        hidden_size=8,
        in_keys=["observation", "rhs"],
        out_keys=["features", ("next", "rhs")],
        recurrent_backend=backend,
        default_recurrent_mode=True,
    )
    data = collected(max_frames_per_traj=9)
    data["rhs"] = torch.randn(200, 1, 8)
    sampler = SliceSampler(slice_len=5, traj_key=IDS, strict_length=True)
    sample = buffer_of(data, sampler=sampler).sample()
    assert sample.shape == (40,)
    assert sample["is_init"].sum() == 8
    flat, rows = gru(sample.clone()), gru(sample.clone().reshape(8, 5))
    torch.testing.assert_close(flat["features"], rows["features"].reshape(40, 8))


def test_ragged_trajectories_need_no_padding() -> None:
    """`as_nested=True` and the padded form are interchangeable."""
    data = collected()
    padded = split_trajectories(data)
    nested = split_trajectories(data, as_nested=True)
    for key in ("observation", ("next", "reward")):
        assert nested[key].is_nested
        there = nested[key].to_padded_tensor(0.0)
        assert torch.equal(there, padded[key])


def actor_and_critic() -> tuple[ProbabilisticActor, ValueOperator]:
    """Two small networks on CartPole."""
    actor = ProbabilisticActor(
        TensorDictModule(MLP(4, 2, num_cells=[8]), ["observation"], ["logits"]),
        in_keys=["logits"],
        spec=GymEnv("CartPole-v1").action_spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    return actor, ValueOperator(MLP(4, 1, num_cells=[8]), in_keys=["observation"])


@pytest.mark.parametrize("recipe", ["A", "B"])
@pytest.mark.parametrize("envs", [1, 3])
def test_recipes_train_from_end_to_end(recipe: str, envs: int, tmp_path: Path) -> None:
    """Compact rows in a file, or differences; slices, one sequence, pieces, a clipped loss."""
    actor, critic = actor_and_critic()
    base = GymEnv("CartPole-v1") if envs == 1 else SerialEnv(envs, lambda: GymEnv("CartPole-v1"))
    compact = recipe == "A"
    collector = Collector(
        base if compact else TransformedEnv(base, NextObservationDelta()),
        actor,
        frames_per_batch=96,
        total_frames=192,
        compact_obs=compact,
    )
    buffer = ReplayBuffer(
        storage=LazyMemmapStorage(1_000, scratch_dir=tmp_path),
        sampler=SliceSampler(slice_len=16, traj_key=IDS),
        transform=NextStateReconstructor()
        if compact
        else NextObservationDelta(in_keys=["observation"]),
        batch_size=8 * 16,
    )
    loss = ClipPPOLoss(actor=actor, critic=critic)
    pieces = {"num_chunks": 4} if compact else {}
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, shifted=True, **pieces)
    for batch in collector:
        buffer.extend(batch)
        sample = buffer.sample()
        assert not check_layout(sample).errors
        found = loss(advantage(sample))
        total = sum(value for key, value in found.items() if key.startswith("loss_"))
        total.backward()
    grads = [one.grad for one in loss.parameters()]
    assert all(grad is not None and grad.isfinite().all() for grad in grads)
    assert any(grad.any() for grad in grads)


def test_batches_go_to_the_storing_device_before_they_are_written() -> None:
    """Collection stays off the memory of training."""
    buffer = ReplayBuffer(storage=LazyTensorStorage(200), batch_size=8)
    collector = Collector(
        lambda: GymEnv("CartPole-v1"),
        frames_per_batch=50,
        total_frames=100,
        env_device="cpu",
        policy_device="cpu",
        storing_device="cpu",
        no_cuda_sync=False,
        replay_buffer=buffer,
    )
    assert list(collector) == [None, None]
    assert len(buffer) == 100
    assert buffer.sample()["observation"].device == torch.device("cpu")


def test_recurrent_mode_is_needed_by_nobody_where_it_is_the_default() -> None:
    """`default_recurrent_mode` counts where no context manager is active."""
    gru = GRUModule(4, 8, in_key="observation", out_key="features", default_recurrent_mode=True)
    rows = collected(max_frames_per_traj=5)
    rows["recurrent_state"] = torch.zeros(200, 1, 8)
    alone = gru(rows.clone())["features"]
    with set_recurrent_mode(True):
        assert torch.equal(gru(rows.clone())["features"], alone)
    with set_recurrent_mode(False), pytest.raises(ValueError, match="one step of each"):
        gru(rows.clone())
