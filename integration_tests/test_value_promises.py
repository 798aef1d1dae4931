"""What the five founding documents promise of value estimators and losses, one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn

from rl_layout import Segments, recurrent_mode, set_recurrent_mode, split_trajectories
from rl_layout.synthetic import EndKind, environments, trajectories
from rl_policies import OneHotCategorical, ProbabilisticActor, ValueOperator
from rl_recurrent import GRUModule
from rl_replay import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from rl_value import (
    GAE,
    A2CLoss,
    ClipPPOLoss,
    KLPENPPOLoss,
    PPOLoss,
    ReinforceLoss,
    TD0Estimator,
    TD1Estimator,
    TDLambdaEstimator,
)

AFTER = ("next", "observation")
ALL = [
    (GAE, {"lmbda": 0.95}),
    (TD0Estimator, {}),
    (TD1Estimator, {}),
    (TDLambdaEstimator, {"lmbda": 0.95}),
]
KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]


class Counted(nn.Module):
    """V(s) of a linear layer, which notes the shapes that it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.shapes: list[torch.Size] = []

    def forward(self, observation: Tensor) -> Tensor:
        """Note the shape, and value every row."""
        self.shapes.append(observation.shape[:-1])
        value: Tensor = self.layer(observation)
        return value


def critic() -> TensorDictModule:
    """A value function that counts its calls."""
    return TensorDictModule(Counted(), ["observation"], ["state_value"])


def sizes(net: TensorDictModule) -> list[int]:
    """How many observations each call had."""
    return [shape.numel() for shape in net.module.shapes]


