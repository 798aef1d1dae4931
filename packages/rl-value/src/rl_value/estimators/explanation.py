"""Text on the way that an estimator takes on a batch, from the predicates that choose it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict.nn import TensorDictModuleBase

from rl_layout import must_compare_observations
from rl_layout.internals import FIELDS
from rl_tensordict import as_key, as_tuple, find
from rl_value.estimators.bootstrapping.call_config import ValueCallConfig
from rl_value.estimators.bootstrapping.next_alone import reads_next_alone
from rl_value.estimators.bootstrapping.next_values import (
    lacks_next,
    reads_side_by_side,
    roles_of,
)
from rl_value.estimators.transitions import Transitions
from rl_value.networks import explain_call


def described(title: str, lines: Sequence[str]) -> str:
    """A title, and indented lines under it."""
    return "\n".join([title, *(f"  {line}" for line in lines)])


def segments_line(steps: Transitions) -> str:
    """How many segments there are, and the markers that give them."""
    batch, segments = steps.batch, steps.segments
    markers = [as_tuple(key) for key, _, _ in FIELDS.values()]
    found = [str(as_key(key)) for key in markers if find(batch, key) is not None]
    if must_compare_observations(batch):
        found.append("observations that follow each other")
    by = ", ".join(found) or "the rows of time"
    kind = "" if steps.ahead is None else " of n steps"
    return f"segments: {len(segments)} in {segments.num_real} rows{kind}, by {by}"


def left_out_line(steps: Transitions, missing_next: str = "skip") -> str:
    """Which rows have no part in any result."""
    without_next = 0 if steps.lost is None or missing_next == "root" else int(steps.lost.sum())
    history, members = steps.without_history, steps.left_out
    counts = {
        "padding": steps.segments.num_rows - steps.segments.num_real,
        "without their next observation": without_next,
        "without their history": 0 if history is None else int(history.sum()),
        "of members that are out": 0 if members is None else int(members.sum()),
    }
    shown = [f"{count} {reason}" for reason, count in counts.items() if count]
    return f"left out: {', '.join(shown) or 'no row'}"


def values_line(
    network: TensorDictModuleBase,
    steps: Transitions,
    calls: ValueCallConfig,
    second: str = "",
    *,
    next_only: bool = False,
) -> str:
    """How a network is called for values and next values; `second` says why it is called twice."""
    roles, count = roles_of(network), steps.segments.num_real
    again = second or ("" if calls.single_call else "single_call=False")
    calls_again = f", and once more: {again}" if again else ""
    if next_only and reads_next_alone(roles, calls):
        made = f"{explain_call(network)}, {count} next observations: it looks at single rows"
    elif reads_side_by_side(roles, steps, calls):
        made = f"{explain_call(network)}, {count} rows and {len(steps.segments)} last next "
        made += "observations as they lie: it looks at single rows"
    else:
        made = f"{explain_call(network)}, one sequence of each segment and what comes after it: "
        made += _reason_to_unroll(roles.states, steps, calls)
    missing = "; the batch has no next observations" if lacks_next(roles, steps.batch) else ""
    return f"{made}{calls_again}{missing}"


def estimator_lines(
    source: TensorDictModuleBase | str, steps: Transitions, calls: ValueCallConfig, way: str
) -> list[str]:
    """What an estimator does: a network gives values, or what `source` says; `way` is its scan."""
    values = source if isinstance(source, str) else values_line(source, steps, calls)
    found = [segments_line(steps), left_out_line(steps, calls.missing_next)]
    return [*found, f"values: {values}", f"scan: {way}", compiled_line()]


def _reason_to_unroll(
    states: frozenset[tuple[str, ...]], steps: Transitions, calls: ValueCallConfig
) -> str:
    if states:
        return f"it keeps {', '.join(str(as_key(key)) for key in sorted(states))}"
    if calls.shifted:
        return "shifted=True"
    if steps.ahead is not None:
        return "rows of n steps"
    if calls.num_chunks is not None or calls.value_chunk_size is not None:
        return "it is called in chunks"
    return "it reads markers"


def compiled_line(*, is_one_graph: bool = False) -> str:
    """What compiled code does."""
    if is_one_graph:
        return "compiled: one graph, shapes follow from the batch's"
    now = " (now)" if torch.compiler.is_compiling() else ""
    return f"compiled: outside of the graph, with one break{now}"
