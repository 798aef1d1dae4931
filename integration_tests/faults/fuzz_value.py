"""Fuzzed parts of rl-value that have no public name: estimators, losses, updates, damaged data."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
from fuzz_pools import Pool, each, steps
from tensordict import TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import nn
from torch.distributions import Categorical

from rl_value import (
    GAE,
    A2CLoss,
    BCLoss,
    ClipPPOLoss,
    DiscreteCQLLoss,
    DiscreteSACLoss,
    DistributionalDQNLoss,
    DQNLoss,
    HardUpdate,
    IQLLoss,
    KLPENPPOLoss,
    PPOLoss,
    ReinforceLoss,
    SoftUpdate,
    TD0Estimator,
    TD1Estimator,
    TDLambdaEstimator,
    ValueEstimators,
    VTrace,
)

ATOMS = torch.linspace(-1, 1, 5)


def actor(kind: type = Categorical) -> ProbabilisticTensorDictSequential:
    """Chooses one of three."""
    return ProbabilisticTensorDictSequential(
        TensorDictModule(nn.Linear(3, 3), ["observation"], ["logits"]),
        ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=kind),
    )


def critic(size: int = 1) -> TensorDictModule:
    """Writes a value of each step."""
    return TensorDictModule(nn.Linear(3, size), ["observation"], ["state_value"])


def q_network() -> TensorDictModule:
    """Writes values of three actions."""
    return TensorDictModule(nn.Linear(3, 3), ["observation"], ["action_value"])


def atoms() -> TensorDictModule:
    """Writes distributions of the values of three actions."""
    net = nn.Sequential(nn.Linear(3, 15), nn.Unflatten(-1, (5, 3)), nn.LogSoftmax(-2))
    return TensorDictModule(net, ["observation"], ["action_value"])


def rows(shape: tuple[int, ...] = (6,)) -> TensorDict:
    """Steps with all that any loss reads."""
    batch = steps(shape)
    batch["action"] = torch.randint(3, shape)
    batch["sample_log_prob"] = -torch.rand(shape)
    batch["logits"] = torch.randn(*shape, 3)
    for key in ("advantage", "value_target", "state_value", ("next", "state_value")):
        batch[key] = torch.randn(*shape, 1)
    batch["priority_weight"] = torch.rand(shape)
    return batch


def bare(shape: tuple[int, ...] = (2, 3)) -> TensorDict:
    """Steps without what estimators write."""
    return rows(shape).exclude("advantage", "value_target", "state_value")


DAMAGES: list[Callable[[torch.Tensor], object]] = [
    lambda leaf: leaf[..., :0],
    lambda leaf: leaf.unsqueeze(-1),
    lambda leaf: leaf.squeeze(-1),
    lambda leaf: torch.cat([leaf, leaf], -1),
    lambda leaf: leaf.to(torch.int64),
    lambda leaf: leaf.to(torch.bool),
    lambda leaf: leaf.to(torch.float16),
    lambda leaf: leaf.to(torch.float64),
    lambda leaf: leaf.to(torch.complex64),
    lambda leaf: torch.full(leaf.shape, math.nan),
    lambda leaf: torch.full_like(leaf, 100),
    lambda leaf: "text",
    lambda leaf: TensorDict({"a": leaf}, leaf.shape[:-1]),
    lambda leaf: None,
]


def damaged() -> TensorDict:
    """Steps of which one leaf is another than it should be, or is missing."""
    batch = rows(random.choice([(6,), (2, 3)]))
    for _ in range(random.choice([1, 1, 2])):
        key = random.choice(list(batch.keys(True, True)))
        leaf = batch[key]
        made = random.choice(DAMAGES)(leaf) if isinstance(leaf, torch.Tensor) else None
        if made is None:
            batch = batch.exclude(key)
        elif isinstance(made, str):
            batch.set_non_tensor(key, made)
        elif made.shape[: batch.ndim] == batch.batch_size:  # others no tensordict holds
            batch.set(key, made)
    return batch


def on_damaged(make: Callable[[], nn.Module]) -> Callable[[], Callable[[], object]]:
    """A call of a module with damaged steps."""

    def factory() -> Callable[[], object]:
        return lambda: make()(damaged())

    return factory


def distributional() -> DistributionalDQNLoss:
    """A loss of distributions."""
    return DistributionalDQNLoss(atoms(), gamma=0.9, support=ATOMS, action_space="categorical")


MODULES: dict[str, Callable[[], nn.Module]] = {
    "GAE()": lambda: GAE(gamma=0.9, lmbda=0.9, value_network=critic()),
    "GAE(shifted)": lambda: GAE(gamma=0.9, lmbda=0.9, value_network=critic(), shifted=True),
    "GAE(None)": lambda: GAE(gamma=0.9, lmbda=0.9, value_network=None),
    "TD0Estimator()": lambda: TD0Estimator(gamma=0.9, value_network=critic()),
    "TD1Estimator()": lambda: TD1Estimator(gamma=0.9, value_network=critic()),
    "TDLambdaEstimator()": lambda: TDLambdaEstimator(gamma=0.9, lmbda=0.9, value_network=critic()),
    "VTrace()": lambda: VTrace(gamma=0.9, actor_network=actor(), value_network=critic()),
    "PPOLoss()": lambda: PPOLoss(actor(), critic(), normalize_advantage=True),
    "ClipPPOLoss()": lambda: ClipPPOLoss(actor(), critic(), clip_value=True),
    "KLPENPPOLoss()": lambda: KLPENPPOLoss(actor(), critic()),
    "A2CLoss()": lambda: A2CLoss(actor(), critic()),
    "A2CLoss(wide)": lambda: A2CLoss(actor(), critic(2)),
    "ReinforceLoss()": lambda: ReinforceLoss(actor(), critic()),
    "DQNLoss()": lambda: DQNLoss(q_network(), action_space="categorical"),
    "DQNLoss(double)": lambda: DQNLoss(q_network(), action_space="one_hot", double_dqn=True),
    "DistributionalDQNLoss()": distributional,
    "DiscreteCQLLoss()": lambda: DiscreteCQLLoss(q_network(), action_space="categorical"),
    "DiscreteSACLoss()": lambda: DiscreteSACLoss(
        actor(), q_network(), action_space="categorical", num_actions=3
    ),
    "BCLoss()": lambda: BCLoss(actor()),
    "IQLLoss()": lambda: IQLLoss(actor(), q_network(), critic()),
}
CALLS = [
    *((name, make) for name, make in MODULES.items()),
    *((f"{name} of damaged rows", on_damaged(make)) for name, make in MODULES.items()),
    ("SoftUpdate()", lambda: SoftUpdate(nn.Linear(3, 3), nn.Linear(3, 3))),
    ("HardUpdate()", lambda: HardUpdate(DQNLoss(q_network(), action_space="one_hot"))),
]

ROWS: Pool = [rows, bare, lambda: rows((2, 3)), bare, damaged]
FLOATS: Pool = [lambda: torch.randn(4, 1), lambda: torch.randn(4, 1), lambda: torch.randn(2, 4, 1)]
FLAGS: Pool = [lambda: torch.zeros(4, 1, dtype=torch.bool), lambda: torch.rand(4, 1) < 0.5]
NETWORKS: Pool = [critic, q_network, actor, atoms, lambda: critic(2)]
FACTORS = each(0.0, 0.5, 0.9, 1.0, torch.tensor(0.9))
POOLS: dict[str, Pool] = {
    "args": ROWS,
    "tensordict": ROWS,
    "reward": FLOATS,
    "value": FLOATS,
    "next_value": FLOATS,
    "log_ratio": FLOATS,
    "a": FLOATS,
    "b": FLOATS,
    "cut": FLAGS,
    "terminated": FLAGS,
    "done": FLAGS,
    "gamma": FACTORS,
    "lmbda": FACTORS,
    "rho_thresh": FACTORS,
    "c_thresh": FACTORS,
    "time_dim": each(-2, 0, None),
    "value_network": NETWORKS,
    "actor_network": [actor, actor, critic],
    "critic_network": [critic, critic, lambda: critic(2), *each(None)],
    "actor": each(None),
    "critic": each(None),
    "source": [lambda: nn.Linear(3, 3), lambda: DQNLoss(q_network(), action_space="one_hot")],
    "target": [lambda: nn.Linear(3, 3), *each(None)],
    "loss_module": each(None),
    "support": [lambda: ATOMS, *each(None)],
    "action_space": each("categorical", "one_hot", None),
    "value_type": [*each(*ValueEstimators), *each("gae", "td0", None)],
    "reduction": each("mean", "sum", "none", None),
    "loss_mask_key": each("auto", None, "mask"),
    "missing_next": each("skip", "root"),
    "loss_function": each("l1", "l2", "smooth_l1"),
    "loss_critic_type": each("l1", "l2", "smooth_l1"),
    "params": [*each(None), lambda: TensorDict.from_module(critic())],
    "target_params": [*each(None), lambda: TensorDict.from_module(critic())],
    "out_keys": each("advantage", "loss"),
    "batch": ROWS,
}

SKIP = {
    f"{name}.{method}": "takes records that estimators make themselves"
    for name in MODULES
    for method in ("estimate", "returns_of", "explain_scan", "count_substituted")
}
