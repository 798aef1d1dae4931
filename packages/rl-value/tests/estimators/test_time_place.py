"""The time dimension: given, named or last, and checked against observations."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch.distributions import Categorical

from rl_layout.testing import EndKind, environments
from rl_value import (
    GAE,
    A2CLoss,
    DQNLoss,
    TD0Estimator,
    TD1Estimator,
    TDLambdaEstimator,
    VTrace,
    gae,
    reward_to_go,
    td1,
    td_lambda,
    vtrace,
)

MESSAGE = (
    r"time seems to be dimension 0 of the batch \[5, 3\].*Pass time_dim=0 to an.*'time', None\]"
)
RECURRENT = r"time seems to be dimension 0 of the batch \[5, 3\].*pass batch.transpose\(0, -1\)"


def actor(*more):
    net = TensorDictModule(
        lambda x, *_: torch.sin(x.double() @ torch.tensor([[1.0, 2, 3], [3, 1, 2]]).double()),
        ["observation", *more],
        ["logits"],
    )
    choice = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical)
    return ProbabilisticTensorDictSequential(net, choice)


def critic():
    net = torch.nn.Linear(2, 1).double()
    return TensorDictModule(lambda x: net(x.double()), ["observation"], ["state_value"])


def rows_of_time():
    """Three environments of five steps, ``[3, 5]``; no ids, no steps, no names."""
    batch = environments(3, 5, [2, 4, 9], [EndKind.TRUNCATED])
    batch["action"] = batch["action"].squeeze(-1) % 3
    batch["sample_log_prob"] = torch.full((3, 5), -1.0).double()
    batch["next", "reward"] = torch.randn(3, 5, 1).double()
    return TensorDict(batch.exclude("collector", "is_init").to_dict(), [3, 5])


def time_first():
    """The same as a vector of environments gives it, ``[5, 3]``."""
    return TensorDict(rows_of_time().transpose(0, 1).contiguous().to_dict(), [5, 3])


@pytest.mark.parametrize("kind", [GAE, TD0Estimator, TD1Estimator, TDLambdaEstimator, VTrace])
@pytest.mark.parametrize("settings", [{}, {"shifted": True}, {"num_chunks": 2}])
def test_an_estimator_refuses_to_walk_along_environments(kind, settings):
    settings = settings | ({"lmbda": 0.8} if kind in (GAE, TDLambdaEstimator) else {})
    settings |= {"actor_network": actor()} if kind is VTrace else {}
    torch.manual_seed(0)
    estimator = kind(gamma=0.9, value_network=critic(), **settings)
    rows, columns = rows_of_time(), time_first()
    columns["next", "reward"] = rows["next", "reward"].transpose(0, 1)
    expected = estimator(rows.clone())["advantage"].transpose(0, 1)
    with pytest.raises(ValueError, match=MESSAGE):
        estimator(columns.clone())
    with pytest.raises(ValueError, match=MESSAGE):
        estimator.value_estimate(columns.clone())
    torch.testing.assert_close(estimator(columns.clone(), time_dim=0)["advantage"], expected)
    columns.names = ["time", None]
    torch.testing.assert_close(estimator(columns)["advantage"], expected)


@pytest.mark.parametrize("compiled", [False, True])
def test_dqn_loss_refuses_time_in_another_dimension(compiled):
    net = TensorDictModule(torch.nn.Linear(2, 3), ["observation"], ["action_value"])
    loss = DQNLoss(net, action_space="categorical")
    call = torch.compile(loss, backend="eager", fullgraph=True) if compiled else loss
    with pytest.raises(ValueError, match=MESSAGE):
        call(time_first())
    found = call(rows_of_time())["loss"]
    loss.make_value_estimator(gamma=0.99, time_dim=0)
    torch.testing.assert_close(loss(time_first())["loss"].isfinite(), found.isfinite())


@pytest.mark.parametrize("compiled", [False, True])
def test_recurrent_actor_loss_refuses_time_in_another_dimension(compiled):
    batch = time_first()
    batch["is_init"] = torch.zeros(5, 3, 1, dtype=torch.bool)
    batch["is_init"][0] = True
    batch["advantage"] = batch["value_target"] = torch.zeros(5, 3, 1).double()
    loss = A2CLoss(actor("is_init"), critic())
    call = torch.compile(loss, backend="eager") if compiled else loss
    with pytest.raises(ValueError, match=RECURRENT):
        call(batch)
    with pytest.raises(ValueError, match=RECURRENT):  # also where the estimator would look
        call(batch.exclude("advantage", "value_target"))
    assert loss(batch.transpose(0, -1))["loss_objective"] == 0  # what the message says
    assert A2CLoss(actor(), critic())(batch)["loss_objective"] == 0  # looks at single rows


def numbered():
    """Five steps of three environments ``[3, 5]`` with ids and steps, and no names."""
    rows = rows_of_time()
    markers = environments(3, 5, [2, 4, 9], [EndKind.TRUNCATED])["collector"]
    rows["collector"] = TensorDict(markers.to_dict(), [3, 5])
    return rows


@pytest.mark.parametrize("kind", [GAE, TD0Estimator, TD1Estimator, TDLambdaEstimator, VTrace])
def test_ids_and_steps_that_join_along_another_dimension_are_refused(kind):
    settings = {"lmbda": 0.8} if kind in (GAE, TDLambdaEstimator) else {}
    settings |= {"actor_network": actor()} if kind is VTrace else {}
    estimator = kind(gamma=0.9, value_network=critic(), **settings)
    rows = numbered()
    columns = TensorDict(rows.transpose(0, 1).contiguous().to_dict(), [5, 3])
    expected = estimator(rows)["advantage"].transpose(0, 1)
    with pytest.raises(ValueError, match=MESSAGE):
        estimator(columns.clone())
    with pytest.raises(ValueError, match=MESSAGE):
        estimator.value_estimate(columns.clone())
    torch.testing.assert_close(estimator(columns.clone(), time_dim=0)["advantage"], expected)
    columns.names = ["time", None]
    torch.testing.assert_close(estimator(columns)["advantage"], expected)


def test_losses_refuse_ids_and_steps_that_join_along_another_dimension():
    columns = TensorDict(numbered().transpose(0, 1).contiguous().to_dict(), [5, 3])
    columns["is_init"] = columns["collector", "traj_step"].unsqueeze(-1) == 0
    columns["advantage"] = columns["value_target"] = torch.zeros(5, 3, 1).double()
    recurrent = A2CLoss(actor("is_init"), critic())
    with pytest.raises(ValueError, match=RECURRENT):
        recurrent(columns)
    assert recurrent(columns.transpose(0, -1))["loss_objective"] == 0
    assert A2CLoss(actor(), critic())(columns)["loss_objective"] == 0  # looks at single rows
    net = TensorDictModule(torch.nn.Linear(2, 3), ["observation"], ["action_value"])
    with pytest.raises(ValueError, match=MESSAGE):
        DQNLoss(net, action_space="categorical")(columns)


def test_numbered_rows_in_any_other_order_are_taken_as_they_are():
    """Single rows drawn or strided, and episodes of one step, say nothing of the time dimension."""
    gae, rows = GAE(gamma=0.9, lmbda=0.8, value_network=critic()), numbered()
    flat, seed = rows.reshape(-1), torch.Generator().manual_seed(3)
    order = torch.randperm(15, generator=seed)
    short = rows.transpose(0, 1).contiguous()
    short["next", "terminated"] = torch.ones(5, 3, 1, dtype=torch.bool)
    for batch in (flat[order], flat[order[:12]].reshape(4, 3), rows[:, ::2], short):
        assert gae(batch.clone())["advantage"].isfinite().all()


def test_interleaved_rows_with_ids_give_a_warning():
    gae, rows = GAE(gamma=0.9, lmbda=0.8, value_network=critic()), numbered()
    flat = TensorDict(rows.transpose(0, 1).reshape(-1).to_dict(), [15])
    with pytest.warns(UserWarning, match=r"of 15 rows continue .* environments are interleaved"):
        gae(flat.clone())
    flat["index"] = torch.arange(15)
    gae(flat)  # drawn row by row


def shuffled():
    """Rows ``[15]`` of three environments, one call a step, without ids."""
    return time_first().reshape(-1)


@pytest.mark.filterwarnings("ignore:.*neighbours along dimension:UserWarning")
@pytest.mark.parametrize("kind", [GAE, TD0Estimator, TD1Estimator, TDLambdaEstimator])
def test_rows_that_contradict_each_other_are_cut(kind):
    settings = {"lmbda": 0.8} if kind in (GAE, TDLambdaEstimator) else {}
    batch, net = shuffled(), critic()
    found = kind(gamma=0.9, value_network=net, **settings)(batch)
    alone = batch["next", "terminated"]
    ahead = net(TensorDict({"observation": batch["next", "observation"]}, [15]))["state_value"]
    expected = batch["next", "reward"] + 0.9 * ahead * ~alone
    torch.testing.assert_close(found["value_target"], expected)


@pytest.mark.filterwarnings("ignore:.*neighbours along dimension:UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_losses_that_estimate_cut_rows_that_do_not_follow(compiled):
    net = TensorDictModule(torch.nn.Linear(2, 3), ["observation"], ["action_value"])
    loss = DQNLoss(net, action_space="categorical")
    loss.make_value_estimator("td_lambda", gamma=0.9, lmbda=0.5)
    batch = shuffled()
    batch["next", "reward"] = batch["next", "reward"].float()
    numbered = batch.clone()
    numbered["collector", "traj_ids"] = torch.arange(15)
    call = torch.compile(loss, backend="eager", fullgraph=True) if compiled else loss
    torch.testing.assert_close(call(batch)["loss"], loss(numbered)["loss"])


@pytest.mark.filterwarnings("ignore:.*neighbours along dimension:UserWarning")
@pytest.mark.parametrize("renamed", [False, True])
def test_shuffled_rows_with_renamed_flags_give_the_same_advantages(renamed):
    batch = shuffled()
    expected = TD1Estimator(gamma=0.9, value_network=critic())
    found = TD1Estimator(gamma=0.9, value_network=expected.value_network)
    other = batch.clone()
    if renamed:
        other["next", "over"] = other["next", "terminated"].clone()
        other = other.exclude(("next", "terminated"))
        found.set_keys(terminated="over")
    else:
        other["agents"] = TensorDict({}, [15])
    torch.testing.assert_close(found(other)["advantage"], expected(batch)["advantage"])


FUNCTIONS = {
    "gae": lambda r, v, w, d, **kw: gae(r, v, w, d, d, gamma=0.9, lmbda=0.7, **kw)[0],
    "td1": lambda r, v, w, d, **kw: td1(r, w, d, d, gamma=0.9, **kw),
    "td_lambda": lambda r, v, w, d, **kw: td_lambda(r, w, d, d, gamma=0.9, lmbda=0.7, **kw),
    "reward_to_go": lambda r, v, w, d, **kw: reward_to_go(r, d, gamma=0.9, **kw),
    "vtrace": lambda r, v, w, d, **kw: vtrace(r, v, w, v * 0 - 1, d, d, gamma=0.9, **kw)[0],
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("grad", [False, True])
def test_functions_of_arrays_take_time_where_it_is_said(name, grad):
    """``[T, N, 1]`` has time in the dimension before the last, N, until `time_dim` says 0."""
    function = FUNCTIONS[name]
    reward, value, ahead = torch.randn(3, 5, 4, 1, dtype=torch.float64).requires_grad_(grad)
    done = torch.rand(5, 4, 1) < 0.3
    by_column = function(reward, value, ahead, done, time_dim=0)
    by_row = function(reward, value, ahead, done)
    for n in range(4):
        one = [x[:, n] for x in (reward, value, ahead, done)]
        torch.testing.assert_close(by_column[:, n], function(*one))
    for t in range(5):
        torch.testing.assert_close(
            by_row[t], function(*(x[t] for x in (reward, value, ahead, done)))
        )
    with pytest.raises(ValueError, match=r"time_dim=3: there is no such dimension in \[5, 4, 1\]"):
        function(reward, value, ahead, done, time_dim=3)


def test_one_step_estimators_evaluate_what_follows_in_the_next_row_if_nothing_contradicts():
    calls = []

    def value(observation):
        calls.append(len(observation))
        return observation.sum(-1, keepdim=True)

    critic = TensorDictModule(value, ["observation"], ["state_value"])
    seen = torch.randn(6, 3)
    flag = torch.zeros(5, 1, dtype=torch.bool)
    after = {"observation": seen[1:], "reward": torch.ones(5, 1), "done": flag, "terminated": flag}
    rows = TensorDict({"observation": seen[:-1], "next": after}, [5])
    TD0Estimator(gamma=0.9, value_network=critic)(rows)
    assert sum(calls) == 6
    calls.clear()
    rows["next", "observation"] = seen[1:].clone().index_fill_(0, torch.tensor([2]), 0.0)
    target = TD0Estimator(gamma=0.9, value_network=critic)(rows)["value_target"]
    assert sum(calls) == 7
    assert torch.allclose(target, 1 + 0.9 * rows["next", "observation"].sum(-1, keepdim=True))


def test_n_step_rows_that_disagree_on_the_end_that_they_reach_are_cut():
    seen, rows = torch.randn(9, 2), torch.arange(8)
    far = (8 - rows).clamp(max=3)
    after = {"observation": seen[rows + far], "steps_to_next_obs": far.unsqueeze(-1)}
    after["observation"][5] += 1  # of the rows 5, 6 and 7
    after |= {"reward": torch.ones(8, 1)}
    after |= {key: torch.zeros(8, 1, dtype=torch.bool) for key in ("done", "terminated")}
    batch = TensorDict({"observation": seen[:8], "next": after}, [8])
    critic = TensorDictModule(torch.nn.Linear(2, 1), ["observation"], ["state_value"])
    estimator = GAE(gamma=0.9, lmbda=0.8, value_network=critic)
    whole = estimator(batch.clone())["advantage"]
    parts = [estimator(part.clone())["advantage"] for part in (batch[:6], batch[6:])]
    torch.testing.assert_close(whole, torch.cat(parts))
