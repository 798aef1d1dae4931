"""Policy plans bound to the columns of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch

from rl_envs.rollouts.columns import Columns, Key
from rl_envs.rollouts.policy_plan import Entry, PolicyPlan
from rl_layout import keys

Run: TypeAlias = Callable[[dict[Key, Any]], dict[Key, Any]]


def bind_plan(
    plan: PolicyPlan, columns: Columns, names: Sequence[Key], written: Sequence[Key]
) -> Callable[[int], None]:
    """Return a function that acts on one step: it reads the root and writes the outputs."""
    # columns.writer raises where an output changes its shape or dtype; after `Columns.grow` the
    # plan is to be bound again
    reads = [(key, columns.reader(key)) for key in names]
    writes = [(key, columns.writer(key)) for key in written]
    if plan.calls is None:
        run = _through(plan, set(written), columns.batch_size)
    else:
        run = bind_calls(plan.calls)

    def act(t: int) -> None:
        made = run({key: read(t) for key, read in reads})
        for key, write in writes:
            write(t, made[key])

    return act


def bind_calls(entries: Iterable[Entry]) -> Run:
    """Return a function that makes all calls of a flat plan; it adds to the scope it is given."""
    # flattened once more: what an entry lists as its parts is called in its place
    flat = [part for one in entries for part in one.bound()]
    calls = [(one.call, one.in_keys or [], one.out_keys or [], one.outputs) for one in flat]

    def run(scope: dict[Key, Any]) -> dict[Key, Any]:
        for call, in_keys, out_keys, as_tuple in calls:
            made = call(*[scope[key] for key in in_keys])
            if type(made) is not tuple or len(made) != len(out_keys):
                made = as_tuple(made)
            scope.update(zip(out_keys, made))  # noqa: B905 - as many as keys, and quicker
        return scope

    return run


def _through(plan: PolicyPlan, written: set[Key], batch_size: torch.Size) -> Run:
    """Return a function that calls the plan itself; its outputs are compared at every step."""

    def run(scope: dict[Key, Any]) -> dict[Key, Any]:
        made = plan(scope, batch_size)
        if made.keys() != written:
            _refuse(written, made)
        return made

    return run


def _refuse(expected: Iterable[Key], found: Iterable[Key]) -> None:
    named, made = (sorted(str(keys.as_key(key)) for key in some) for some in (expected, found))
    msg = f"the policy wrote {named} in the steps before, and {made} now: write the same at each."
    raise ValueError(msg)
