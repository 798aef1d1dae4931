"""Sampling actors beside plain torch and beside torchrl, in one process.

Run with `nox -s "bench(rl-policies)"`. All sides compute a small network, draw an action and
its log-probability, without gradient; the plan is what rollouts and collectors call. Medians of
calls taken in turn, ratios printed.
"""

from __future__ import annotations

import importlib.util
import random
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import InteractionType, NormalParamExtractor, TensorDictModule
from torch import Tensor, nn
from torch.distributions import Categorical

import rl_policies as ours
from rl_envs import policy_plan
from rl_specs import Bounded, OneHot
from rl_specs import Categorical as Choice

warnings.filterwarnings("ignore")

FEATURES, CHOICES, WIDTH = 4, 2, 64


def medians_us(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median duration of each call, in microseconds; they take turns, to meet the same load."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for turn in range(repeats + 5):
        random.shuffle(order)  # the caches are those of whoever came before
        for name in order:
            begin = time.perf_counter()
            calls[name]()
            if turn >= 5:
                times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(each) * 1e6 for name, each in times.items()}


def network(outputs: int) -> nn.Module:
    """A network of two layers."""
    return nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.Tanh(), nn.Linear(WIDTH, outputs))


def one_hot_by_hand(net: nn.Module) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """What a script would write for a choice."""

    def act(observation: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = net(observation).log_softmax(-1)
        index = torch.multinomial(log_probs.exp(), 1)
        action = torch.zeros_like(log_probs, dtype=torch.bool).scatter_(-1, index, True)
        return action, log_probs.gather(-1, index).squeeze(-1)

    return act


def normal_by_hand(net: nn.Module) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """What a script would write for an action within bounds."""

    def act(observation: Tensor) -> tuple[Tensor, Tensor]:
        loc, scale = net(observation)
        noise = torch.randn_like(loc)
        before = loc + scale * noise
        log_prob = -0.5 * noise.square() - scale.log() - 0.918938533204672
        slope = 2 * (0.693147180559945 - before - nn.functional.softplus(-2 * before))
        return before.tanh(), (log_prob - slope).sum(-1)

    return act


def categorical_by_hand(net: nn.Module) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """What a script would write for a choice as a number."""

    def act(observation: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = net(observation).log_softmax(-1)
        index = torch.multinomial(log_probs.exp(), 1)
        return index.squeeze(-1), log_probs.gather(-1, index).squeeze(-1)

    return act


def independent_by_hand(net: nn.Module) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """What a script would write for an action without bounds."""

    def act(observation: Tensor) -> tuple[Tensor, Tensor]:
        loc, scale = net(observation)
        noise = torch.randn_like(loc)
        log_prob = -0.5 * noise.square() - scale.log() - 0.918938533204672
        return loc + scale * noise, log_prob.sum(-1)

    return act


def actor(package: Any, net: nn.Module, keys: list[str], name: str, spec: Any) -> Any:
    """The same policy from ours or from the peer."""
    module = TensorDictModule(net, in_keys=["observation"], out_keys=keys)
    return package.ProbabilisticActor(
        module,
        in_keys=keys,
        spec=spec,
        distribution_class=Categorical if name == "Categorical" else getattr(package, name),
        return_log_prob=True,
        default_interaction_type=InteractionType.RANDOM,
    )


def compare(title: str, rows: int, sides: dict[str, Any], by_hand: Callable[..., object]) -> None:
    """Print the durations at one number of rows."""
    observation = torch.randn(rows, FEATURES)
    batch = TensorDict({"observation": observation}, [rows])
    mine = sides["ours"]
    plan, root = policy_plan(mine), {("observation",): observation}
    calls: dict[str, Callable[[], object]] = {
        "by hand": lambda: by_hand(observation),
        "ours, plan": lambda: plan(root, batch.batch_size),
        "ours, step": lambda: mine.step(observation),
        "ours, module": lambda: mine(batch),
    }
    if "torchrl" in sides:
        calls["torchrl, module"] = lambda: sides["torchrl"](batch)
    found = medians_us(calls, 300 if rows > 1 else 2000)
    floor = found["by hand"]
    bar = "at most 1.5 of by hand" if rows > 1 else "at most +20 us through the plan"
    print(f"{title}, {rows:,} rows, bar {bar}")
    for name, us in found.items():
        print(f"  {name:18}{us:9.1f} us  {us / floor:5.2f} of by hand  {us - floor:+9.1f} us")


def peer() -> Any:
    """Torchrl's modules, or None where it is not installed."""
    if importlib.util.find_spec("torchrl") is None:
        return None
    import torchrl.modules

    return torchrl.modules


def main() -> None:
    """Print every table."""
    torch.manual_seed(0)
    print(f"pandas importable: {importlib.util.find_spec('pandas') is not None}")
    choice, vector = network(CHOICES), nn.Sequential(network(2 * CHOICES), NormalParamExtractor())
    cases = [
        ("OneHotCategorical", choice, ["logits"], OneHot(CHOICES), one_hot_by_hand(choice)),
        (
            "TanhNormal",
            vector,
            ["loc", "scale"],
            Bounded(-1, 1, shape=(CHOICES,)),
            normal_by_hand(vector),
        ),
        ("Categorical", choice, ["logits"], Choice(CHOICES), categorical_by_hand(choice)),
        ("IndependentNormal", vector, ["loc", "scale"], None, independent_by_hand(vector)),
    ]
    with torch.no_grad():
        for name, net, keys, spec, by_hand in cases:
            sides = {"ours": actor(ours, net, keys, name, spec)}
            if peer() is not None:
                sides["torchrl"] = actor(peer(), net, keys, name, None)
            for rows in (1, 4096):
                compare(name, rows, sides, by_hand)


if __name__ == "__main__":
    main()
