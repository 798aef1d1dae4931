"""Does a batch obey the contract on data? One call, and a report that says where it does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_layout.arguments import check_key, check_mapping
from rl_layout.checks.markers import marker_findings
from rl_layout.checks.neighbours import MarkerRows
from rl_layout.checks.observations import observation_findings, went_on
from rl_layout.checks.report import Finding, LayoutReport
from rl_layout.segments.flat_views import is_plain
from rl_layout.segments.markers import FIELDS, Markers, batch_shape, flat_marker
from rl_tensordict import NestedKey, as_key
from rl_tensordict.arguments import shown

# key, dtype, whether the leaf ends in a dimension of size 1; the markers themselves left out
_OTHERS: tuple[tuple[NestedKey, torch.dtype | None, bool], ...] = (
    (keys.NEXT_REWARD, None, True),
    (keys.DONE, torch.bool, True),
    (keys.TERMINATED, torch.bool, True),
    (keys.TRUNCATED, torch.bool, True),
    (keys.NEXT_MISSING, torch.bool, False),
    (keys.HISTORY_MISSING, torch.bool, False),
    (keys.MID_EPISODE, torch.bool, False),
    (keys.POLICY_VERSION, torch.int64, False),
    (keys.ROW, torch.int64, False),
    (keys.SLICE_IDS, torch.int64, False),
)


def check_layout(
    batch: TensorDictBase,
    *,
    default_states: Mapping[NestedKey, Tensor | float] | None = None,
    eol_key: NestedKey = "end-of-life",
) -> LayoutReport:
    """Check a batch against every rule of the contract on data that a batch can break.

    Errors are contradictions: flags, ids and steps that cannot all be true, dtypes and trailing
    dimensions that the contract excludes, a next observation that belongs to another trajectory.
    Notes are data that is right but worth a look: a cut that only ids or steps show, as where
    rows of ``[B, T]`` were laid end to end, or next observations that differ from the
    observations that follow, as after a running normaliser. In samples (with ``"index"``) an id may
    go on after a done step that ``("next", eol_key)`` marks, and rows that were drawn one by
    one are no neighbours.

    Args:
        batch: a TED tensordict ``[N]`` or ``[*B, T]``; it is not changed.
        default_states: root key of each recurrent state, and what it holds at a reset.
        eol_key: what `EndOfLife` calls the steps that cost a life.

    Returns:
        The report; ``print`` it, or call ``raise_if_broken()``.

    Raises:
        ValueError: the batch has no row, or time is not its last dimension.
        KeyError: a recurrent state of ``default_states`` is missing.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> batch = trajectories([2, 3])
        >>> batch["is_init"][2] = False
        >>> check_layout(batch).errors[0].row
        (2,)
    """
    states = {} if default_states is None else default_states
    check_mapping(states, "default_states", "a dictionary of keys and defaults, or None")
    check_key(eol_key, "eol_key")
    shape = batch_shape(batch)
    wrong = [*_wrong_leaves(batch, shape)]
    # the other checks read markers of the right dtype and shape only
    sound = batch.exclude(*(finding.key for finding in wrong))
    rows = MarkerRows(
        Markers.of(sound), _slice_ids(sound), _lives(sound, eol_key), _drawn_alone(sound)
    )
    found = [
        *wrong,
        *marker_findings(rows),
        *_group_findings(batch),
        *_root_findings(sound, rows),
        *_opaque_findings(sound),
        *observation_findings(sound, rows),
        *_state_findings(sound, rows, states),
    ]
    return LayoutReport(shape, sorted(found, key=lambda finding: finding.severity))


def _wrong_leaves(batch: TensorDictBase, shape: torch.Size) -> Iterator[Finding]:
    """Leaves whose dtype or shape the contract excludes."""
    for key, dtype, singleton in (*FIELDS.values(), *_OTHERS):
        value = batch.get(key, None)
        if value is None:
            continue
        try:
            flat_marker(value, shape, key, dtype or value.dtype, singleton)
        except (ValueError, TypeError) as error:
            yield Finding("error", key, (), shape.numel(), str(error).split(": ", 1)[1])


def _slice_ids(batch: TensorDictBase) -> Tensor | None:
    value: Tensor | None = batch.get(keys.SLICE_IDS, None)
    return None if value is None else value.reshape(-1)


def _drawn_alone(batch: TensorDictBase) -> bool:
    """Whether a buffer drew these rows one by one: most neighbours come from other places."""
    index = batch.get(keys.INDEX, None)
    if index is None or batch.get(keys.SLICE_IDS, None) is not None or batch.numel() < 2:
        return False
    if batch.ndim != 1 or index.shape[:1] != batch.shape:
        return False
    places = index.reshape(len(index), -1)  # [N, 1], or [N, dims] of a storage of several
    one = torch.zeros_like(places[0])
    one[-1] = 1
    follows = (places[1:] - places[:-1] == one).all(1)
    return 2 * int(follows.sum()) < len(follows)


def _lives(batch: TensorDictBase, key: NestedKey) -> Tensor | None:
    """Steps of a sample that cost a life, bool ``[N]``; None if rows are stored ones."""
    value: Tensor | None = batch.get(keys.next_key(key), None)
    if value is None or batch.get(keys.INDEX, None) is None or value.numel() != batch.numel():
        return None
    return value.reshape(-1).cpu()


def _group_findings(batch: TensorDictBase) -> Iterator[Finding]:
    """Done flags of nested groups whose starts nothing marks, each group once."""
    present = {key for key, _ in keys.leaves(batch)}
    flags = [key for key in present if key[0] == keys.NEXT and key[-1] in keys.DONE_KEYS]
    for group in sorted({key[1:-1] for key in flags if key[1:-1]}):
        if (*group, keys.IS_INIT) not in present:
            key = min(key for key in flags if key[1:-1] == group)  # done before its kinds
            what = f"cuts nothing: {(*group, keys.IS_INIT)} is missing"
            yield Finding("note", key, (), batch.numel(), what)


def _root_findings(batch: TensorDictBase, rows: MarkerRows) -> Iterator[Finding]:
    """Steps that were taken from a state that the root flags call done."""
    for name in keys.DONE_KEYS:
        flag = batch.get(name, None)
        if flag is not None:
            over = flag.reshape(-1).cpu() & rows.real
            what = "is set before the step: no step is taken from a state that is done"
            yield from rows.found("error", name, over, what)


def _opaque_findings(batch: TensorDictBase) -> Iterator[Finding]:
    """Leaves whose bits cannot be looked at."""
    for key, leaf in keys.leaves(batch):
        if isinstance(leaf, Tensor) and not is_plain(leaf):
            what = "is quantized, sparse or nested: not compared. Store dense numbers"
            yield Finding("note", as_key(key), (), batch.numel(), what)


def _state_findings(
    batch: TensorDictBase, rows: MarkerRows, defaults: Mapping[NestedKey, Tensor | float]
) -> Iterator[Finding]:
    """Recurrent states at the start of a trajectory that are not the given default."""
    if rows.markers.traj_step is None:
        return
    # a cut of the collector starts a new id at step 0 and carries the state across it
    fresh = rows.real & (rows.markers.traj_step == 0).cpu() & ~went_on(batch, rows)
    for key, default in defaults.items():
        check_key(key, "default_states")
        state = keys.require(batch, key)
        flat = state.reshape(rows.size, -1)
        try:
            # one number, or the state of one row, for all rows: [F]
            wanted = torch.as_tensor(default, dtype=state.dtype, device=state.device)
            expected = wanted.expand(state.shape[batch.ndim :]).reshape(-1)
        except (TypeError, ValueError, RuntimeError) as error:
            msg = (
                f"default_states: expected {list(state.shape[batch.ndim :])} or a number for "
                f"{key!r}, got {shown(default)}."
            )
            raise type(error)(msg) from error
        what = "is not the default at traj_step 0: let the primer write it at every reset"
        yield from rows.found("error", key, fresh & (flat != expected).any(1).cpu(), what)
