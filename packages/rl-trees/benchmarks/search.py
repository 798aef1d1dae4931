"""Time a search of 64 trees x 50 simulations with a small model, beside mctx where it is installed.

Run with `nox -s "bench(rl-trees)"`; `pip install mctx "jax[cpu]"` beforehand for the peer, which is
not among the requirements for its size. 8 actions, a model of 64 units whose calls are timed alone
as well; JAX is limited to one thread, as torch is here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from bench import medians_us, session, table

from rl_trees import PUCT, GumbelHalving, MCTSTrees

TREES, SIMULATIONS, ACTIONS, UNITS = 64, 50, 8, 64
torch.set_num_threads(1)
torch.manual_seed(0)
CORE, MOVES = torch.randn(UNITS, UNITS) / 8, torch.randn(ACTIONS, UNITS) / 3
HEADS, STATES = torch.randn(UNITS, ACTIONS + 2) / 8, torch.randn(TREES, UNITS)
ROWS = torch.arange(TREES)


def model(states: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Next states, and logits, rewards and values side by side."""
    after = torch.tanh(torch.addmm(MOVES[actions], states, CORE))
    return after, after @ HEADS


def ours(trees: MCTSTrees) -> Callable[[], object]:
    """A whole search."""
    kept = torch.empty(TREES, SIMULATIONS + 1, UNITS)

    @torch.inference_mode()
    def call() -> torch.Tensor:
        out = STATES @ HEADS
        trees.reset(out[:, :ACTIONS], out[:, ACTIONS + 1])
        kept[:, 0] = STATES
        for _ in range(SIMULATIONS):
            leaves = trees.select()
            after, out = model(kept[ROWS, leaves.node], leaves.action)
            results = (out[:, ACTIONS], out[:, :ACTIONS], out[:, ACTIONS + 1])
            kept[ROWS, trees.expand(leaves, *results, discount=0.99)] = after
            trees.backup(leaves)
        return trees.best_actions()

    return call


@torch.inference_mode()
def model_alone() -> None:
    """The calls of the model that a search makes."""
    states, actions = STATES, ROWS % ACTIONS
    for _ in range(SIMULATIONS):
        states, _ = model(states, actions)


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


def main() -> None:
    """All figures."""
    rules = {
        "gumbel_muzero_policy": GumbelHalving(SIMULATIONS),
        "muzero_policy": PUCT(normalize=True),
    }
    with session():
        for policy, rule in rules.items():
            trees = MCTSTrees(TREES, SIMULATIONS + 1, ACTIONS, rule)
            calls = {f"ours, {type(rule).__name__}": ours(trees), "the model alone": model_alone}
            if find_spec("mctx"):
                calls[f"mctx, {policy}"] = theirs(policy)
            found = dict(zip(calls, medians_us(40, *calls.values()), strict=True))
            table(f"{TREES} trees x {SIMULATIONS} simulations", found, next(iter(calls)))


if __name__ == "__main__":
    main()
