"""Advantages and losses compared with torchrl: scan, module, padded batches, curves, PPO step.

Run with `nox -s "bench(rl-value)"` on a machine of your own. Medians in one process; after each
figure is the bar that it is held to. Calls that are compared on `[B, T]` and on flat steps are
timed in two ways: again and again, as timing tools do, and the first one after other work.
"""

from __future__ import annotations

import argparse
import random
import statistics
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


def in_blocks_us(
    rounds: int, *calls: Callable[[], object], warm_up: int = 3, timed: int = 8
) -> tuple[list[float], list[float]]:
    """Median durations of some calls in microseconds: called again and again, and first.

    In each round every call is made several times in a row, in an order that is drawn anew. The
    first call of a block finds the caches as the work before it left them; those after the
    warm-up find their own data and code.
    """
    warm_up, timed = bench.turns(warm_up), bench.turns(timed)
    again: list[list[float]] = [[] for _ in calls]
    first: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(bench.turns(rounds)):
        for number in random.sample(range(len(calls)), len(calls)):
            for turn in range(warm_up + timed):
                begin = clock()
                calls[number]()
                took = clock() - begin
                if not turn:
                    first[number].append(took)
                if turn >= warm_up:
                    again[number].append(took)

    def middle(times: list[list[float]]) -> list[float]:
        return [statistics.median(taken) * 1e6 for taken in times]

    return middle(again), middle(first)


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


def doubling(weight: Tensor, delta: Tensor, longest: int) -> Tensor:
    """The segmented doubling scan that the floor was measured with."""
    seen = 1
    while seen < longest:
        more = torch.addcmul(delta[:-seen], weight[:-seen], delta[seen:])
        delta = torch.cat([more, delta[-seen:]])
        weight = torch.cat([weight[:-seen] * weight[seen:], weight[-seen:]])
        seen *= 2
    return delta


def scan() -> None:
    """`gae` on flat steps with the values given, alongside the floor."""
    batch = trajectories([200] * 327 + [136])
    reward, value, ahead = torch.randn(3, 65_536, 1)
    done, terminated = batch["next", "done"], batch["next", "terminated"]
    weight = torch.full((65_536,), GAMMA * LMBDA).masked_fill(done[:, 0], 0)

    def ours() -> object:
        return gae(reward, value, ahead, terminated, done, gamma=GAMMA, lmbda=LMBDA)

    calls = (ours, lambda: doubling(weight, reward[:, 0], 256))
    (took, floor), (first, _) = in_blocks_us(12, *calls)
    print("gae on 65,536 flat steps, episodes of 200, values given")
    print(f"  {took:41.0f} us   (bar 1,000 us where a doubling scan takes 300 to 600)")
    print(f"{FIRST:32}{first:9.0f} us")
    print(f"  doubling scan of the same steps{floor:10.0f} us   {took / floor:.2f} of it")


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
        again, first = in_blocks_us(rounds, *calls, warm_up=1, timed=timed)
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
    again, first = in_blocks_us(8, afresh, *calls)
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
        (network, found, returns, calls, straight), _ = in_blocks_us(
            4,
            lambda: net.module(rows),
            find,
            lambda: gae(*values, *ends, gamma=GAMMA, lmbda=LMBDA),
            fixed,
            lambda: straight_on(batch, net),
        )
    print(
        f"    alone: network {network:.0f}, markers {found:.0f}, returns {returns:.0f} us; "
        f"the module on 64 rows {calls:.0f} us"
    )
    print(
        f"    for this layout alone, by hand {straight:.0f} us: {whole / straight:.2f} of it; "
        f"the peer takes {peer / straight:.1f} times that"
    )


def curves(largest: int) -> None:
    """Nanoseconds a step of `gae`, over sizes and over spreads of episode lengths."""
    print("gae, ns a step")

    def each_ns(lengths: Tensor) -> float:
        size = int(lengths.sum())
        done = torch.zeros(size, 1, dtype=torch.bool)
        done[lengths.cumsum(0) - 1] = True
        reward, value, ahead = torch.randn(3, size, 1)
        call = (lambda: gae(reward, value, ahead, done, done, gamma=GAMMA, lmbda=LMBDA),)
        return bench.medians_us(max(3, 2_000_000 // size), *call, clock=clock)[0] * 1e3 / size

    sizes = [size for size in (10_000, 100_000, 1_000_000, 10_000_000) if size <= largest]
    found = [each_ns(torch.full((size // 200,), 200)) for size in sizes]
    print("  steps   " + "".join(f"{size:>14,}" for size in sizes))
    print("  ns      " + "".join(f"{value:14.1f}" for value in found))
    if 10_000_000 in sizes:
        print(f"  10,000,000 over 100,000: {found[-1] / found[1]:.2f} (bar 4)")
    spreads = {
        "1 each": torch.ones(100_000, dtype=torch.int64),
        "200 each": torch.full((500,), 200),
        "1 to 399": torch.randint(1, 400, (500,)),
        "geometric": torch.empty(500).geometric_(1 / 200).long().clamp(min=1),
        "one long": torch.cat([torch.tensor([99_000]), torch.full((1_000,), 1)]),
        "one alone": torch.tensor([100_000]),
    }
    values = {name: each_ns(lengths) for name, lengths in spreads.items()}
    for name, value in values.items():
        print(f"  episodes {name:12}{value:10.1f}")
    print(f"  largest over smallest: {max(values.values()) / min(values.values()):.2f} (bar 2)")


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


def ppo() -> None:
    """`ClipPPOLoss` forward and backward on 4,096 rows: the same networks, each library's actor."""
    from torchrl import modules
    from torchrl.objectives import ClipPPOLoss as Peer

    def mlp(size: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, size)
        )

    policy, value = mlp(4), mlp(1)
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
    rows = {
        "observation": torch.randn(4096, 8),
        "action": nn.functional.one_hot(torch.randint(4, (4096,)), 4),
        "sample_log_prob": -1 - torch.rand(4096),
        "advantage": torch.randn(4096, 1),
        "value_target": torch.randn(4096, 1),
    }
    batch = TensorDict(rows, [4096])
    ours, theirs = ClipPPOLoss(actor, net), Peer(peer_actor, peer_net)
    theirs.set_keys(sample_log_prob="sample_log_prob")

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

    (took, peer, hand, floor, kernels), first = in_blocks_us(
        21,
        lambda: step(ours),
        lambda: step(theirs),
        lambda: by_hand(policy, value, batch).backward(),
        networks,
        lambda: [call() for call in by_kernels],
    )
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
    parser.add_argument("--quick", action="store_true", help="leave the largest sizes out")
    hint = "count the processor time of one thread, for a machine that others use too"
    parser.add_argument("--cpu-time", action="store_true", help=hint)
    hint = "as where the extra `compiled` is not installed"
    parser.add_argument("--without-numba", action="store_true", help=hint)
    with bench.session(parser) as given:
        run(given)


def run(given: argparse.Namespace) -> None:
    """Print every figure."""
    quick = given.quick
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
    scan()
    module()
    print("GAE module on [B, T], compared with the peer's best setting; called again and again")
    padded(64, 1024, 5)
    padded(300, 500, 3)
    padded(4096, 128, 3)
    curves(1_000_000 if quick else 10_000_000)
    ppo()
    print("CUDA: not measured here; benchmarks/gpu_scan.py prints goal G10 on a machine with one")


if __name__ == "__main__":
    main()