def actor() -> ProbabilisticActor:
    """Two actions of two observations."""
    return ProbabilisticActor(
        TensorDictModule(nn.Linear(2, 2), ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )


def acted(rows: TensorDictBase, policy: ProbabilisticActor) -> TensorDictBase:
    """Rows with actions of a policy."""
    with torch.no_grad():
        found = policy(rows.clone())
    return rows.clone().update(found.select("action", "logits", "sample_log_prob"))


def total(found: TensorDictBase) -> Tensor:
    """The sum of all losses."""
    return torch.stack([one for key, one in found.items() if key.startswith("loss_")]).sum()


def test_nothing_is_bootstrapped_behind_a_termination_and_something_behind_a_truncation() -> None:
    """`target = r + gamma (1 - terminated) V(next)`, at the last frame as well."""
    net = critic()
    for kind in KINDS:
        rows = TD0Estimator(gamma=0.5, value_network=net)(trajectories([3], kind))
        ahead = net.module.layer(rows[AFTER])
        if kind == EndKind.TERMINATED:
            ahead[-1] = 0
        torch.testing.assert_close(rows["value_target"], rows["next", "reward"] + 0.5 * ahead)


@pytest.mark.parametrize(("kind", "options"), ALL)
def test_flat_batches_and_padded_trajectories_give_the_same(kind: type, options: Any) -> None:
    """Estimators consume the flat layout, and never want `[N_traj, T_max]`."""
    estimator = kind(gamma=0.9, value_network=critic(), **options)
    rows = trajectories([3, 5, 2], KINDS)
    flat = estimator(rows.clone())
    assert sum(sizes(estimator.value_network)) <= len(rows) + 3
    padded = estimator(split_trajectories(rows))
    mask = padded["collector", "mask"]
    torch.testing.assert_close(padded["advantage"][mask], flat["advantage"])


@pytest.mark.parametrize(("kind", "options"), ALL)
@pytest.mark.parametrize("budget", [1, 3])
def test_one_call_reads_a_sequence_of_fixed_length(kind: type, options: Any, budget: int) -> None:
    """`T + shifted_budget` observations for each row of the batch, whatever it holds."""
    for kinds in (KINDS, KINDS[::-1]):
        net = critic()
        shifted = kind(gamma=0.9, value_network=net, shifted=True, shifted_budget=budget, **options)
        shifted(environments(4, 6, [2, 5], kinds[:2]))
        assert sizes(net) == [4 * (6 + budget)]


def test_steps_displaced_by_a_truncation_are_masked_from_the_end() -> None:
    """The next observation of each internal truncation is put in, what follows moves back."""
    rows = trajectories([2, 4], [EndKind.TRUNCATED, EndKind.CUT])
    valid = GAE(gamma=0.9, lmbda=0.9, value_network=critic(), shifted=True)(rows)["shifted_valid"]
    assert valid.flatten().tolist() == [True] * 5 + [False]


def test_a_budget_of_two_covers_one_reset_and_the_boundary() -> None:
    """Then nothing is dropped, and everything equals two exact calls."""
    rows = trajectories([2, 4], [EndKind.TRUNCATED, EndKind.CUT])
    net = critic()
    options = {"gamma": 0.9, "lmbda": 0.9, "value_network": net}
    found = GAE(shifted=True, shifted_budget=2, **options)(rows.clone())
    assert found["shifted_valid"].all()
    exact = GAE(single_call=False, **options)(rows.clone())
    torch.testing.assert_close(found["advantage"], exact["advantage"])


@pytest.mark.parametrize("budget", [1, 2])
def test_a_compact_batch_needs_no_reconstruction_for_one_sequence(budget: int) -> None:
    """`compact_obs=True` and `shifted=True` compose: what is kept is exact."""
    rows = trajectories([2, 4], [EndKind.TERMINATED, EndKind.CUT])
    options = {"gamma": 0.9, "lmbda": 0.0, "value_network": critic(), "shifted": True}
    whole = GAE(shifted_budget=budget, **options)(rows.clone())
    found = GAE(shifted_budget=budget, **options)(rows.exclude(AFTER))
    kept = found["shifted_valid"].reshape(6)
    assert kept.tolist() == [True] * 5 + [False]
    torch.testing.assert_close(found["advantage"][kept], whole["advantage"][kept])
    assert AFTER not in found.keys(True)


@pytest.mark.parametrize("kind", [PPOLoss, ClipPPOLoss, KLPENPPOLoss, A2CLoss, ReinforceLoss])
def test_masked_steps_are_in_no_mean_of_a_loss(kind: type) -> None:
    """The few displaced samples are excluded rather than contaminating it."""
    policy, net = actor(), critic()
    rows = trajectories([2, 3, 4], EndKind.TRUNCATED)
    batch = acted(rows, policy)
    found = GAE(gamma=0.9, lmbda=0.9, value_network=net, shifted=True)(batch)
    kept = found["shifted_valid"].reshape(9)
    assert 0 < kept.sum() < 9
    poisoned = found.clone()
    poisoned["advantage"][~kept] = 1e6
    poisoned["value_target"][~kept] = -1e6
    alone = found[kept].exclude("shifted_valid")
    loss = kind(policy, net)
    torch.testing.assert_close(total(loss(poisoned.clone())), total(loss(alone.clone())))


def test_one_sequence_needs_the_same_parameters_and_single_steps() -> None:
    """A distinct target network, and multi-step returns, are refused."""
    gae = GAE(gamma=0.9, lmbda=0.9, value_network=critic(), shifted=True)
    rows = trajectories([4])
    with pytest.raises(ValueError, match="target_params"):
        gae(rows.clone(), target_params=TensorDict.from_module(critic()))
    rows["next", "steps_to_next_obs"] = torch.tensor([[2], [2], [2], [1]])
    with pytest.raises(ValueError, match="shifted"):
        gae(rows)


@pytest.mark.parametrize(("kind", "options"), ALL)
@pytest.mark.parametrize("pieces", [{"num_chunks": 3}, {"num_chunk": 3}, {"value_chunk_size": 3}])
def test_pieces_bound_a_call_and_change_no_result(
    kind: type, options: Any, pieces: dict[str, int]
) -> None:
    """A fixed number of chunks, or of leading elements in each."""
    net = critic()
    rows = environments(9, 4, [3], [EndKind.TRUNCATED])
    expected = kind(gamma=0.9, value_network=net, **options)(rows.clone())
    net.module.shapes.clear()
    found = kind(gamma=0.9, value_network=net, **pieces, **options)(rows.clone())
    torch.testing.assert_close(found["advantage"], expected["advantage"])
    assert len(sizes(net)) == 3
    assert max(sizes(net)) <= 2 * rows.numel() // 3  # values and next values


def test_a_number_and_a_size_of_pieces_exclude_each_other() -> None:
    """They are mutually exclusive."""
    with pytest.raises(ValueError, match="value_chunk_size=2 and num_chunks=2"):
        GAE(gamma=0.9, lmbda=0.9, value_network=critic(), value_chunk_size=2, num_chunks=2)


def test_pieces_compose_with_one_sequence() -> None:
    """The lever leaves the numerics of `shifted` untouched."""
    rows, net = environments(4, 6, [2, 5], [EndKind.TRUNCATED]), critic()
    options = {"gamma": 0.9, "lmbda": 0.9, "value_network": net, "shifted": True}
    whole = GAE(**options)(rows.clone())
    found = GAE(num_chunks=4, **options)(rows.clone())
    torch.testing.assert_close(found["advantage"], whole["advantage"])
    assert torch.equal(found["shifted_valid"], whole["shifted_valid"])


@pytest.mark.parametrize(("kind", "options"), ALL)
def test_a_nan_in_a_next_observation_reaches_no_result(kind: type, options: Any) -> None:
    """V(NaN) times zero is NaN: the input of the network is cleaned before."""
    rows = trajectories([3, 4], [EndKind.TERMINATED, EndKind.TRUNCATED])
    rows[AFTER][[2, 6]] = float("nan")
    rows["collector", "next_missing"] = torch.tensor([False, False, True] + [False] * 3 + [True])
    found = kind(gamma=0.9, value_network=critic(), **options)(rows)
    assert found["advantage"].isfinite().all()
    assert found["value_target"].isfinite().all()


def test_an_approximate_bootstrap_is_the_value_of_the_step_itself() -> None:
    """At truncated-only steps `V(obs[t])` stands for `V(real_next_obs)` where that is asked for."""
    rows, net = trajectories([3], EndKind.TRUNCATED), critic()
    rows[AFTER][2] = float("nan")
    rows["collector", "next_missing"] = torch.tensor([False, False, True])
    found = TD0Estimator(gamma=0.5, value_network=net, missing_next="root")(rows)
    own = net.module.layer(rows["observation"][2])
    torch.testing.assert_close(found["value_target"][2], rows["next", "reward"][2] + 0.5 * own)


def body(prefix: str, backend: str = "auto") -> TensorDictSequential:
    """A recurrent network with a state of its own."""
    return TensorDictSequential(
        TensorDictModule(nn.Linear(2, 8), ["observation"], [f"{prefix}_embed"]),
        GRUModule(
            input_size=8,
            hidden_size=8,
            in_keys=[f"{prefix}_embed", f"{prefix}_rs", "is_init"],
            out_keys=[f"{prefix}_features", ("next", f"{prefix}_rs")],
            recurrent_backend=backend,
        ),
    )


def recurrent_pair() -> tuple[ProbabilisticActor, TensorDictSequential]:
    """A recurrent actor and a recurrent critic."""
    policy = ProbabilisticActor(
        TensorDictSequential(
            body("actor"), TensorDictModule(nn.Linear(8, 2), ["actor_features"], ["logits"])
        ),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    value = TensorDictModule(nn.Linear(8, 1), ["critic_features"], ["state_value"])
    return policy, TensorDictSequential(body("critic"), value)


def with_states(rows: TensorDictBase) -> TensorDictBase:
    """Rows whose trajectories begin with states of zeros."""
    for name in ("actor_rs", "critic_rs"):
        rows[name] = torch.zeros(*rows.shape, 1, 8)
    return rows


def test_losses_and_advantages_run_in_recurrent_mode_by_themselves() -> None:
    """With the context manager, or without it."""
    policy, value = recurrent_pair()
    rows = with_states(trajectories([4, 3, 5], KINDS))
    with set_recurrent_mode(True):
        rows = acted(rows, policy)
    gae = GAE(gamma=0.9, lmbda=0.9, value_network=value, deactivate_vmap=True)
    loss = ClipPPOLoss(policy, value, clip_epsilon=0.2, entropy_coeff=0.0)
    alone = total(loss(gae(rows.clone())))
    with set_recurrent_mode(True), torch.no_grad():
        inside = total(loss(gae(rows.clone())))
    torch.testing.assert_close(alone, inside)
    assert not recurrent_mode()


def test_no_state_leaks_from_one_trajectory_to_the_next() -> None:
    """Neither within a training batch, nor where each is estimated alone."""
    _, value = recurrent_pair()
    rows = with_states(trajectories([4, 3, 5], KINDS))
    gae = GAE(gamma=0.9, lmbda=0.9, value_network=value)
    whole = gae(rows.clone())
    for part in (slice(0, 4), slice(4, 7), slice(7, 12)):
        alone = gae(rows[part].clone())
        torch.testing.assert_close(alone["advantage"], whole["advantage"][part])


def test_advantages_are_stored_and_sampled_as_minibatches() -> None:
    """PPO computes advantages once, then samples minibatches."""
    policy, value = recurrent_pair()
    rows = with_states(trajectories([20, 35, 12], EndKind.TRUNCATED))
    with set_recurrent_mode(True):
        rows = acted(rows, policy)
    GAE(gamma=0.9, lmbda=0.9, value_network=value)(rows)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100), sampler=SliceSampler(slice_len=8), batch_size=32
    )
    buffer.extend(rows)
    sample = buffer.sample()
    for key in ("advantage", "value_target"):
        assert torch.equal(sample[key], rows[key][sample["index"]])
    assert total(ClipPPOLoss(policy, value)(sample)).isfinite()


