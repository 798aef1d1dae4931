"""One update of SAC compared with torchrl, and with the same written by hand.

Run with `nox -s "bench(rl-value)"` on a machine of your own. An update is losses, gradients, a step
of Adam for all networks and of the target networks, on 256 rows that were drawn one by one: an
actor and two critics of 2 x 256 on one thread. Bars: 1.4 times as fast as torchrl, at most 1.15
of what takes the same operations by hand, critics batched there too. `--compiled` adds the loss as
one graph of `torch.compile`, which needs a C++ compiler; `--device cuda` puts all of it on a GPU
and waits for it after each update.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import warnings
from collections.abc import Callable

import bench
import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from rl_policies import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from rl_specs import Bounded
from rl_value import SACLoss, SoftUpdate

warnings.filterwarnings("ignore")
ROWS, SEEN, ACTS, CELLS = 256, 17, 6, [256, 256]  # as of a HalfCheetah
GAMMA, TAU, RATE = 0.99, 0.005, 3e-4


def batch_of_rows() -> TensorDict:
    """Transitions as a buffer gives them, drawn one by one."""
    ended = torch.rand(ROWS, 1) < 0.01
    rows = {
        "observation": torch.randn(ROWS, SEEN),
        "action": torch.rand(ROWS, ACTS) * 2 - 1,
        "is_init": torch.zeros(ROWS, 1, dtype=torch.bool),
        "collector": {
            "traj_ids": torch.randint(2**40, (ROWS,)),
            "traj_step": torch.randint(1000, (ROWS,)),
        },
        "next": {
            "observation": torch.randn(ROWS, SEEN),
            "reward": torch.randn(ROWS, 1),
            "done": ended,
            "terminated": ended.clone(),
            "truncated": torch.zeros_like(ended),
        },
    }
    return TensorDict(rows, [ROWS])


def mlp(size: int, out: int) -> MLP:
    """Two hidden layers."""
    return MLP(size, out, num_cells=CELLS, activation_class=nn.ReLU)


def ours(batch: TensorDict, *, compiled: bool = False) -> Callable[[], object]:
    """An update as our reader writes it."""
    net = nn.Sequential(mlp(SEEN, 2 * ACTS), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["loc", "scale"]),
        ["loc", "scale"],
        spec=Bounded(-1, 1, shape=(ACTS,)),
        distribution_class=TanhNormal,
    )
    critic = ValueOperator(mlp(SEEN + ACTS, 1), ["observation", "action"])
    loss = SACLoss(actor, critic)
    optimizer, update = torch.optim.Adam(loss.parameters(), lr=RATE), SoftUpdate(loss, tau=TAU)
    call = torch.compile(loss, fullgraph=True) if compiled else loss
    return lambda: step(call(batch), optimizer, update.step)


def peer(batch: TensorDict) -> Callable[[], object]:
    """An update as torchrl's reader writes it."""
    from torchrl import modules
    from torchrl.data import Bounded as PeerBounded
    from torchrl.objectives import SACLoss as Peer
    from torchrl.objectives import SoftUpdate as PeerUpdate

    net = nn.Sequential(mlp(SEEN, 2 * ACTS), NormalParamExtractor())
    spec = PeerBounded(-1, 1, shape=(ACTS,))
    actor = modules.ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=spec,
        distribution_class=modules.TanhNormal,
    )
    critic = modules.ValueOperator(mlp(SEEN + ACTS, 1), in_keys=["observation", "action"])
    loss = Peer(actor, critic, num_qvalue_nets=2, action_spec=spec)
    loss.make_value_estimator(gamma=GAMMA)
    optimizer, update = torch.optim.Adam(loss.parameters(), lr=RATE), PeerUpdate(loss, tau=TAU)
    return lambda: step(loss(batch), optimizer, update.step)


def step(losses: TensorDict, optimizer: torch.optim.Optimizer, follow: Callable[[], None]) -> None:
    """Gradients, and a step of all networks."""
    optimizer.zero_grad()
    (losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]).backward()
    optimizer.step()
    follow()


