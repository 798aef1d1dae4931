"""Time a search of 64 trees x 50 simulations with a small model, and of mctx if it is installed.

Run with `nox -s "bench(rl-trees)"`; `pip install mctx "jax[cpu]"` beforehand for the peer, which is
not among the requirements for its size. 8 actions, a model of 64 units, in numpy and in torch; its
calls are timed alone, and a search whose steps were computed before: what all but the model costs.
The parts of a search are printed too: model, compiled pass between two of its calls, Python.
JAX is limited to one thread, as torch is here, and compiles the model with its search.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import numpy as np
import torch
from bench import medians_us, session, table

from rl_layout.internals import load_compiled
from rl_tensordict.types import Floats, Ints
from rl_trees import PUCT, GumbelHalving, MCTSTrees, SearchStep

TREES, SIMULATIONS, ACTIONS, UNITS = 64, 50, 8, 64
torch.set_num_threads(1)
torch.manual_seed(0)
CORE, MOVES = torch.randn(UNITS, UNITS) / 8, torch.randn(ACTIONS, UNITS) / 3
HEADS, STATES = torch.randn(UNITS, ACTIONS + 2) / 8, torch.randn(TREES, UNITS)
ROWS = torch.arange(TREES)
ARRAYS = {
    name: x.numpy()
    for name, x in {"core": CORE, "moves": MOVES, "heads": HEADS, "states": STATES}.items()
}


def model(states: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Next states, and logits, rewards and values side by side."""
    after = torch.tanh(torch.addmm(MOVES[actions], states, CORE))
    return after, after @ HEADS


def array_model(states: Floats, actions: Ints) -> SearchStep[Floats]:
    """The same model in numpy."""
    after = np.tanh(states @ ARRAYS["core"] + ARRAYS["moves"][actions])
    out = after @ ARRAYS["heads"]
    return SearchStep(after, out[:, ACTIONS], out[:, :ACTIONS], out[:, ACTIONS + 1], 0.99)


def tensor_model(states: torch.Tensor, actions: torch.Tensor) -> SearchStep[torch.Tensor]:
    """The model in torch."""
    after, out = model(states, actions)
    return SearchStep(after, out[:, ACTIONS], out[:, :ACTIONS], out[:, ACTIONS + 1], 0.99)


def recorded(trees: MCTSTrees) -> Callable[[], object]:
    """A search with steps that were computed before: all but the model."""
    steps: list[SearchStep[Floats]] = []

    def kept(*given: Any) -> SearchStep[Floats]:
        steps.append(array_model(*given))
        return steps[-1]

    ours(trees, kept, ARRAYS["states"])()

    def replayed() -> object:
        turns = iter(steps)
        return ours(trees, lambda *_: next(turns), ARRAYS["states"])()

    return replayed


def ours(trees: MCTSTrees, step: Any, states: Any) -> Callable[[], object]:
    """A whole search."""
    heads = HEADS if isinstance(states, torch.Tensor) else ARRAYS["heads"]
    noise = torch.Generator()

    def call() -> torch.Tensor:
        out = states @ heads
        trees.reset(out[:, :ACTIONS], out[:, ACTIONS + 1], generator=noise.manual_seed(0))
        trees.search(step, states, SIMULATIONS)
        return trees.best_actions()

    return call


@torch.inference_mode()
def model_alone() -> None:
    """The calls of the model that a search makes."""
    states, actions = STATES, ROWS % ACTIONS
    for _ in range(SIMULATIONS):
        states, _ = model(states, actions)


def arrays_alone() -> None:
    """The same in numpy."""
    states, actions = ARRAYS["states"], ROWS.numpy() % ACTIONS
    for _ in range(SIMULATIONS):
        states, *_ = array_model(states, actions)


def theirs(policy: str) -> Callable[[], object]:
    """The peer's search with the same model, compiled."""
    os.environ.setdefault(
        "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    )
    import jax
    import jax.numpy as jnp
    import mctx

    core, moves, heads, states = (jnp.asarray(x.numpy()) for x in (CORE, MOVES, HEADS, STATES))

    def step(_: Any, __: Any, action: Any, state: Any) -> Any:
        after = jnp.tanh(state @ core + moves[action])
        out = after @ heads
        result = mctx.RecurrentFnOutput(
            reward=out[:, ACTIONS],
            discount=jnp.full(TREES, 0.99),
            prior_logits=out[:, :ACTIONS],
            value=out[:, ACTIONS + 1],
        )
        return result, after

    def search(key: Any) -> Any:
        out = states @ heads
        root = mctx.RootFnOutput(
            prior_logits=out[:, :ACTIONS], value=out[:, ACTIONS + 1], embedding=states
        )
        return getattr(mctx, policy)(None, key, root, step, SIMULATIONS).action

    compiled, key = jax.jit(search), jax.random.PRNGKey(0)
    return lambda: compiled(key).block_until_ready()


def show_parts(rule: Any) -> None:
    """Where the CPU time of a search goes; minima of 100 searches."""
    loops: Any = load_compiled("rl_trees.search.numba_search")
    if loops is None:
        print("\nparts of a search: numba is not installed.")
        return
    spent = {"model": 0.0, "compiled": 0.0}

    def counted(part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            begin = perf_counter()
            found = call(*given)
            spent[part] += perf_counter() - begin
            return found

        return run

    trees, advance = MCTSTrees(TREES, SIMULATIONS + 1, ACTIONS, rule), loops.advance
    search = ours(trees, counted("model", array_model), ARRAYS["states"])
    loops.advance = counted("compiled", advance)
    try:
        least = dict.fromkeys([*spent, "whole"], np.inf)
        for _ in range(100):
            spent.update(dict.fromkeys(spent, 0.0))
            begin = perf_counter()
            search()
            found = {**spent, "whole": perf_counter() - begin}
            least = {part: min(least[part], found[part]) for part in least}
    finally:
        loops.advance = advance
    scored = int(trees.columns.visits.sum())
    rest = least["whole"] - least["model"] - least["compiled"]
    print(f"\nparts of a search, {type(rule).__name__}, model in numpy")
    for name, time in {**least, "the rest, in Python": rest}.items():
        print(f"  {name:<20} {time * 1e3:6.2f} ms   {time / least['whole']:4.0%}")
    each = least["compiled"] / scored * 1e9
    print(f"  {scored:,} nodes scored, {each:.0f} ns of compiled time each, all else included")


def main() -> None:
    """All figures."""
    rules = {
        "gumbel_muzero_policy": GumbelHalving(SIMULATIONS),
        "muzero_policy": PUCT(normalize=True),
    }
    with session():
        for policy, rule in rules.items():
            name, made = type(rule).__name__, (TREES, SIMULATIONS + 1, ACTIONS, rule)
            arrays = ours(MCTSTrees(*made), array_model, ARRAYS["states"])
            calls = {
                f"ours, {name}, model in numpy": arrays,
                f"ours, {name}, model in torch": ours(MCTSTrees(*made), tensor_model, STATES),
                "ours without the model": recorded(MCTSTrees(*made)),
                "the model in numpy alone": arrays_alone,
                "the model in torch alone": model_alone,
            }
            if find_spec("mctx"):
                calls[f"mctx, {policy}"] = theirs(policy)
            found = dict(zip(calls, medians_us(40, *calls.values()), strict=True))
            table(f"{TREES} trees x {SIMULATIONS} simulations", found, next(iter(calls)))
            show_parts(rule)


if __name__ == "__main__":
    main()
