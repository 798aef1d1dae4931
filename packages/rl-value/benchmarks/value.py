"""Advantages and losses compared with torchrl: module, padded batches, PPO step.

Run with `nox -s "bench(rl-value)"` on a machine of your own. Medians in one process; after each
figure is the bar that it is held to. Calls that are compared on `[B, T]` and on flat steps are
timed in two ways: again and again, as timing tools do, and the first one after other work.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from collections.abc import Callable

import bench
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl_layout import Segments
from rl_layout.compiled import LEAST_ROWS, is_of_use
from rl_layout.testing import EndKind, environments, trajectories
from rl_policies import OneHotCategorical, ProbabilisticActor, ValueOperator
from rl_value import GAE, ClipPPOLoss, gae
from rl_value.scan.block_scan import LOOPS

warnings.filterwarnings("ignore")
GAMMA, LMBDA = 0.99, 0.95
clock = time.perf_counter


def report(name: str, ours: float, theirs: float, bar: float) -> None:
    """Print both times and their ratio, with the bar that it is held to."""
    bench.report(name, ours, theirs, note=f"(bar {bar:.0f} x)" if bar else "")


FIRST = "  first call after other work"


def critic() -> TensorDictModule:
    """A linear value network, so that what is timed is the estimator."""
    return TensorDictModule(nn.Linear(4, 1), ["observation"], ["state_value"])


def observed(batch: TensorDict) -> TensorDict:
    """The batch with four random numbers as observation, which follow each other."""
    shape = batch.batch_size
    seen = torch.randn(*shape[:-1], shape[-1] + 1, 4)
    batch["observation"] = seen[..., :-1, :].contiguous()
    batch["next", "observation"] = seen[..., 1:, :].contiguous()
    batch["next", "reward"] = torch.randn(*shape, 1)
    return batch


def module() -> None:
    """The `GAE` module on the same flat tensordict, value network included."""
    from torchrl.objectives.value import GAE as Peer

    net = critic()
    batch = observed(trajectories([200] * 327 + [136]))
    ours = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=net)
    flag = batch["is_init"]

    def afresh() -> object:
        flag[0, 0] = True  # moves the version counter, so that no kept segments are used
        return ours(batch)

    print("GAE module on 65,536 flat steps, value network included; called again and again")
    for name, theirs in (
        ("default", Peer(gamma=GAMMA, lmbda=LMBDA, value_network=net)),
        ("vectorized", Peer(gamma=GAMMA, lmbda=LMBDA, value_network=net, vectorized=True)),
    ):
        copy = batch.clone()
        rounds, timed = (3, 2) if name == "default" else (7, 8)
        calls = (afresh, lambda t=theirs, c=copy: t(c))
        options = {"warm_up": 1, "timed": timed, "clock": clock}
        again, first = bench.in_blocks_us(rounds, *calls, **options)
        report(f"peer {name}", *again, 200 if name == "default" else 0)
        report(FIRST, *first, 0)


def padded(rows: int, steps: int, bar: float) -> None:
    """The module on `[B, T]`, compared with the peer's best setting."""
    from torchrl.objectives.value import GAE as Peer

    net = critic()
    batch = observed(environments(rows, steps, [200, 170, 230], [EndKind.TERMINATED]))
    ours, flag = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=net), batch["is_init"]

    def afresh() -> object:
        flag[0, 0] = True
        return ours(batch)

    settings = [{"vectorized": v, "shifted": s} for v in (False, True) for s in (False, True)]
    copies = [batch.clone() for _ in settings]
    peers = [Peer(gamma=GAMMA, lmbda=LMBDA, value_network=net, **s) for s in settings]
    calls = [lambda p=p, c=c: p(c) for p, c in zip(peers, copies, strict=True)]
    again, first = bench.in_blocks_us(8, afresh, *calls, clock=clock)
    best = min(range(len(peers)), key=again[1:].__getitem__)
    chosen = "vectorized" if settings[best]["vectorized"] else "loop"
    chosen += ", shifted" if settings[best]["shifted"] else ""
    print(f"  the peer's best setting: {chosen}")
    report(f"GAE on {rows} x {steps}", again[0], again[1 + best], bar)
    report(FIRST, first[0], min(first[1:]), 0)
    parts(batch, net, again[0], again[1 + best])


