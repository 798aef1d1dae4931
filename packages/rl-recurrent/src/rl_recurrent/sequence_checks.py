"""Checks that a tensordict is one step or a sequence, as the mode expects."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from rl_layout import keys
from rl_recurrent.arguments import check_batch
from rl_tensordict import find, names_of


def require_sequence(batch: TensorDictBase) -> None:
    """Raise for a single row in recurrent mode."""
    check_batch(batch)
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
    step = find(tensordict, keys.TRAJ_STEP)
    if step is None:
        return bool(same.any())
    follows = same & (step[..., 1:] == step[..., :-1] + 1)
    # rows in random order share ids by chance, and hardly ever follow each other
    return bool(2 * follows.sum() > same.sum())