class Pair(nn.Module):
    """Two critics, each layer of both one product."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [SEEN + ACTS, *CELLS, 1]
        shapes = list(itertools.pairwise(sizes))
        self.weights = nn.ParameterList([torch.randn(2, a, b) / a**0.5 for a, b in shapes])
        self.biases = nn.ParameterList([torch.zeros(2, 1, b) for _, b in shapes])

    def forward(self, x: Tensor, detached: bool = False) -> Tensor:
        """Values ``[2, N, 1]`` of observations and actions ``[N, D]``."""
        x = x.expand(2, *x.shape)
        for place, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = (
                torch.baddbmm(bias.detach(), x, weight.detach())
                if detached
                else (torch.baddbmm(bias, x, weight))
            )
            x = x.relu() if place < len(CELLS) else x
        return x


def by_hand(batch: TensorDict) -> Callable[[], object]:
    """The same update on tensors, nothing checked and nothing excluded."""
    policy, critics = mlp(SEEN, 2 * ACTS), Pair()
    late, log_alpha = copy.deepcopy(critics).requires_grad_(False), nn.Parameter(torch.zeros(()))
    weights = [*policy.parameters(), *critics.parameters(), log_alpha]
    optimizer = torch.optim.Adam(weights, lr=RATE)
    followers = list(late.parameters()), [one.detach() for one in critics.parameters()]
    rows = batch["observation"], batch["next", "observation"], batch["action"]
    reward, ended = batch["next", "reward"], batch["next", "terminated"]

    def drawn(seen: Tensor) -> tuple[Tensor, Tensor]:
        loc, scale = policy(seen).chunk(2, -1)
        scale = nn.functional.softplus(scale + 0.54).clamp(min=1e-4)
        noise = torch.randn_like(loc)
        u = loc + scale * noise
        log_prob = -noise.square() / 2 - scale.log() - 0.919 - 2 * (0.693 - torch.logaddexp(u, -u))
        return u.tanh(), log_prob.sum(-1, keepdim=True)

    def update() -> None:
        seen, following, taken = rows
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            action, log_prob = drawn(following)
            ahead = late(torch.cat([following, action], -1)).amin(0) - alpha * log_prob
            target = reward + GAMMA * ~ended * ahead
        values = critics(torch.cat([seen, taken], -1))
        critic_loss = smooth_l1_loss(values, target.expand_as(values), reduction="none")
        action, log_prob = drawn(seen)
        least = critics(torch.cat([seen, action], -1), detached=True).amin(0)
        actor_loss = (alpha * log_prob - least).mean()
        alpha_loss = -(log_alpha * (log_prob.detach() - ACTS)).mean()
        optimizer.zero_grad()
        (critic_loss.sum(0).mean() + actor_loss + alpha_loss).backward()
        optimizer.step()
        torch._foreach_lerp_(*followers, TAU)

    return update


def waited(call: Callable[[], object], device: str) -> Callable[[], object]:
    """The call, until its device has done it."""
    if device == "cpu":
        return call

    def run() -> None:
        call()
        torch.cuda.synchronize()

    return run


def main(options: argparse.Namespace) -> None:
    """Print the time of an update, and its share of the others'."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with torch.device(options.device):
        batch = batch_of_rows()
    makers: dict[str, Callable[[TensorDict], Callable[[], object]]] = {
        "rl-value": ours,
        "torchrl": peer,
        "by hand": by_hand,
    }
    if options.compiled:
        makers["rl-value, one graph"] = functools.partial(ours, compiled=True)
    with torch.device(options.device):  # where networks are made; numbers of Adam stay on the host
        calls = [waited(make(batch.clone()), options.device) for make in makers.values()]
    found = dict(zip(makers, bench.medians_us(60, *calls, shuffle=True), strict=True))
    share = found["rl-value"] / found["by hand"]
    bench.table(
        "SAC, an update on 256 rows, two critics of 2 x 256",
        found,
        "rl-value",
        {"torchrl": "(bar 1.4)", "by hand": f"rl-value {share:.2f} of it (bar 1.15)"},
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiled", action="store_true", help="add the loss as one graph")
    parser.add_argument("--device", default="cpu", help="where networks and rows are: cpu, cuda")
    with bench.session(parser) as options:
        main(options)