def straight_on(batch: TensorDict, net: TensorDictModule) -> Tensor:
    """The same advantages for this layout alone: no check, no other marker, nothing kept."""
    rows = {name: batch[name].flatten(0, 1) for name in ("observation", "is_init")}
    after = batch["next"].flatten(0, 1)
    ids, step = batch["collector", "traj_ids"].flatten(), batch["collector", "traj_step"].flatten()
    cut = after["done"] | after["terminated"] | after["truncated"]
    inner = cut[:-1, 0]
    inner |= rows["is_init"][1:, 0]
    inner |= ids[1:] != ids[:-1]
    inner |= step[1:] - step[:-1] != 1
    cut.view(*batch.batch_size)[:, -1] = True
    lasts = cut.view(-1).nonzero()[:, 0]
    now = net.module(rows["observation"])
    following = torch.empty_like(now)
    following[:-1] = now[1:]
    following[lasts] = net.module(after["observation"][lasts])
    factors = {"gamma": GAMMA, "lmbda": LMBDA}
    made = gae(after["reward"], now, following, after["terminated"], cut, **factors)
    for key, value in zip(("advantage", "value_target"), made, strict=True):
        batch[key] = value.view(*batch.batch_size, 1)
    batch["state_value"] = now.view(*batch.batch_size, 1)
    batch["next", "state_value"] = following.view(*batch.batch_size, 1)
    return batch["advantage"]


def parts(batch: TensorDict, net: TensorDictModule, whole: float, peer: float) -> None:
    """Where the time of the module goes, and the time of a program for this layout alone."""
    rows, flag = batch["observation"].flatten(0, 1), batch["is_init"]
    values = [batch["next", "reward"], batch["state_value"], batch["next", "state_value"]]
    ends = batch["next", "terminated"], batch["next", "done"]
    small = observed(environments(4, 16, [7, 5], [EndKind.TERMINATED]))
    module = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=net)

    def find() -> object:
        flag[0, 0] = True
        return Segments.of(batch)

    def fixed() -> object:
        small["is_init"][0, 0] = True
        return module(small)

    with torch.no_grad():
        torch.testing.assert_close(straight_on(batch.clone(), net), module(batch)["advantage"])
        (network, found, returns, calls, straight), _ = bench.in_blocks_us(
            4,
            lambda: net.module(rows),
            find,
            lambda: gae(*values, *ends, gamma=GAMMA, lmbda=LMBDA),
            fixed,
            lambda: straight_on(batch, net),
            clock=clock,
        )
    print(
        f"    alone: network {network:.0f}, markers {found:.0f}, returns {returns:.0f} us; "
        f"the module on 64 rows {calls:.0f} us"
    )
    print(
        f"    for this layout alone, by hand {straight:.0f} us: {whole / straight:.2f} of it; "
        f"the peer takes {peer / straight:.1f} times that"
    )


def by_hand(actor: nn.Module, value: nn.Module, batch: TensorDict) -> Tensor:
    """The loss of `ppo` in plain torch."""
    logits = actor(batch["observation"])
    log_p = logits.log_softmax(-1)
    now = log_p.gather(-1, batch["action"].argmax(-1, keepdim=True))[:, 0]
    ratio = (now - batch["sample_log_prob"]).exp()
    advantage = batch["advantage"][:, 0]
    gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    entropy = -(log_p.exp() * log_p).sum(-1).mean()
    error = nn.functional.smooth_l1_loss(value(batch["observation"]), batch["value_target"])
    return error - gain - 0.01 * entropy


def without_autograd(net: nn.Sequential, seen: Tensor, grad: Tensor) -> Callable[[], None]:
    """Forward and backward of linear layers with tanh between them, in memory taken beforehand."""
    layers = [layer for layer in net if isinstance(layer, nn.Linear)]
    made = [torch.empty(len(seen), layer.out_features) for layer in layers]
    back = [torch.empty_like(values) for values in made[:-1]]
    to_tanh = torch.ops.aten.tanh_backward.grad_input

    @torch.no_grad()
    def call() -> None:
        below = seen
        for layer, out in zip(layers, made, strict=True):
            torch.addmm(layer.bias, below, layer.weight.T, out=out)
            below = out if layer is layers[-1] else torch.tanh(out, out=out)
        above = grad
        for at in reversed(range(len(layers))):
            torch.mm(above.T, made[at - 1] if at else seen, out=layers[at].weight.grad)
            torch.sum(above, 0, out=layers[at].bias.grad)
            if at:
                torch.mm(above, layers[at].weight, out=back[at - 1])
                above = to_tanh(back[at - 1], made[at - 1], grad_input=back[at - 1])

    return call


def mlp(size: int) -> nn.Sequential:
    """A network of two hidden layers."""
    return nn.Sequential(
        nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, size)
    )


def ppo_batch() -> TensorDict:
    """4,096 rows with all that a policy loss reads."""
    rows = {
        "observation": torch.randn(4096, 8),
        "action": nn.functional.one_hot(torch.randint(4, (4096,)), 4),
        "sample_log_prob": -1 - torch.rand(4096),
        "advantage": torch.randn(4096, 1),
        "value_target": torch.randn(4096, 1),
    }
    return TensorDict(rows, [4096])