def test_a_sample_is_estimated_slice_by_slice() -> None:
    """Each is an independent sub-trajectory, flat or as `[num_slices, slice_len]`."""
    rows = with_states(trajectories([20, 35, 12], EndKind.TRUNCATED))
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100),
        sampler=SliceSampler(slice_len=6, strict_length=True),
        batch_size=30,
    )
    buffer.extend(rows)
    sample = buffer.sample()
    gae = GAE(gamma=0.9, lmbda=0.9, value_network=recurrent_pair()[1])
    flat, rectangle = gae(sample.clone()), gae(sample.reshape(5, 6).clone())
    torch.testing.assert_close(flat["advantage"], rectangle["advantage"].reshape(30, 1))


@pytest.mark.parametrize(("steps", "scan"), [(64, "numpy, in blocks"), (300, "numba, in one pass")])
def test_networks_of_the_readme_take_the_ways_that_pages_promise(steps: int, scan: str) -> None:
    """Explanations name the short ways for `ProbabilisticActor` and `ValueOperator`, and hold."""
    if scan.startswith("numba"):
        pytest.importorskip("numba")
    counted = Counted()
    actor = ProbabilisticActor(
        TensorDictModule(nn.Linear(2, 2), ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(counted, in_keys=["observation"])
    batch = environments(8, steps, [40, 23], [EndKind.TERMINATED])
    batch["action"] = torch.zeros(8, steps, 2, dtype=torch.int64)
    batch["sample_log_prob"] = torch.zeros(8, steps)
    gae, loss = GAE(gamma=0.99, lmbda=0.95, value_network=critic), ClipPPOLoss(actor, critic)
    text, ends = gae.explain(batch), len(Segments.of(batch))
    assert f"scan: {scan}" in text
    assert f"ValueOperator called on tensors, {8 * steps} rows and {ends} last next" in text
    assert "critic: ValueOperator called on tensors" in loss.explain(batch)
    assert loss.explain(batch).count("advantage: estimated by GAE") == 1
    gae(batch)
    assert [shape.numel() for shape in counted.shapes] == [8 * steps, ends]
    assert "advantage: stored" in loss.explain(batch)
    found = loss(batch)
    assert [shape.numel() for shape in counted.shapes[2:]] == [8 * steps]
    assert found["loss_objective"].requires_grad
