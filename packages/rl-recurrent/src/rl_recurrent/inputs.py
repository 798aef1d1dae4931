"""Inputs of recurrent modules: one step or a sequence, and the segments of a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakSet

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import Markers, Segments, keys
from rl_layout.internals import FIELDS, array_of, batch_shape, marker_leaves, segments_of
from rl_recurrent.arguments import refuse_batch
from rl_tensordict import CPU, UnfitValue, find, names_of


def recurrent_segments(batch: TensorDictBase) -> Segments:
    """Derive the segments of a batch; raise for an unmarked start of a trajectory."""
    require_is_init(batch)
    shape, leaves = batch_shape(batch), marker_leaves(batch)
    segments = segments_of(batch, shape, leaves)
    if segments not in _checked:  # the same object as long as the markers live unchanged
        if _may_lack_starts(shape, leaves):
            refuse_lost_starts(shape, leaves)
        _checked.add(segments)
    return segments


def refuse_lost_starts(shape: torch.Size, leaves: Sequence[Tensor | None]) -> None:
    """Raise if the other markers show a first row that ``is_init`` does not mark."""
    for place in _TELLING:
        if leaves[place] is not None:
            break
    else:
        return
    flags = suspicious_rows(Markers.of_leaves(shape, leaves))
    if flags is not None and bool(flags.any()):
        _raise_lost_start(shape, int(flags.nonzero()[0]))


def _may_lack_starts(shape: torch.Size, leaves: Sequence[Tensor | None]) -> bool:
    """Whether a first row may be unmarked, of checked markers: False is certain, and cheap."""
    # The quick form of `suspicious_rows`, which looks at ids, holes and padding too: every row that
    # it flags is found here. They are two because its calls of torch, which compiled code and
    # devices need, would take most of the time of a minibatch.
    markers = dict(zip(FIELDS, leaves, strict=True))
    is_init, step = markers["is_init"], markers["traj_step"]
    if is_init is None or not is_init.is_cpu:
        return True
    unmarked = ~array_of(is_init).reshape(-1, shape[-1])
    if step is not None and bool((unmarked & (array_of(step).reshape(unmarked.shape) == 0)).any()):
        return True
    flags = (markers[name] for name in ("done", "terminated", "truncated"))
    ends = [array_of(flag).reshape(unmarked.shape) for flag in flags if flag is not None]
    return any(bool((unmarked[:, 1:] & flag[:, :-1]).any()) for flag in ends)


def require_is_init(batch: TensorDictBase) -> Tensor:
    """Return ``is_init``; raise with its transform if it is missing."""
    if not isinstance(batch, TensorDictBase):
        refuse_batch(batch)
    marker: Tensor | None = find(batch, (keys.IS_INIT,))
    if marker is None:
        msg = (
            f"{keys.IS_INIT!r} is missing: rl_transforms.InitTracker writes it. Append it to the "
            "environment, or pass policy= to its constructor, and keep the key in the buffer."
        )
        raise KeyError(msg)
    return marker


def suspicious_rows(markers: Markers) -> Tensor | None:
    """Flag rows that start a trajectory without ``is_init``, bool ``[N]``; None if unknown."""
    ends = markers.boundary()
    if markers.is_init is None or (ends is None and markers.traj_step is None):
        return None
    flags = torch.zeros_like(markers.is_init)
    if ends is not None:
        flags[1:] = ends[:-1]
        # first rows of sequences [*B, T] follow nothing
        flags.view(-1, markers.batch_shape[-1])[:, 0].fill_(False)
        if markers.traj_ids is not None and markers.traj_step is not None:
            # another id after an end is a cut of the data, as between rows of a flattened [B, T]
            flags[1:] &= markers.traj_ids[1:] == markers.traj_ids[:-1]
        elif markers.traj_step is not None:
            flags[1:] &= markers.traj_step[1:] == markers.traj_step[:-1] + 1
        if markers.mask is not None:
            flags[1:] &= markers.mask[:-1]
    if markers.traj_step is not None:
        flags |= markers.traj_step == 0
    flags &= ~markers.is_init
    return flags if markers.mask is None else flags.logical_and_(markers.mask)


def _raise_lost_start(shape: torch.Size, row: int) -> None:
    places = torch.unravel_index(torch.tensor(row, device=CPU), shape)
    place = row if len(shape) == 1 else tuple(map(int, places))
    msg = (
        f"{keys.IS_INIT} is False at row {place}, where another trajectory starts: the step is 0, "
        "or the row before is done. A state would leak. Did a buffer or a transform drop or "
        "rewrite the flag, or were rows drawn one by one and not in slices? "
        "rl_layout.check_layout(batch) shows all such rows."
    )
    raise ValueError(msg)


def require_sequence(batch: TensorDictBase) -> None:
    """Raise for a single row in recurrent mode."""
    if not isinstance(batch, TensorDictBase):
        refuse_batch(batch)
    if not batch.batch_size:
        msg = (
            "recurrent mode expects rows [N] or [*B, T]: got batch size []. "
            "Leave set_recurrent_mode, or stack the steps along time."
        )
        raise ValueError(msg)


def refuse_sequence(tensordict: TensorDictBase) -> None:
    """Raise for rows of one trajectory in sequential mode, which treats each as a single step."""
    # Rows of one id that do not follow each other by their steps are single steps, and so are rows
    # that a buffer drew one by one ("index" without ("collector", "slice_ids")).
    shape = tensordict.batch_size
    if not shape or shape[-1] == 1 or not _is_sequence(tensordict):
        return
    msg = (
        f"sequential mode expects one step of each environment: got rows {list(shape)} along time. "
        'Call the module under rl_layout.set_recurrent_mode("recurrent"), or on one step.'
    )
    raise ValueError(msg)


def _is_sequence(tensordict: TensorDictBase) -> bool:
    names = names_of(tensordict)
    if names and names[-1] == keys.TIME:
        return True
    ids = find(tensordict, keys.TRAJ_IDS)
    if ids is None:
        return tensordict.batch_dims > 1 and find(tensordict, keys.NEXT_DONE) is not None
    drawn_alone = find(tensordict, (keys.INDEX,)) is not None
    if torch.compiler.is_compiling() or (drawn_alone and find(tensordict, keys.SLICE_IDS) is None):
        return False
    same = (ids[..., 1:] == ids[..., :-1]) & (ids[..., 1:] != keys.PADDING_ID)
    if not bool(same.any()):  # the ordinary step: other environments have other ids
        return False
    step = find(tensordict, keys.TRAJ_STEP)
    if step is None:
        return True
    follows = same & (step[..., 1:] == step[..., :-1] + 1)
    # rows in random order share ids by chance, and hardly ever follow each other
    return bool(2 * follows.sum() > same.sum())


def check_input(x: Tensor, batch_shape: Sequence[int], weight: Tensor) -> None:
    """Raise for inputs that do not fit the batch or the parameters, of which w_ih is given."""
    expected = (*batch_shape, weight.shape[1])
    if x.shape != expected:
        msg = f"expected inputs of shape {list(expected)}: got {list(x.shape)}."
        raise ValueError(msg)
    if (x.dtype, x.device) != (weight.dtype, weight.device):
        msg = (
            f"expected inputs in {weight.dtype} on {weight.device}, as the parameters are: "
            f"got {x.dtype} on {x.device}."
        )
        raise ValueError(msg)


def check_states(
    states: Sequence[Tensor],
    batch: Sequence[int],
    weight: Tensor,
    shapes: Sequence[Sequence[int]],
    *,
    layers_first: bool = False,
) -> None:
    """Raise for states that do not fit: ``shapes`` are those of one row, layers and width."""
    if len(states) != len(shapes):
        msg = f"expected {len(shapes)} states: got {len(states)}."
        raise ValueError(msg)
    for name, state, (depth, width) in zip("hc", states, shapes, strict=False):
        shape = (depth, *batch, width) if layers_first else (*batch, depth, width)
        if state.shape != shape:
            msg = f"expected the state {name} of shape {list(shape)}: got {list(state.shape)}."
            raise UnfitValue(msg)
        if (state.dtype, state.device) != (weight.dtype, weight.device):
            msg = (
                f"expected the state {name} in {weight.dtype} on {weight.device}: "
                f"got {state.dtype} on {state.device}."
            )
            raise ValueError(msg)


# places of the markers that show where a trajectory starts, next to is_init
_TELLING = [list(FIELDS).index(name) for name in ("done", "terminated", "truncated", "traj_step")]
_checked: WeakSet[Segments] = WeakSet()  # whose starts are all marked
