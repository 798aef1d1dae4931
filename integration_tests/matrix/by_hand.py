"""Advantages and losses of a batch, one trajectory and one step at a time, on torch alone."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

GAMMA, LMBDA, CLIP, RHO, C = 0.9, 0.8, 0.2, 1.0, 0.7
ENTROPY_COEFF, CRITIC_COEFF = 0.01, 0.5


class Agent(nn.Module):
    """A cell, an actor and a critic: a copy of the networks under test, stepped by hand."""

    def __init__(self, family: str, body: nn.Module, actor: nn.Linear, critic: nn.Linear) -> None:
        super().__init__()
        self.family = family
        if family == "mlp":
            self.cell: nn.Module = nn.Sequential(nn.Linear(2, body[0].out_features), nn.Tanh())
        else:
            kind = {"gru": nn.GRU, "lstm": nn.LSTM}[family]
            self.cell = kind(2, body.hidden_size, batch_first=True)
        self.actor = nn.Linear(actor.in_features, actor.out_features)
        self.critic = nn.Linear(critic.in_features, 1)
        self.cell.load_state_dict(body.state_dict())
        self.actor.load_state_dict(actor.state_dict())
        self.critic.load_state_dict(critic.state_dict())

    def features(self, batch: TensorDictBase, piece: list[int]) -> Tensor:
        """What the cell says at each row of a piece, and of its last next observation: [n + 1]."""
        seen = [batch["observation"][row] for row in piece]
        seen.append(batch["next", "observation"][piece[-1]].nan_to_num())
        if self.family == "mlp":
            return torch.stack([self.cell(each) for each in seen])
        names = {"gru": ["recurrent_state"], "lstm": ["recurrent_state_h", "recurrent_state_c"]}
        # [layers, H] in a row, [layers, 1, H] for torch
        state = tuple(batch[name][piece[0]].unsqueeze(1) for name in names[self.family])
        outputs = []
        for each in seen:
            given = state if self.family == "lstm" else state[0]
            out, after = self.cell(each.view(1, 1, -1), given)
            state = after if self.family == "lstm" else (after,)
            outputs.append(out.flatten())
        return torch.stack(outputs)


def pieces(batch: TensorDictBase) -> list[list[int]]:
    """Runs of rows, each continuing the one before; `[N]` only."""
    starts, done = batch["is_init"].flatten(), batch["next", "done"].flatten()
    ids, steps = batch["collector", "traj_ids"], batch["collector", "traj_step"]
    found: list[list[int]] = []
    for row in range(len(batch)):
        goes_on = row > 0 and not starts[row] and not done[row - 1]
        goes_on = goes_on and ids[row] == ids[row - 1] and steps[row] == steps[row - 1] + 1
        if not goes_on:
            found.append([])
        found[-1].append(row)
    return found


def missing(batch: TensorDictBase) -> Tensor:
    """Rows without a next observation that would be needed."""
    absent = batch.get(("collector", "next_missing"), torch.zeros(len(batch), dtype=torch.bool))
    return absent & ~batch["next", "terminated"].flatten()


class Found:
    """Values, log-probabilities and entropies of every row of a batch, by an agent."""

    def __init__(self, agent: Agent, batch: TensorDictBase) -> None:
        self.batch, self.pieces = batch, pieces(batch)
        self.values, self.next_values = torch.zeros(len(batch)), torch.zeros(len(batch))
        logits: list[Tensor] = []
        values: list[Tensor] = []
        for piece in self.pieces:
            features = agent.features(batch, piece)
            value = agent.critic(features).flatten()
            self.next_values[piece] = value[1:].detach()
            values.append(value[:-1])
            logits.append(agent.actor(features[:-1]))
        self.values = torch.cat(values)
        log_probs = torch.cat(logits).log_softmax(-1)
        self.log_prob = log_probs[torch.arange(len(batch)), batch["action"].long().argmax(-1)]
        self.entropy = -(log_probs.exp() * log_probs).sum(-1)


def returns(found: Found, kind: str, left_out: Tensor) -> tuple[Tensor, Tensor]:
    """Advantage and target of every row, backwards through each piece."""
    batch = found.batch
    reward = batch["next", "reward"].flatten()
    on = (~batch["next", "terminated"].flatten()).float()
    value, ahead = found.values.detach(), found.next_values
    weight = (found.log_prob.detach() - batch["sample_log_prob"]).exp()
    advantage, target = torch.zeros(len(batch)), value.clone()
    for piece in found.pieces:
        after: int | None = None
        for row in reversed(piece):
            if left_out[row]:
                after = None
                continue
            delta = reward[row] + GAMMA * on[row] * ahead[row] - value[row]
            if kind == "gae":
                carried = 0.0 if after is None else on[row] * advantage[after]
                advantage[row] = delta + GAMMA * LMBDA * carried
                target[row] = advantage[row] + value[row]
            elif kind == "td_lambda":
                best = ahead[row] if after is None else target[after]
                mixed = (1 - LMBDA) * ahead[row] + LMBDA * best
                target[row] = reward[row] + GAMMA * on[row] * mixed
                advantage[row] = target[row] - value[row]
            elif kind == "vtrace":
                rho, c = weight[row].clamp(max=RHO), weight[row].clamp(max=C)
                correction = 0.0 if after is None else target[after] - value[after]
                target[row] = value[row] + rho * delta + GAMMA * on[row] * c * correction
                best = ahead[row] if after is None else target[after]
                advantage[row] = rho * (reward[row] + GAMMA * on[row] * best - value[row])
            else:
                target[row] = reward[row] + GAMMA * on[row] * ahead[row]
                advantage[row] = delta
            after = row
    return advantage, target


def total_loss(
    found: Found, kind: str, advantage: Tensor, target: Tensor, counted: Tensor
) -> Tensor:
    """What an optimiser minimises: objective, entropy bonus and critic, over the counted rows."""
    ratio = (found.log_prob - found.batch["sample_log_prob"]).exp()
    if kind == "ppo":
        gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    else:
        gain = found.log_prob * advantage
    critic = CRITIC_COEFF * (found.values - target)[counted].square().mean()
    total = critic - gain[counted].mean()
    if kind != "reinforce":
        total = total - ENTROPY_COEFF * found.entropy[counted].mean()
    return total
