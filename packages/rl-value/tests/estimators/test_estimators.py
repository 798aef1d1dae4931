import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch.distributions import Categorical
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rl_layout import Segments, keys
from rl_layout.testing import EndKind, batches, environments, trajectories
from rl_value import GAE, TD0Estimator, TD1Estimator, TDLambdaEstimator, VTrace
from rl_value.estimators.bootstrapping.next_values import input_leaves, roles_of
from rl_value.estimators.bootstrapping.sequence_layout import SlotReader, one_step_slots

GAMMA, LMBDA = 0.9, 0.7
FLAGS = (keys.NEXT_DONE, keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED)
STEPS = keys.STEPS_TO_NEXT_OBS
KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]


class Curve(torch.nn.Module):
    """A value that tells every (trajectory, step) from every other."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([[0.7], [1.3]], dtype=torch.float64))

    def forward(self, observation):
        return torch.sin(observation.double() @ self.weight)


def critic():
    return TensorDictModule(Curve(), ["observation"], ["state_value"])


def actor():
    logits = TensorDictModule(
        lambda x: torch.sin(x.double() @ torch.tensor([[1.0, 2, 3], [3, 1, 2]]).double()),
        ["observation"],
        ["logits"],
    )
    chance = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical)
    return ProbabilisticTensorDictSequential(logits, chance)


def prepared(batch):
    """The same batch with rewards in double precision, of which no two are equal, and acts."""
    batch = batch.clone()
    shape = batch.batch_size
    numbers = torch.arange(shape.numel(), dtype=torch.float64)
    batch["next", "reward"] = torch.cos(numbers * 1.7).view(*shape, 1)
    batch["action"] = batch["action"].squeeze(-1)
    batch["sample_log_prob"] = -torch.rand(shape, dtype=torch.float64) * 2
    for name in FLAGS:
        if batch.get(name, None) is None:
            batch[name] = torch.zeros(*shape, 1, dtype=torch.bool)
    return batch


def trajectories_of(batch):
    """Row numbers of each trajectory of a batch, flattened, by the rule and row by row."""
    flat = batch.reshape(-1)
    size = len(flat)

    def column(key, default):
        value = flat.get(key, None)
        return [default(i) for i in range(size)] if value is None else value.reshape(-1).tolist()

    real = column(keys.MASK, lambda _: True)
    ids, at = column(keys.TRAJ_IDS, lambda _: 0), column(keys.TRAJ_STEP, lambda i: i)
    first, horizon = column(keys.IS_INIT, lambda _: False), column(STEPS, lambda _: 1)
    done = [any(flags) for flags in zip(*(column(k, lambda _: False) for k in FLAGS), strict=True)]
    found, current = [], []
    for i in range(size):
        if real[i]:
            current.append(i)
        j = i + 1
        goes_on = (
            j < size
            and j % batch.shape[-1] != 0
            and (real[i] and real[j])
            and ids[i] == ids[j]
            and at[i] + 1 == at[j]
            and not first[j]
            and not (done[i] and horizon[i] == 1)
        )
        if current and not goes_on:
            found.append(current)
            current = []
    return flat, found


def values_of(flat, runs):
    """Values of rows and of what follows them; inside a trajectory that is the next row."""
    value, ahead = Curve()(flat["observation"])[:, 0], Curve()(flat["next", "observation"])[:, 0]
    value, ahead = value.detach(), ahead.detach()
    for rows in runs:
        ahead[rows[:-1]] = value[rows[1:]]
    return value, ahead


def by_hand(batch, lmbda, rho=None):
    """Targets by sums over what follows, one trajectory at a time; zero on padding.

    V(sₜ) + Σₖ (γλ)ᵏ (Π c) ρ (r + γ V(s') - V) over the rest of the trajectory.
    """
    flat, runs = trajectories_of(batch)
    value, ahead = values_of(flat, runs)
    ahead = torch.where(flat["next", "terminated"][:, 0], 0, ahead)
    rho = torch.ones(len(flat)).double() if rho is None else rho.reshape(-1)
    deltas = (rho * (flat["next", "reward"][:, 0] + GAMMA * ahead - value)).tolist()
    target = torch.zeros(len(flat), dtype=torch.float64)
    for rows in runs:
        for place, i in enumerate(rows):
            total, weight = value[i].item(), 1.0
            for j in rows[place:]:
                total += weight * deltas[j]
                weight *= GAMMA * lmbda * rho[j].item()
            target[i] = total
    return target.view(*batch.batch_size, 1)


@given(batches())
def test_every_layout_equals_sums_over_each_trajectory(batch):
    batch = prepared(batch)
    calls = {"gamma": GAMMA, "value_network": critic()}
    for estimator, lmbda in (
        (TD0Estimator(**calls), 0.0),
        (TD1Estimator(**calls), 1.0),
        (TDLambdaEstimator(lmbda=LMBDA, **calls), LMBDA),
        (GAE(lmbda=LMBDA, **calls), LMBDA),
        (GAE(lmbda=LMBDA, num_chunks=3, **calls), LMBDA),
        (GAE(lmbda=LMBDA, value_chunk_size=1, single_call=False, **calls), LMBDA),
    ):
        found, expected = estimator(batch.clone()), by_hand(batch, lmbda)
        torch.testing.assert_close(found["value_target"], expected)
        mask = batch.get(keys.MASK, torch.ones(batch.batch_size, dtype=torch.bool))[..., None]
        value = torch.where(mask, Curve()(batch["observation"]), 0)
        torch.testing.assert_close(found["state_value"], value)
        torch.testing.assert_close(found["advantage"], expected - value)
        flat, runs = trajectories_of(batch)
        ahead = torch.where(mask, values_of(flat, runs)[1].view_as(value), 0)
        torch.testing.assert_close(found["next", "state_value"], ahead)


@given(batches())
def test_vtrace_equals_sums_over_each_trajectory(batch):
    batch = prepared(batch)
    estimator = VTrace(gamma=GAMMA, actor_network=actor(), value_network=critic())
    now = actor().get_dist(batch.clone()).log_prob(batch["action"])
    rho = (now - batch["sample_log_prob"]).exp().clamp(max=1)
    found = estimator(batch.clone())
    torch.testing.assert_close(found["value_target"], by_hand(batch, 1.0, rho))
    # with both bounds at 1 and λ = 1 the correction is the advantage of the policy gradient
    torch.testing.assert_close(found["advantage"], found["value_target"] - found["state_value"])


@given(batches(), st.data())
def test_steps_without_a_next_observation_carry_nothing(batch, data):
    batch = prepared(batch)
    size = batch.numel()
    missing = torch.tensor(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    missing = missing.view(batch.batch_size)
    lost = missing.unsqueeze(-1) & ~batch["next", "terminated"]
    found = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=critic())(
        batch.clone().set(keys.NEXT_MISSING, missing)
    )
    flat, runs = trajectories_of(batch)
    gone = lost.reshape(-1)
    value, ahead = values_of(flat, runs)
    ahead = torch.where(flat["next", "terminated"][:, 0], 0, ahead)
    delta = flat["next", "reward"][:, 0] + GAMMA * ahead - value
    expected = torch.zeros(size, dtype=torch.float64)
    for rows in runs:
        carried = 0.0
        for i in reversed(rows):
            carried = 0.0 if gone[i] else delta[i].item() + GAMMA * LMBDA * carried
            expected[i] = carried
    torch.testing.assert_close(found["advantage"].reshape(-1), expected)
    real = batch.get(keys.MASK, torch.ones(batch.batch_size, dtype=torch.bool)).reshape(-1)
    torch.testing.assert_close(
        found["value_target"].reshape(-1), torch.where(real, value + expected, 0)
    )


def test_a_literal_case_with_every_kind_of_end():
    batch = trajectories([2, 1, 2], KINDS)
    value = TensorDictModule(lambda x: x[:, 1:] * 10, ["observation"], ["state_value"])
    GAE(gamma=0.5, lmbda=0.5, value_network=value)(batch)
    # rewards 1, 2 | 1 | 1, 2; values 0, 10 | 0 | 0, 10; next 10, - | 10 | 10, 20
    # deltas 6, -8 | 6 | 6, 2, and 6 - 8 / 4, 6 + 2 / 4
    assert batch["advantage"].flatten().tolist() == [4, -8, 6, 6.5, 2]
    assert batch["value_target"].flatten().tolist() == [4, 2, 6, 6.5, 12]
    assert batch["next", "state_value"].flatten().tolist() == [10, 20, 10, 10, 20]


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e300])
def test_a_bad_value_in_one_trajectory_changes_no_other(poison):
    batch = prepared(trajectories([3, 4, 2], KINDS))
    estimator = GAE(gamma=1.0, lmbda=1.0, value_network=critic())
    clean = estimator(batch.clone())["advantage"]
    batch["next", "reward"][4] = poison
    found = estimator(batch.clone())["advantage"]
    assert torch.equal(found[:3], clean[:3])
    assert torch.equal(found[7:], clean[7:])
    assert not found[3].isfinite() or poison == 1e300


def test_a_nan_of_the_environment_is_not_replaced():
    batch = prepared(trajectories([3, 4], EndKind.TRUNCATED))
    batch["next", "observation"][6] = float("nan")
    for missing_next in ("skip", "root"):
        estimator = GAE(gamma=0.9, lmbda=0.9, value_network=critic(), missing_next=missing_next)
        found = estimator(batch.clone())["advantage"]
        assert found[:3].isfinite().all()
        assert found[3:].isnan().all()
        assert estimator.num_substituted == 0


def test_a_missing_next_observation_may_be_replaced_by_the_root_and_is_counted():
    batch = prepared(trajectories([3, 4, 2], KINDS))
    batch[keys.NEXT_MISSING] = torch.tensor([0, 0, 1, 0, 0, 0, 1, 0, 1]).bool()
    batch["next", "observation"][batch[keys.NEXT_MISSING]] = float("nan")
    estimator = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=critic(), missing_next="root")
    found = estimator(batch.clone())
    assert estimator.num_substituted == 2  # the terminated one needs none
    whole = batch.clone()
    whole["next", "observation"][[6, 8]] = batch["observation"][[6, 8]]
    torch.testing.assert_close(found["value_target"], by_hand(whole, LMBDA))


@pytest.mark.parametrize(
    "settings", [{}, {"shifted": True, "shifted_budget": 4}, {"num_chunks": 2}]
)
def test_a_batch_without_next_observations_leaves_out_what_it_cannot_know(settings):
    batch = prepared(environments(2, 5, [3, 4], KINDS))
    compact = batch.exclude(("next", "observation"))
    found = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=critic(), **settings)(compact.clone())
    _, runs = trajectories_of(batch)
    marked = batch.clone()
    flags = torch.zeros(10, dtype=torch.bool)
    flags[[rows[-1] for rows in runs]] = True
    marked[keys.NEXT_MISSING] = flags.view(2, 5)
    expected = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=critic())(marked)
    torch.testing.assert_close(found["advantage"], expected["advantage"])
    terminated = batch["next", "terminated"].squeeze(-1)
    assert torch.equal(found[keys.NEXT_MISSING], flags.view(2, 5) & ~terminated)
    if settings.get("shifted"):
        assert torch.equal(found["shifted_valid"], ~found[keys.NEXT_MISSING])


def test_n_step_rows_share_the_next_observation_that_one_of_them_lost():
    batch = trajectories([3], EndKind.TRUNCATED)
    batch["next", "observation"] = batch["next", "observation"][[2, 2, 2]]
    batch["next", "observation"][2] = float("nan")
    batch[("next", "done")] = batch[("next", "truncated")] = torch.ones(3, 1, dtype=torch.bool)
    batch[STEPS] = torch.tensor([[3], [2], [1]])
    batch[keys.NEXT_MISSING] = torch.tensor([False, False, True])
    net = TensorDictModule(lambda x: x[:, 1:], ["observation"], ["state_value"])
    found = TD0Estimator(gamma=1.0, value_network=net)(batch)
    assert found["next", "state_value"].flatten().tolist() == [3, 3, 0]
    assert found[keys.NEXT_MISSING].tolist() == [False, False, True]


def test_some_missing_next_observations_are_refused():
    net = TensorDictModule(lambda x, y: x[..., :1] + y[..., :1], ["observation", "goal"], ["v"])
    batch = prepared(trajectories([3]))
    batch["goal"] = torch.zeros(3, 2)
    with pytest.raises(KeyError, match=r"'goal'.*is missing, while other next observations"):
        GAE(gamma=0.9, lmbda=0.9, value_network=net)(batch)


def n_step(batch, n, gamma):
    """N-step rows of a flat batch, by their definition."""
    flat, runs = trajectories_of(batch)
    out = batch.clone()
    steps = torch.zeros(len(batch), 1, dtype=torch.int64)
    for rows in runs:
        for place, i in enumerate(rows):
            window = rows[place : place + n]
            steps[i] = len(window)
            rewards = [gamma**k * flat["next", "reward"][j] for k, j in enumerate(window)]
            out["next", "reward"][i] = sum(rewards)
            for key in ("observation", "done", "terminated", "truncated"):
                out["next", key][i] = flat["next", key][window[-1]]
    out[keys.STEPS_TO_NEXT_OBS] = steps
    return out


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("slice_rows", [False, True])
def test_n_step_rows_equal_sums_over_their_jumps(n, slice_rows):
    batch = n_step(prepared(trajectories([7, 1, 4, 6], [*KINDS, EndKind.CUT])), n, GAMMA)
    if slice_rows:  # a sample of two slices, cut out of the middle
        batch = torch.cat([batch[1:5], batch[12:16]])
        batch[keys.IS_INIT][4] = True
    _, runs = trajectories_of(batch)
    value = Curve()(batch["observation"])[:, 0]
    ahead = Curve()(batch["next", "observation"])[:, 0]
    ahead = torch.where(batch["next", "terminated"][:, 0], 0, ahead)
    steps, reward = batch[keys.STEPS_TO_NEXT_OBS][:, 0], batch["next", "reward"][:, 0]
    for lmbda in (0.0, LMBDA, 1.0):
        expected = torch.zeros(len(batch), dtype=torch.float64)
        for rows in runs:
            for i in reversed(rows):
                j, discount = i + int(steps[i]), GAMMA ** int(steps[i])
                later = (1 - lmbda) * ahead[i] + lmbda * expected[j] if j in rows else ahead[i]
                expected[i] = (reward[i] + discount * later).detach()
        found = GAE(gamma=GAMMA, lmbda=lmbda, value_network=critic())(batch.clone())
        torch.testing.assert_close(found["value_target"][:, 0], expected)
        torch.testing.assert_close(found["advantage"][:, 0], (expected - value).detach())
        torch.testing.assert_close(
            found["next", "state_value"].detach(), Curve()(batch["next", "observation"]).detach()
        )
    one = TD0Estimator(gamma=GAMMA, value_network=critic())(batch.clone())
    torch.testing.assert_close(one["value_target"][:, 0], (reward + GAMMA**steps * ahead).detach())


def test_n_step_rows_are_refused_where_they_make_no_sense():
    batch = n_step(prepared(trajectories([7])), 3, GAMMA)
    with pytest.raises(ValueError, match="shifted=True reads single steps"):
        GAE(gamma=0.9, lmbda=0.9, value_network=critic(), shifted=True)(batch)
    with pytest.raises(ValueError, match="V-trace weighs single actions"):
        VTrace(gamma=0.9, actor_network=actor(), value_network=critic())(batch)


@pytest.mark.parametrize(("budget", "lost"), [(1, {0: [4], 1: []}), (2, {0: [], 1: []})])
def test_shifted_leaves_out_what_does_not_fit(budget, lost):
    batch = prepared(environments(2, 5, [2, 5], [EndKind.TRUNCATED, EndKind.TERMINATED]))
    # row 0: truncated after step 1, then cut: 7 slots; row 1: terminated after step 4
    assert batch["next", "done"][..., 0].tolist() == [[0, 1, 0, 0, 0], [0, 0, 0, 0, 1]]
    settings = {"gamma": GAMMA, "lmbda": LMBDA, "value_network": critic()}
    found = GAE(shifted=True, shifted_budget=budget, **settings)(batch.clone())
    valid = torch.ones(2, 5, dtype=torch.bool)
    for row, steps in lost.items():
        valid[row, steps] = False
    assert torch.equal(found["shifted_valid"], valid)
    assert found["advantage"][~valid].eq(0).all()
    assert found["value_target"][~valid].eq(0).all()
    cut = batch.clone()
    cut[keys.MASK] = valid  # what is left is estimated as if the rest were not there
    expected = GAE(**settings)(cut)
    torch.testing.assert_close(found["advantage"], expected["advantage"])


@given(batches(), st.integers(1, 4))
def test_shifted_is_exact_wherever_it_is_valid(batch, budget):
    batch = prepared(batch)
    seen = []
    net = critic()
    net.register_forward_hook(lambda _, args, out: seen.append(len(out)))
    settings = {"gamma": GAMMA, "lmbda": LMBDA}
    found = GAE(shifted=True, shifted_budget=budget, value_network=net, **settings)(batch.clone())
    valid = found["shifted_valid"]
    rows, steps = batch.numel() // batch.shape[-1], batch.shape[-1]
    has_steps = bool(batch.get(keys.MASK, torch.ones(1, dtype=torch.bool)).any())
    assert seen[0] == (rows * (steps + budget) if has_steps else 1)  # one blank row where none is
    kept = batch.clone().set(keys.MASK, valid)
    expected = GAE(value_network=critic(), **settings)(kept)
    torch.testing.assert_close(found["advantage"][valid], expected["advantage"][valid])
    assert not found["advantage"][~valid].any()


def test_a_mask_of_an_earlier_call_is_refreshed():
    batch = prepared(trajectories([2, 3], EndKind.TRUNCATED))
    settings = {"gamma": 0.9, "lmbda": 0.9, "value_network": critic()}
    assert not GAE(shifted=True, **settings)(batch)["shifted_valid"].all()
    assert GAE(**settings)(batch)["shifted_valid"].all()


@pytest.mark.parametrize(
    ("settings", "largest"),
    [
        ({"num_chunks": 4}, 4),
        ({"value_chunk_size": 5}, 6),
        ({"num_chunk": 12}, 4),
    ],
)
def test_chunks_hold_whole_segments_and_no_more_than_they_may(settings, largest):
    batch = prepared(trajectories([3, 1, 2, 2], EndKind.TRUNCATED))
    net, seen = critic(), []
    net.module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    GAE(gamma=0.9, lmbda=0.9, value_network=net, **settings)(batch)
    assert max(map(len, seen)) == largest
    assert sum(map(len, seen)) == 12
    assert all(rows[0, 1] == 0 for rows in seen)  # each begins with the first step of one


@pytest.mark.parametrize(("dim", "largest"), [(0, 5), (1, 25)])  # a 20th and a 6th of 150
def test_the_dimension_that_chunks_count_is_one_of_the_batch_that_was_given(dim, largest):
    batch = prepared(environments(6, 20, [4], [EndKind.TRUNCATED])).transpose(0, 1)  # [T, B]
    net, seen = critic(), []
    net.module.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    settings = {"time_dim": 0, "value_chunk_size": 1, "value_chunk_dim": dim}
    GAE(gamma=0.9, lmbda=0.9, value_network=net, **settings)(batch.contiguous())
    assert sum(seen) == 150  # 30 trajectories of 4, each with its last next observation
    assert max(seen) == largest


def test_a_target_network_gives_the_next_values():
    batch = prepared(trajectories([3, 4], EndKind.TRUNCATED))
    net, target = critic(), critic()
    with torch.no_grad():
        target.module.weight.mul_(2)
    estimator = TD0Estimator(gamma=GAMMA, value_network=net)
    found = estimator(batch.clone(), target_params=TensorDict.from_module(target))
    ahead = target.module(batch["next", "observation"])
    torch.testing.assert_close(found["value_target"], batch["next", "reward"] + GAMMA * ahead)
    torch.testing.assert_close(found["state_value"], net.module(batch["observation"]))
    both = estimator(
        batch.clone(),
        params=TensorDict.from_module(target),
        target_params=TensorDict.from_module(net),
    )
    torch.testing.assert_close(both["state_value"], target.module(batch["observation"]))
    with pytest.raises(ValueError, match="takes no target_params"):
        GAE(gamma=0.9, lmbda=0.9, value_network=net, shifted=True)(
            batch, target_params=TensorDict.from_module(target)
        )


def test_stored_values_are_used_where_they_are_wanted():
    batch = prepared(trajectories([3, 2], EndKind.TRUNCATED))
    batch["state_value"] = torch.arange(5.0).double()[:, None]
    found = GAE(gamma=0.5, lmbda=0.0, value_network=critic(), skip_existing=True)(batch.clone())
    assert torch.equal(found["state_value"], batch["state_value"])
    ends = Curve()(batch["next", "observation"])[:, 0]
    expected = torch.tensor([1.0, 2.0, ends[2].item(), 4.0, ends[4].item()]).double()
    torch.testing.assert_close(found["next", "state_value"][:, 0], expected)
    batch["next", "state_value"] = torch.full((5, 1), 7.0).double()
    net = TensorDictModule(lambda x: 1 / 0, ["observation"], ["state_value"])
    for estimator in (
        GAE(gamma=0.5, lmbda=0.0, value_network=net, skip_existing=True),
        GAE(gamma=0.5, lmbda=0.0, value_network=None),
    ):
        found = estimator(batch.clone())
        torch.testing.assert_close(found["value_target"], batch["next", "reward"] + 3.5)
    with pytest.raises(ValueError, match=r"'state_value' or .* is missing, and there is no value"):
        GAE(gamma=0.5, lmbda=0.0, value_network=None)(batch.exclude("state_value"))


def test_gradients_flow_only_where_they_are_wanted():
    batch = prepared(trajectories([3, 2], EndKind.TRUNCATED))
    net = critic()
    assert not GAE(gamma=0.9, lmbda=0.9, value_network=net)(batch.clone())[
        "advantage"
    ].requires_grad
    batch["observation"].requires_grad_()
    reward = batch["next", "reward"].requires_grad_()
    found = GAE(gamma=0.9, lmbda=0.9, value_network=net, differentiable=True)(batch.clone())
    (found["advantage"].sum() + found["value_target"].square().sum()).backward()
    assert reward.grad.abs().sum() > 0
    assert batch["observation"].grad.abs().sum() > 0


@pytest.mark.parametrize("passed", [False, True])
@pytest.mark.parametrize("kind", [GAE, TD0Estimator, TD1Estimator, TDLambdaEstimator, VTrace])
def test_no_estimator_trains_a_network(kind, passed):
    net, acts = critic(), actor()
    acts[0].module = torch.nn.Linear(2, 3)
    settings = {"lmbda": 0.8} if kind in (GAE, TDLambdaEstimator) else {}
    settings |= {"actor_network": acts} if kind is VTrace else {}
    batch = prepared(trajectories([3, 2], EndKind.TRUNCATED))
    batch["next", "reward"].requires_grad_()
    params = TensorDict.from_module(net) if passed else None
    estimator = kind(gamma=0.9, value_network=net, differentiable=True, **settings)
    found = estimator(batch, params=params, target_params=params)
    (found["advantage"].square().sum() + found["value_target"].sum()).backward()
    assert all(weight.grad is None for weight in (*net.parameters(), *acts.parameters()))
    assert all(weight.requires_grad for weight in (*net.parameters(), *acts.parameters()))


def test_time_may_be_another_dimension():
    batch = prepared(environments(3, 5, [2, 4], KINDS))
    settings = {"gamma": GAMMA, "lmbda": LMBDA, "value_network": critic()}
    expected = GAE(**settings)(batch.clone())
    plain = TensorDict(batch.to_dict(), [3, 5])
    swapped = TensorDict(plain.transpose(0, 1).to_dict(), [5, 3])
    named = swapped.clone()
    named.names = ["time", None]
    for found in (GAE(time_dim=0, **settings)(swapped), GAE(**settings)(named)):
        for key in ("advantage", "value_target", "state_value"):
            torch.testing.assert_close(found[key].transpose(0, 1), expected[key])
    for estimator in (GAE(**settings), GAE(time_dim=1, **settings)):  # what is said last wins
        found = estimator(swapped.clone(), time_dim=0)
        torch.testing.assert_close(found["advantage"].transpose(0, 1), expected["advantage"])
        target = estimator.value_estimate(swapped.clone(), time_dim=0)
        torch.testing.assert_close(target.transpose(0, 1), expected["value_target"])
    assert swapped.names == [None, None]
    with pytest.raises(ValueError, match=r"time_dim=2: the batch is \[3, 5\]"):
        GAE(time_dim=2, **settings)(plain)


def test_steps_of_frames_that_are_lost_carry_nothing():
    batch = prepared(trajectories([3, 4], KINDS[:2]))
    lost = torch.tensor([1, 0, 0, 1, 1, 0, 0]).bool()
    batch["collector", "history_missing"] = lost
    settings = {"gamma": GAMMA, "lmbda": LMBDA, "value_network": critic()}
    found = GAE(**settings)(batch.clone())
    assert not found["advantage"][lost].any()
    assert torch.equal(found["value_target"][lost], found["state_value"][lost])
    plain = GAE(**settings)(batch.exclude(("collector", "history_missing")))["advantage"][~lost]
    torch.testing.assert_close(found["advantage"][~lost], plain)
    found = GAE(average_gae=True, **settings)(batch.clone())["advantage"]
    torch.testing.assert_close(found[~lost], (plain - plain.mean()) / plain.std())
    assert not found[lost].any()


def test_averages_are_over_the_steps_that_count():
    batch = prepared(trajectories([3, 4], EndKind.TRUNCATED))
    batch[keys.NEXT_MISSING] = torch.tensor([0, 0, 0, 0, 0, 0, 1]).bool()
    batch[keys.MASK] = torch.tensor([0, 1, 1, 1, 1, 1, 1]).bool()
    batch["next", "reward"][0] = 1e9  # padding
    settings = {"gamma": 0.9, "lmbda": 0.9, "value_network": critic()}
    plain = GAE(**settings)(batch.clone())["advantage"][1:6]
    found = GAE(average_gae=True, **settings)(batch.clone())["advantage"]
    torch.testing.assert_close(found[1:6], (plain - plain.mean()) / plain.std())
    assert found[0] == found[6] == 0
    reward = batch["next", "reward"][1:]
    scaled = batch.clone()
    scaled["next", "reward"][1:] = (reward - reward[:-1].mean()) / reward[:-1].std()
    expected = GAE(**settings)(scaled)["advantage"]
    found = GAE(average_rewards=True, **settings)(batch.clone())["advantage"]
    torch.testing.assert_close(found, expected)


def test_estimators_take_several_rewards_and_agents():
    batch = prepared(trajectories([3, 2], EndKind.TERMINATED))
    columns = torch.stack([batch["next", "reward"][:, 0]] * 6, -1) * torch.arange(1.0, 7)
    agents = batch.clone()
    agents["next", "agents"] = TensorDict(
        {
            "reward": columns.view(5, 3, 2),
            "terminated": batch["next", "terminated"][:, None].expand(5, 3, 1),
            "done": batch["next", "done"][:, None].expand(5, 3, 1),
        },
        [5],
    )
    net = TensorDictModule(
        lambda x: Curve()(x)[..., None] * torch.arange(1.0, 7).view(3, 2), ["observation"], ["v"]
    )
    estimator = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=net)
    estimator.set_keys(
        reward=("agents", "reward"),
        done=("agents", "done"),
        terminated=("agents", "terminated"),
        value="v",
    )
    found = estimator(agents)["advantage"]
    one = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=critic())(batch)["advantage"]
    torch.testing.assert_close(found, one[..., None] * torch.arange(1.0, 7).view(3, 2))


@pytest.mark.parametrize("kind", [GAE, TDLambdaEstimator, TD1Estimator, TD0Estimator])
def test_members_of_a_group_that_terminate_before_the_others_are_cut_there(kind):
    # an agent that is out stays terminated, as environments of agents with flags of their own say
    batch = prepared(trajectories([6, 4], EndKind.TRUNCATED))
    outs = [3, 6, 1]  # steps of each trajectory that the agent plays
    step = torch.tensor([*range(6), *range(4)])
    terminated = torch.stack([step >= out - 1 for out in outs], -1)[..., None]
    over = batch["next", "done"][:, None].expand(10, 3, 1)
    reward = batch["next", "reward"][:, None] * torch.tensor([1.0, 2, 3]).double().view(3, 1)
    batch["next", "agents"] = TensorDict(
        {"reward": reward, "terminated": terminated, "done": terminated | over}, [10]
    )
    net = TensorDictModule(
        lambda x: Curve()(x)[:, None].expand(-1, 3, 1), ["observation"], ["value"]
    )
    settings = {"lmbda": LMBDA} if kind in (GAE, TDLambdaEstimator) else {}
    estimator = kind(gamma=GAMMA, value_network=net, **settings)
    estimator.set_keys(
        **{k: ("agents", k) for k in ("reward", "done", "terminated")}, value="value"
    )
    found = estimator(batch.clone())
    for agent in range(3):
        # what one agent alone would find, whose trajectories end at its own flags
        alone = batch.exclude("collector", ("next", "agents"))
        out = torch.cat([torch.ones(1, 1).bool(), terminated[:-1, agent]])
        alone["is_init"] = batch["is_init"] | out
        for name in ("reward", "terminated", "done"):
            alone["next", name] = batch["next", "agents", name][:, agent].clone()
        alone["next", "truncated"] = alone["next", "done"] & ~alone["next", "terminated"]
        one = kind(
            gamma=GAMMA,
            value_network=TensorDictModule(Curve(), ["observation"], ["state_value"]),
            **settings,
        )(alone)
        for name in ("advantage", "value_target"):
            torch.testing.assert_close(found[name][:, agent], one[name])


def test_entries_of_other_names_are_read_and_written():
    batch = prepared(trajectories([3, 2], KINDS[:2]))
    settings = {"gamma": GAMMA, "lmbda": LMBDA, "value_network": critic()}
    expected = GAE(**settings)(batch.clone())
    renamed = batch.exclude("is_init", "collector")
    for old, new in (("reward", "gain"), ("done", "over"), ("terminated", "dead")):
        renamed["next", new] = renamed["next", old]
    renamed = renamed.exclude(*(("next", k) for k in ("reward", "done", "terminated", "truncated")))
    estimator = GAE(**settings)
    estimator.set_keys(
        reward="gain", done="over", terminated=("next", "dead"), advantage=("gae", "a")
    )
    torch.testing.assert_close(estimator(renamed)["gae", "a"], expected["advantage"])


def test_discount_may_be_one_per_step():
    batch = prepared(environments(2, 5, [3, 4], KINDS))
    gamma = torch.rand(2, 5, 1, dtype=torch.float64)
    found = TD0Estimator(gamma=gamma, value_network=critic())(batch.clone())["value_target"]
    ahead = Curve()(batch["next", "observation"]).masked_fill(batch["next", "terminated"], 0)
    torch.testing.assert_close(found, (batch["next", "reward"] + gamma * ahead).detach())


@pytest.mark.parametrize("name", ["gamma", "lmbda"])
@pytest.mark.parametrize("kind", [GAE, TDLambdaEstimator, VTrace])
def test_settings_per_step_lie_as_the_batch_does(kind, name):
    batch = prepared(environments(4, 4, [3, 2], KINDS))
    batch[keys.MASK] = torch.arange(16).view(4, 4) % 5 != 1
    each = torch.rand(4, 4, 1, dtype=torch.float64)
    settings = {"gamma": GAMMA, "lmbda": LMBDA, "value_network": critic()}
    settings |= {"actor_network": actor()} if kind is VTrace else {}
    found = kind(**{**settings, name: each})(batch.clone())["value_target"]
    plain = TensorDict(batch.to_dict(), [4, 4])
    turned = TensorDict(plain.transpose(0, 1).to_dict(), [4, 4])
    estimator = kind(time_dim=0, **{**settings, name: each.transpose(0, 1)})
    torch.testing.assert_close(estimator(turned)["value_target"].transpose(0, 1), found)
    real = batch[keys.MASK].view(-1)
    flat = batch.reshape(-1)[real]  # the same segments without padding, by their markers
    alone = kind(**{**settings, name: each.view(-1, 1)[real]})(flat)["value_target"]
    torch.testing.assert_close(found.view(-1, 1)[real], alone)


def test_settings_do_not_change_the_precision():
    batch = trajectories([3], EndKind.TRUNCATED)
    net = TensorDictModule(lambda x: torch.sin(x[:, 1:]), ["observation"], ["v"])
    gamma, lmbda = torch.tensor([0.9]).double(), torch.tensor(0.5).double()
    found = GAE(gamma=gamma, lmbda=lmbda, value_network=net)(batch.clone())["advantage"]
    assert found.dtype == torch.float32
    plain = GAE(gamma=0.9, lmbda=0.5, value_network=net)(batch.clone())["advantage"]
    torch.testing.assert_close(found, plain)
    batch[STEPS] = torch.ones(3, 1, dtype=torch.int64)
    batch["next", "reward"] = torch.zeros(3, 1).half()
    made = TD0Estimator(gamma=0.99, value_network=net)(batch)
    torch.testing.assert_close(made["value_target"], 0.99 * made["next", "v"])


def test_plain_tensors_may_be_passed():
    batch = prepared(trajectories([3, 2], KINDS[:2]))
    estimator = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=critic())
    advantage, target = estimator(
        observation=batch["observation"],
        next_observation=batch["next", "observation"],
        next_reward=batch["next", "reward"],
        next_done=batch["next", "done"],
        next_terminated=batch["next", "terminated"],
    )
    torch.testing.assert_close(advantage, estimator(batch)["advantage"])
    torch.testing.assert_close(target, batch["value_target"])


@pytest.mark.parametrize("marked", [False, True])
def test_a_next_observation_of_another_shape_is_refused_however_it_is_read(marked):
    batch = prepared(trajectories([3]))
    batch["next", "observation"] = torch.zeros(3, 5)
    reads = ["observation", "is_init"] if marked else ["observation"]
    net = TensorDictModule(lambda x, *_: x[:, :1], reads, ["state_value"])
    with pytest.raises(ValueError, match=r"expected the shape at the root, \[3, 2\]"):
        TD0Estimator(gamma=0.9, value_network=net)(batch)


def test_value_estimate_writes_nothing():
    batch = prepared(environments(2, 5, [3, 4], KINDS))
    estimator = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=critic())
    before = set(batch.keys(True, True))
    found = estimator.value_estimate(batch)
    assert set(batch.keys(True, True)) == before
    torch.testing.assert_close(found, by_hand(batch, LMBDA))
    known = estimator.value_estimate(batch, next_value=Curve()(batch["next", "observation"]))
    torch.testing.assert_close(known, found)


def test_vtrace_changes_no_stored_entry():
    batch = prepared(environments(2, 5, [3, 4], KINDS))
    copy = batch.clone()
    VTrace(gamma=0.9, actor_network=actor(), value_network=critic())(batch)
    assert (batch.select(*copy.keys(True, True)) == copy).all()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"gamma": 1.5}, ValueError, r"gamma: expected a number in \[0, 1\]"),
        ({"lmbda": -1}, ValueError, r"lmbda: expected a number in \[0, 1\]"),
        ({"shifted": 1}, ValueError, "shifted: expected True or False"),
        ({"shifted_budget": 0}, ValueError, "shifted_budget: expected at least 1"),
        ({"num_chunks": 0}, ValueError, "num_chunks: expected at least 1"),
        ({"num_chunks": 1.5}, TypeError, "num_chunks: expected a whole number"),
        ({"value_chunk_size": 2, "num_chunks": 2}, ValueError, "pass one of them"),
        ({"num_chunk": 3, "num_chunks": 2}, ValueError, "are one setting"),
        ({"missing_next": "mean"}, ValueError, "missing_next: expected 'skip' or 'root'"),
        ({"value_chunk_dim": "time"}, TypeError, "value_chunk_dim: expected a whole number"),
        ({"value_network": Curve()}, TypeError, "got Curve. Wrap it in a TensorDictModule"),
        ({"advantage_key": "a"}, RuntimeError, r"call set_keys\(advantage="),
        ({"speed": 1}, TypeError, "unexpected argument 'speed'"),
    ],
)
def test_wrong_settings_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        GAE(**{"gamma": 0.9, "lmbda": 0.9, "value_network": critic(), **settings})


def test_wrong_names_are_refused():
    estimator = GAE(gamma=0.9, lmbda=0.9, value_network=critic())
    with pytest.raises(KeyError, match="there is no entry 'rewards'"):
        estimator.set_keys(rewards="a")
    with pytest.raises(ValueError, match="reward: a key must be a string"):
        estimator.set_keys(reward=3)
    with pytest.raises(KeyError, match=r"the network writes \['state_value'\]"):
        estimator.set_keys(value="v")
    two = TensorDictModule(lambda x: (x, x), ["observation"], ["v", "w"])
    with pytest.raises(KeyError, match=r"writes \['v', 'w'\], not 'state_value'.*set_keys\(value="):
        GAE(gamma=0.9, lmbda=0.9, value_network=two)(prepared(trajectories([3])))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda b: b.exclude(("next", "reward")), KeyError, "'reward'.* is missing"),
        (
            lambda b: b.exclude(("next", "done"), ("next", "terminated")),
            KeyError,
            r"without them no target knows .*set_keys\(terminated=, done=\)",
        ),
        (
            lambda b: b.set(("next", "terminated"), b["next", "terminated"].long()),
            TypeError,
            "'terminated'.*expected torch.bool",
        ),
        (
            lambda b: b.set(("next", "reward"), b["next", "reward"].long()),
            TypeError,
            "'reward': expected floating point",
        ),
        (
            lambda b: b.set(("next", "reward"), torch.zeros(3)),
            ValueError,
            r"the reward ends in a dimension of its own.*unsqueeze\(-1\)",
        ),
        (
            lambda b: b.set(STEPS, torch.tensor([[1], [0], [1]])),
            ValueError,
            "steps_to_next_obs.*expected 1 or more steps, got 0",
        ),
        (
            lambda b: b.set(("next", "reward"), torch.zeros(3, 2)),
            ValueError,
            r"value: expected the shape of the reward, \[3, 2\]",
        ),
        (lambda b: b.exclude("observation"), KeyError, "'observation' is missing"),
        (
            lambda b: b.set(keys.NEXT_MISSING, torch.zeros(3)),
            TypeError,
            "next_missing.*expected torch.bool",
        ),
        (lambda b: b[0], ValueError, r"got batch size \[\]"),
        (lambda b: b.to("meta"), ValueError, "on 'meta' and holds no numbers"),
        (lambda b: b.lock_(), RuntimeError, r"the batch is locked.*Pass batch.copy\(\)"),
    ],
)
def test_wrong_data_is_refused(change, error, message):
    batch = change(prepared(trajectories([3])))
    with pytest.raises(error, match=message):
        GAE(gamma=0.9, lmbda=0.9, value_network=critic())(batch)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"gamma": "0.9"}, TypeError, "gamma: expected a number in .* got '0.9'"),
        ({"gamma": None}, TypeError, "gamma: expected a number in .* got None"),
        ({"gamma": torch.ones(4)}, ValueError, r"gamma: .* broadcasts to \[3, 1\], got \[4\]"),
        ({"time_dim": "time"}, TypeError, "time_dim: expected a whole number, got 'time'"),
    ],
)
def test_settings_that_do_not_fit_the_batch_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        GAE(**{"gamma": 0.9, "lmbda": 0.9, "value_network": critic(), **settings})(
            prepared(trajectories([3]))
        )


class Peak(TorchDispatchMode):
    """The most bytes that tensors made inside held at once."""

    def __init__(self, batch):
        super().__init__()
        self.given = {leaf.untyped_storage().data_ptr() for leaf in batch.values(True, True)}
        self.live, self.bytes = {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for value in tree_leaves(found):
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                if storage.data_ptr() not in self.given:
                    weak = StorageWeakRef(storage)
                    self.live[weak.cdata] = weak, storage.nbytes()
        self.live = {key: held for key, held in self.live.items() if not held[0].expired()}
        self.bytes = max(self.bytes, sum(size for _, size in self.live.values()))
        return found


@pytest.mark.parametrize("settings", [{"value_chunk_size": 60}, {"num_chunks": 12}])
@pytest.mark.parametrize("marked", [False, True])
def test_chunks_cap_the_memory_that_a_network_needs(settings, marked):
    batch = trajectories([30, 10, 20] * 12, EndKind.TRUNCATED)  # 720 rows
    batch["observation"] = torch.randn(720, 50)
    batch["next", "observation"] = torch.randn(720, 50)
    body = torch.nn.Sequential(torch.nn.Linear(50, 300), torch.nn.Tanh(), torch.nn.Linear(300, 1))
    net = TensorDictModule(body, ["observation"], ["state_value"])
    if marked:  # reads the order of rows, as a recurrent network does
        reads = ["observation", "is_init"]
        net = TensorDictModule(lambda x, _: body(x), reads, ["state_value"])
    peaks = []
    for chunks in ({}, settings):
        made = batch.clone()
        with Peak(made) as peak:
            GAE(gamma=0.9, lmbda=0.9, value_network=net, **chunks)(made)
        peaks.append(peak.bytes)
    whole, capped = peaks
    assert whole > 720 * 300 * 4  # a hidden layer of all rows
    assert capped < 720 * 50 * 4 * 2  # less than two copies of the observations
    assert capped < whole / 5


def test_batch_with_time_first_is_copied_one_chunk_at_a_time():
    batch = environments(12, 60, [7, 9], KINDS)
    batch["observation"] = torch.randn(60, 12, 50).transpose(0, 1)
    batch["next", "observation"] = torch.randn(60, 12, 50).transpose(0, 1)
    segments = Segments.of(batch)
    slots = one_step_slots(segments)
    with Peak(batch) as peak:
        reader = SlotReader(input_leaves(roles_of(critic()), batch), segments, slots, None)
        made, size = next(iter(reader.inputs(60)))
    assert size > 30
    assert peak.bytes < 2.1 * 60 * 50 * 4  # the rows of the chunk, and what is put into them
    whole = batch["observation"].contiguous().view(-1, 50)
    after = batch["next", "observation"].contiguous().view(-1, 50)
    rows, ahead = segments.rows[slots.source[:size]], slots.is_next[:size, None]
    assert torch.equal(made["observation",], torch.where(ahead, after[rows], whole[rows]))


def test_settings_that_change_nothing_are_accepted():
    batch = prepared(trajectories([3, 2], KINDS[:2]))
    settings = {"gamma": GAMMA, "lmbda": LMBDA, "value_network": critic()}
    found = GAE(deactivate_vmap=True, num_chunk=2, **settings)(batch.clone())["advantage"]
    torch.testing.assert_close(found, GAE(**settings)(batch)["advantage"])


@pytest.mark.parametrize("setting", [{"vectorized": False}, {"device": "cpu"}])
@pytest.mark.parametrize(("kind", "more"), [(GAE, {"lmbda": LMBDA}), (TD0Estimator, {})])
def test_settings_without_effect_are_deprecated_at_the_caller(kind, more, setting):
    with pytest.warns(DeprecationWarning, match=f"{next(iter(setting))} has no effect") as caught:
        kind(gamma=GAMMA, value_network=critic(), **more, **setting)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_values_of_half_precision_are_widened(dtype):
    batch = prepared(trajectories([3, 2], KINDS[:2]))
    batch["next", "reward"] = batch["next", "reward"].to(dtype)
    net = TensorDictModule(lambda x: torch.sin(x[:, 1:]).to(dtype), ["observation"], ["v"])
    found = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=net)(batch.clone())["advantage"]
    wide = TensorDictModule(lambda x: net.module(x).float(), ["observation"], ["v"])
    batch["next", "reward"] = batch["next", "reward"].float()
    assert found.dtype == torch.float32
    torch.testing.assert_close(
        found, GAE(gamma=GAMMA, lmbda=LMBDA, value_network=wide)(batch)["advantage"]
    )


def test_a_stored_value_of_the_next_state_is_used_where_the_network_gives_the_other():
    batch = prepared(trajectories([4, 3], EndKind.CUT))
    stored = torch.randn(7, 1, dtype=torch.float64)
    batch["next", "state_value"] = stored
    found = TD0Estimator(gamma=0.9, value_network=critic(), skip_existing=True)(batch)
    torch.testing.assert_close(found["next", "state_value"], stored)
    torch.testing.assert_close(found["value_target"], batch["next", "reward"] + 0.9 * stored)


@pytest.mark.parametrize("flag", [keys.NEXT_MISSING, keys.HISTORY_MISSING])
def test_rewards_of_steps_left_out_are_not_in_their_mean(flag):
    batch = prepared(trajectories([5], EndKind.CUT))
    batch[flag] = torch.tensor([0, 1, 0, 0, 0]).bool()
    made = TD0Estimator(gamma=0.0, value_network=critic(), average_rewards=True)
    few = made(batch.clone())["value_target"]
    batch["next", "reward"][1] = 1e6
    torch.testing.assert_close(made(batch)["value_target"], few)
    rest = batch["next", "reward"][[0, 2, 3, 4]]
    torch.testing.assert_close(few[[0, 2, 3, 4]], (rest - rest.mean()) / rest.std())


def test_next_values_of_another_number_of_steps_are_refused():
    batch = prepared(trajectories([4, 3], EndKind.CUT))
    with pytest.raises(ValueError, match=r"next_value: expected \[7, 1\].* got \[6, 1\]"):
        GAE(gamma=0.9, lmbda=0.9, value_network=critic()).value_estimate(
            batch, next_value=torch.zeros(6, 1)
        )


def test_a_group_of_entries_is_no_input():
    batch = prepared(trajectories([4, 3], EndKind.CUT))
    batch["both"] = TensorDict({"x": torch.ones(7, 2)}, [7])
    net = TensorDictModule(lambda both: both["x"][:, :1], ["both"], ["state_value"])
    with pytest.raises(TypeError, match=r"'both': expected a tensor.*Name its leaves in in_keys"):
        GAE(gamma=0.9, lmbda=0.9, value_network=net)(batch)


def test_value_estimate_refuses_next_values_that_are_no_tensor():
    estimator = TD0Estimator(gamma=0.5, value_network=None)
    with pytest.raises(TypeError, match=r"next_value: expected a tensor or None, got 2 \(int\)"):
        estimator.value_estimate(trajectories([3]), next_value=2)


def test_skip_existing_is_a_flag():
    assert TD0Estimator(gamma=0.5, value_network=None, skip_existing=np.True_).skip_existing
    with pytest.raises(TypeError, match="skip_existing: expected True, False or None"):
        TD0Estimator(gamma=0.5, value_network=None, skip_existing=np.zeros(3))