def losses_of(policy: nn.Module, value: nn.Module) -> tuple[ClipPPOLoss, nn.Module]:
    """Ours and torchrl's loss over the same networks, each with its library's actor."""
    from torchrl import modules
    from torchrl.objectives import ClipPPOLoss as Peer

    body = TensorDictModule(policy, ["observation"], ["logits"])
    actor = ProbabilisticActor(
        body, ["logits"], distribution_class=OneHotCategorical, return_log_prob=True
    )
    net = ValueOperator(value, in_keys=["observation"])
    peer_actor = modules.ProbabilisticActor(
        body,
        in_keys=["logits"],
        distribution_class=modules.OneHotCategorical,
        return_log_prob=True,
        log_prob_key="sample_log_prob",
    )
    peer_net = modules.ValueOperator(value, in_keys=["observation"])
    theirs = Peer(peer_actor, peer_net)
    theirs.set_keys(sample_log_prob="sample_log_prob")
    return ClipPPOLoss(actor, net), theirs


def ppo() -> None:
    """`ClipPPOLoss` forward and backward on 4,096 rows: the same networks, each library's actor."""
    policy, value = mlp(4), mlp(1)
    batch = ppo_batch()
    ours, theirs = losses_of(policy, value)

    def step(loss: Callable[[TensorDict], TensorDict]) -> None:
        found = loss(batch)
        total = found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]
        total.backward()

    grads = [torch.full((4096, size), 1e-4) for size in (4, 1)]

    def networks() -> None:
        seen = batch["observation"]
        torch.autograd.backward([policy(seen), value(seen)], grads)

    networks()
    by_kernels = [
        without_autograd(net, batch["observation"], grad)
        for net, grad in zip((policy, value), grads, strict=True)
    ]
    wanted = [parameter.grad.clone() for net in (policy, value) for parameter in net.parameters()]
    for call in by_kernels:
        call()
    for parameter, grad in zip([*policy.parameters(), *value.parameters()], wanted, strict=True):
        torch.testing.assert_close(parameter.grad, grad)

    (took, peer, hand, floor, kernels), first = bench.in_blocks_us(
        21,
        lambda: step(ours),
        lambda: step(theirs),
        lambda: by_hand(policy, value, batch).backward(),
        networks,
        lambda: [call() for call in by_kernels],
        clock=clock,
    )
    tell_ppo(took, peer, hand, floor, kernels, first)


def tell_ppo(
    took: float, peer: float, hand: float, floor: float, kernels: float, first: list[float]
) -> None:
    """Print the times of a loss, and of what no loss can leave out."""
    print("ClipPPOLoss forward and backward, 4,096 rows, networks of 64 x 64")
    report("with every statistic", took, peer, 2)
    print(f"  by hand in torch{hand:25.0f} us   {took / hand:.2f} of it (bar 1.3)")
    print(
        f"  the networks alone{floor:23.0f} us   the peer takes {peer / floor:.2f} times that: "
        "the largest ratio here, of a loss that costs nothing"
    )
    print(
        f"  their kernels alone{kernels:22.0f} us   the peer takes {peer / kernels:.2f} times "
        "that: no autograd, no memory to take"
    )
    print(
        f"  the first of a block{first[0]:21.0f} us   torchrl {first[1]:10.0f} us   "
        f"{first[1] / first[0]:7.1f} x, the largest {first[1] / first[3]:.2f}; "
        f"{first[0] / first[2]:.2f} of by hand"
    )
    print(
        f"  half of the peer's time leaves {peer / 2 - floor:.0f} us alongside the networks; ours "
        f"takes {took - floor:.0f}, by hand {hand - floor:.0f}"
    )


def main() -> None:
    """Read the command line and print every figure."""
    parser = argparse.ArgumentParser()
    hint = "count the processor time of one thread, for a machine that others use too"
    parser.add_argument("--cpu-time", action="store_true", help=hint)
    hint = "as where the extra `compiled` is not installed"
    parser.add_argument("--without-numba", action="store_true", help=hint)
    with bench.session(parser) as given:
        run(given)


def run(given: argparse.Namespace) -> None:
    """Print every figure."""
    if given.without_numba:
        sys.modules["numba"] = None  # type: ignore[assignment]  # so that its import fails
    if given.cpu_time:
        global clock
        clock = time.thread_time
        torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    loops = "numba" if is_of_use(LOOPS, LEAST_ROWS) else "numpy alone"
    print(f"{torch.get_num_threads()} threads, {loops}")
    module()
    print("GAE module on [B, T], compared with the peer's best setting; called again and again")
    padded(64, 1024, 5)
    padded(300, 500, 3)
    padded(4096, 128, 3)
    ppo()
    print("CUDA: not measured here; benchmarks/gpu_scan.py prints goal G10 on a machine with one")


if __name__ == "__main__":
    main()
