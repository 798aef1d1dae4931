"""A team whose members leave one by one, and each member alone."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch.distributions import Categorical

from rl_value import (
    GAE,
    DQNLoss,
    TDLambdaEstimator,
    VTrace,
)

LENGTHS = [6, 4]

AGENTS, SIZE, ACTIONS = 3, 5, 4

PLAYED = [[3, 6, 1], [4, 2, 3]]  # steps that each agent plays, trajectory by trajectory

FLAGS = ("done", "terminated", "truncated")


def _team(kind, repeats=True):
    """A batch `[10]` of three agents, each of which is out after as many steps as it plays."""
    torch.manual_seed(3)
    rows = []
    for number, (length, played) in enumerate(zip(LENGTHS, PLAYED, strict=True)):
        seen = torch.randn(length + 1, AGENTS, SIZE, dtype=torch.float64)
        reward = torch.randn(length, AGENTS, 1, dtype=torch.float64)
        over = torch.zeros(length, 1, dtype=torch.bool)
        over[-1] = True
        done = torch.stack([torch.arange(length) >= n - 1 for n in played], -1)[..., None]
        after = seen[1:].clone()
        for agent, n in enumerate(played):
            reward[n:, agent] = 0
            after[n:, agent] = after[n - 1, agent]
            seen[n + 1 :, agent] = seen[n, agent]
            if not repeats:  # the next step overwrites what the agent saw last
                after[n:, agent] = seen[n:, agent] = 0
                seen[n:, agent] = 0
        ended = {name: torch.zeros_like(done) for name in FLAGS}
        ended["done"] = ended[kind] = done
        before = {k: torch.cat([torch.zeros_like(v[:1]), v[:-1]]) for k, v in ended.items()}
        start = torch.zeros(length, 1, dtype=torch.bool)
        start[0] = True
        log_prob = torch.randn(length, AGENTS, dtype=torch.float64) / 9 - 1.4
        agents = {
            "observation": seen[:-1],
            "action": torch.randint(ACTIONS, (length, AGENTS)),
            "log_prob": log_prob,
            "logits": torch.randn(length, AGENTS, ACTIONS, dtype=torch.float64),
            "is_init": start[:, None].expand(length, AGENTS, 1),
            **before,
        }
        next_agents = {"observation": after, "reward": reward, **ended}
        marks = {
            "traj_ids": torch.full((length,), number),
            "traj_step": torch.arange(length),
        }
        row = {
            "agents": TensorDict(agents, [length, AGENTS]),
            "is_init": start,
            "collector": marks,
            "next": {
                "agents": TensorDict(next_agents, [length, AGENTS]),
                "done": over,
                "terminated": over,
                "truncated": torch.zeros_like(over),
            },
        }
        rows.append(TensorDict(row, [length]))
    return torch.cat(rows)


def _alone(batch):
    """The steps that agents play, as one trajectory of a single agent after another."""
    pieces, ids, start = [], 0, 0
    for length, played in zip(LENGTHS, PLAYED, strict=True):
        for agent, n in enumerate(played):
            part = batch[start : start + n]
            own, after = part["agents"][:, agent], part["next", "agents"][:, agent]
            first = torch.zeros(n, 1, dtype=torch.bool)
            first[0] = True
            ends = {name: after[name] for name in FLAGS}
            ends["done"] = ends["terminated"] | ends["truncated"]
            marks = {"traj_ids": torch.full((n,), ids), "traj_step": torch.arange(n)}
            row = {
                **{k: own[k] for k in ("observation", "action", "log_prob", "logits")},
                "is_init": first,
                "collector": marks,
                "next": {"observation": after["observation"], "reward": after["reward"], **ends},
            }
            pieces.append(TensorDict(row, [n]))
            ids += 1
        start += length
    return torch.cat(pieces)


def _real(batch):
    """Steps that an agent plays, in the order of `_alone`: their rows and agents."""
    rows, agents, start = [], [], 0
    for length, played in zip(LENGTHS, PLAYED, strict=True):
        for agent, n in enumerate(played):
            rows += range(start, start + n)
            agents += [agent] * n
        start += length
    return torch.tensor(rows), torch.tensor(agents)


def linear(size, seed):
    torch.manual_seed(seed)
    return torch.nn.Linear(SIZE, size, dtype=torch.float64)


def _networks(group):
    """Actor and critic that see each agent by itself; of one agent if there is no group."""

    def key(name):
        return ("agents", name) if group else name

    logits = TensorDictModule(linear(ACTIONS, 1), [key("observation")], [key("logits")])
    chance = ProbabilisticTensorDictModule(
        {"logits": key("logits")},
        [key("action")],
        distribution_class=Categorical,
        log_prob_key=key("log_prob"),
        return_log_prob=True,
    )
    actor = ProbabilisticTensorDictSequential(logits, chance)
    critic = TensorDictModule(linear(1, 2), [key("observation")], [key("value")])
    return actor, critic


def _names(group):
    keys = ("reward", "done", "terminated", "value", "advantage", "value_target")
    found = {name: ("agents", name) if group else name for name in keys}
    found["sample_log_prob"] = ("agents", "log_prob") if group else "log_prob"
    return found


def _estimator(kind, group, **settings):
    actor, critic = _networks(group)
    if kind in (GAE, TDLambdaEstimator):
        settings["lmbda"] = 0.7
    if kind is VTrace:
        settings["actor_network"] = actor
    made = kind(gamma=0.9, value_network=critic, **settings)
    made.set_keys(**_names(group))
    if kind is VTrace:
        made.action_key = ("agents", "action") if group else "action"
    return made


def _loss_of(kind, group, **settings):
    if kind is DQNLoss:
        key = ("agents", "values") if group else "values"
        seen = ("agents", "observation") if group else "observation"
        network = TensorDictModule(linear(ACTIONS, 5), [seen], [key])
        made = DQNLoss(network, action_space="categorical", **settings)
        flags = {name: _names(group)[name] for name in ("reward", "done", "terminated")}
        made.set_keys(action_value=key, action=("agents", "action") if group else "action", **flags)
        return made
    made = kind(*_networks(group), **settings)
    made.set_keys(action=("agents", "action") if group else "action", **_names(group))
    made.make_value_estimator(gamma=0.9)
    return made


@pytest.fixture(scope="session")
def alone():
    """The steps that agents play, as one trajectory of a single agent after another."""
    return _alone


@pytest.fixture(scope="session")
def estimator():
    return _estimator


@pytest.fixture(scope="session")
def loss_of():
    return _loss_of


@pytest.fixture(scope="session")
def names():
    return _names


@pytest.fixture(scope="session")
def networks():
    """Actor and critic that see each agent by itself; of one agent if there is no group."""
    return _networks


@pytest.fixture(scope="session")
def real():
    """Steps that an agent plays, in the order of `alone`: their rows and agents."""
    return _real


@pytest.fixture(scope="session")
def team():
    """A batch `[10]` of three agents, each of which is out after as many steps as it plays."""
    return _team
