"""Proximal policy optimisation on samples of slices."""

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from skeleton.gae import gae
from skeleton.gru import GRUAgent
from skeleton.segments import flag


def ppo_loss(agent: GRUAgent, sample: TensorDictBase) -> Tensor:
    """Mean over real steps of (V - target)²/20 - min(ρA, clip(ρ, 0.8, 1.2)A) - entropy/100.

    ρ is the probability of the action now over then; A is normalised over real steps.
    (Schulman et al., arXiv:1707.06347.)
    """
    counted = flag(sample, keys.MASK, True) & ~flag(sample, keys.NEXT_MISSING, False)
    states = agent.unroll(sample)
    log_probs = agent.actor(states).log_softmax(-1)  # [N, A]
    log_prob = log_probs.gather(-1, sample["action"][:, None])[:, 0]
    ratio = (log_prob - sample["sample_log_prob"]).exp()
    advantage = sample["advantage"][:, 0]
    advantage = (advantage - advantage[counted].mean()) / (advantage[counted].std() + 1e-8)
    gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    error = (agent.critic(states) - sample["value_target"])[:, 0].square()
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return (0.05 * error - gain - 0.01 * entropy)[counted].mean()


def update(agent: GRUAgent, optimizer: torch.optim.Optimizer, sample: TensorDictBase) -> None:
    """Estimate a sample's advantages and take one step on its loss, gradient norm at most ½."""
    with torch.no_grad():
        value, next_value = agent.values(sample)
    sample["advantage"], sample["value_target"] = gae(sample, value, next_value, 0.95, 0.9)
    optimizer.zero_grad()
    ppo_loss(agent, sample).backward()
    torch.nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    optimizer.step()
