"""The token that each token leads to, inside its conversation."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from rl_layout import Segments
from rl_tensordict import UnfitValue, find, require
from rl_tensordict.arguments import check_collection
from rl_text.tokens.names import ACTION, INPUT_IDS, LOSS_MASK


def shift(batch: TensorDictBase) -> TensorDictBase:
    """Make each row a decision: its action is the next token of its conversation.

    Row t knows the tokens up to t and chooses token t + 1, so ``"loss_mask"`` becomes that of the
    chosen token. The last token of a conversation chooses nothing: its action is 0 and does not
    count. Nothing crosses from one conversation to another.

    Args:
        batch: tokens ``[N]`` or ``[S, L]``.

    Returns:
        A new tensordict that shares the other leaves, with int64 ``"action"`` ``[*B, T]`` and bool
        ``"loss_mask"`` ``[*B, T]``: that the action counts.

    Raises:
        KeyError: there are no ``"input_ids"``.
        ValueError: the batch is shifted already.

    Example:
        >>> from rl_text import flat_tokens
        >>> rows = shift(flat_tokens([[5, 6], [7]], [[8], [9]]))
        >>> rows["action"].tolist(), rows["loss_mask"].int().tolist()
        ([6, 8, 0, 9, 0], [0, 1, 0, 1, 0])
    """
    check_collection("batch", batch)
    if find(batch, (ACTION,)) is not None:
        msg = f"{ACTION!r} is there: the batch is shifted already. Shift it once."
        raise UnfitValue(msg)
    tokens = require(batch, INPUT_IDS)
    segments = Segments.of(batch)
    flat = tokens.reshape(-1)
    leads = torch.zeros_like(flat, dtype=torch.bool)
    leads[segments.rows] = True
    leads[segments.lasts] = False
    mask = find(batch, (LOSS_MASK,))
    counts = leads if mask is None else mask.reshape(-1).roll(-1) & leads
    made = batch.copy()
    made.set(ACTION, flat.roll(-1).masked_fill(~leads, 0).view_as(tokens))
    made.set(LOSS_MASK, counts.view_as(tokens))
    return made
