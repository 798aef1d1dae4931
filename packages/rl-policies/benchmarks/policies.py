"""Sampling actors alongside plain torch and compared with torchrl, in one process.

Run with `nox -s "bench(rl-policies)"`. All sides compute a small network, draw an action and
its log-probability, without gradient. "ours, rollout" is what rollouts and collectors call at each
step, on tensors; "stored" reads the observation from a batch and writes to it, ours every key, by
hand the two. "ours, plan" may be called on anything at any time, and looks. "ours, by hand" calls
the network and our draw and nothing else: the fewest operations we know. Medians of calls taken in
turn, in processor time and on the clock, ratios printed.
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from bench import medians_us, report, session
from tensordict import TensorDict
from tensordict.nn import InteractionType, NormalParamExtractor, TensorDictModule
from torch import Tensor, nn
from torch.distributions import Categorical

import rl_policies as ours
from rl_envs import policy_plan
from rl_envs.rollouts.columns import Columns
from rl_policies.distributions.fast_sampling import direct_draw
from rl_specs import Bounded, OneHot
from rl_specs import Categorical as Choice

warnings.filterwarnings("ignore")

FEATURES, CHOICES, WIDTH = 4, 2, 64


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


def stored(plan: Any, observation: Tensor) -> Callable[[], object]:
    """What a rollout does at each step: reads from a batch, acts, writes to it."""
    key, rows = ("observation",), observation.shape[:1]
    columns = Columns(rows, 1)
    columns.add(key, observation.shape[1:], observation.dtype)
    columns.write(0, key, observation)
    made = plan({key: observation}, rows)
    for name, value in made.items():
        columns.add(name, value.shape[1:], value.dtype)
    act = columns.bind(plan.bound(), [key], list(made))
    return lambda: act(0)


def stored_by_hand(by_hand: Callable[..., Any], observation: Tensor) -> Callable[[], object]:
    """The same as a script would write it."""
    batch = [torch.stack([value]) for value in (observation, *by_hand(observation))]
    observations, actions, log_probs = batch

    def act() -> None:
        actions[0], log_probs[0] = by_hand(observations[0])

    return act


def drawn_by_hand(mine: Any) -> Callable[[Tensor], object]:
    """The network of an actor, and the function that draws like its distribution."""
    network, sampling = (part for part in mine.module)
    net, kind = network.module, sampling.distribution_class
    draw = direct_draw(kind, network.out_keys, sampling.distribution_kwargs)
    assert draw is not None
    if len(network.out_keys) == 1:
        return lambda observation: draw(net(observation))
    return lambda observation: draw(*net(observation))


def compare(title: str, rows: int, sides: dict[str, Any], by_hand: Callable[..., object]) -> None:
    """Print the durations at one number of rows."""
    observation = torch.randn(rows, FEATURES)
    batch = TensorDict({"observation": observation}, [rows])
    mine, root = sides["ours"], {("observation",): observation}
    plan = policy_plan(mine)
    plan(root, batch.batch_size)
    run, least = plan.bound(), drawn_by_hand(mine)
    assert run is not None
    calls: dict[str, Callable[[], object]] = {
        "by hand": lambda: by_hand(observation),
        "ours, by hand": lambda: least(observation),
        "ours, rollout": lambda: run({("observation",): observation}),
        "ours, plan": lambda: plan(root, batch.batch_size),
        "ours, step": lambda: mine.step(observation),
        "ours, module": lambda: mine(batch),
        "by hand, stored": stored_by_hand(by_hand, observation),
        "ours, stored": stored(plan, observation),
    }
    if "torchrl" in sides:
        calls["torchrl, module"] = lambda: sides["torchrl"](batch)
    repeats = 300 if rows > 1 else 2000
    clocks = time.thread_time, time.perf_counter
    options = {"warm_up": 5, "shuffle": True}
    times = [medians_us(repeats, *calls.values(), clock=clock, **options) for clock in clocks]
    found = dict(zip(calls, zip(*times, strict=True), strict=True))
    floor = found["by hand"]
    bar = "at most 1.5 of by hand" if rows > 1 else "at most +20 us through the plan"
    print(f"{title}, {rows:,} rows, bar {bar}; processor | clock")
    for name, each in found.items():
        shown = [
            f"{us:9.1f} us {us / least:5.2f} {us - least:+9.1f} us"
            for us, least in zip(each, floor, strict=True)
        ]
        report(f"{title}, {rows:,} rows: {name}", each[0], note=" | ".join(shown))


def peer() -> Any:
    """Torchrl's modules, or None if it is not installed."""
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
    with session():
        main()
