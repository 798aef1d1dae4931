"""Flat tokens padded to a rectangle, and back; as lists."""

from __future__ import annotations

import itertools
from typing import Literal

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_layout import Segments, keys
from rl_tensordict import leaves
from rl_tensordict.arguments import check_choice, check_collection, check_type, check_whole, shown
from rl_text.tokens.conversation_ids import conversation_ids
from rl_text.tokens.flat import markers
from rl_text.tokens.names import ATTENTION_MASK, INPUT_IDS

PaddingSide = Literal["left", "right"]


def padded(
    batch: TensorDictBase,
    pad_token_id: int = 0,
    *,
    side: PaddingSide = "right",
    length: int | None = None,
) -> TensorDict:
    """Lay one conversation in each row of a rectangle, as models without packing want them.

    Args:
        batch: flat tokens ``[N]``.
        pad_token_id: what ``"input_ids"`` holds in cells without a token; other leaves hold 0,
            trajectory ids -1.
        side: where the cells without a token are.
        length: L; that of the longest conversation by default.

    Returns:
        A tensordict ``[S, L]`` of every leaf, with int64 ``"attention_mask"`` and bool
        ``("collector", "mask")``, both of real tokens.

    Raises:
        ValueError: there is no such side, or a conversation is longer than `length`.
        TypeError: the batch is no tensordict.

    Example:
        >>> from rl_text import flat_tokens
        >>> padded(flat_tokens([[5, 6], [7]]), side="left")["input_ids"]
        tensor([[5, 6],
                [0, 7]])
    """
    check_collection("batch", batch)
    check_choice("side", side, ("left", "right"))
    check_whole("pad_token_id", pad_token_id)
    if length is not None:
        check_whole("length", length)
    segments = Segments.of(batch)
    longest = segments.max_length
    width = longest if length is None else length
    if longest > width:
        first = int((segments.lengths > width).nonzero()[0])
        msg = (
            f"length: {width} is too short for conversation {first} of "
            f"{int(segments.lengths[first])} tokens. Cut it, or pass length={longest}."
        )
        raise ValueError(msg)
    cells = torch.arange(width, device=segments.starts.device) - (
        (width - segments.lengths).unsqueeze(1) if side == "left" else 0
    )
    real = (cells >= 0) & (cells < segments.lengths.unsqueeze(1))  # [S, L]
    rows = (segments.starts.unsqueeze(1) + cells).masked_fill(~real, 0)
    fills = {(INPUT_IDS,): pad_token_id, keys.TRAJ_IDS: keys.PADDING_ID}
    made = TensorDict({}, real.shape, names=[None, keys.TIME])
    for key, leaf in leaves(batch):
        flat = leaf.flatten(0, batch.ndim - 1)
        wide = real.view(*real.shape, *(1,) * (flat.ndim - 1))
        made.set(key, flat[rows].masked_fill(~wide, fills.get(key, 0)))
    made.set(ATTENTION_MASK, real.long())
    made.set(keys.MASK, real)
    return made


def from_padded(
    input_ids: Tensor, attention_mask: Tensor | None = None, **others: Tensor
) -> TensorDict:
    """Take the real tokens of a rectangle, the inverse of `padded` whatever the side.

    Args:
        input_ids: integers ``[S, L]``.
        attention_mask: 1 or True for real tokens, else 0, ``[S, L]``; all are real if absent.
        others: leaves ``[S, L, ...]`` of the same tokens, as ``loss_mask``.

    Returns:
        Flat tokens ``[N]`` with markers; conversations have new ids.

    Raises:
        ValueError: shapes differ, a mask holds other numbers, or a row has no real token.
        TypeError: tokens are not whole numbers, or leaves are no tensors.

    Example:
        >>> mask = torch.tensor([[0, 1], [1, 1]])
        >>> from_padded(torch.tensor([[0, 7], [5, 6]]), mask)["input_ids"].tolist()
        [7, 5, 6]
    """
    if not isinstance(input_ids, Tensor) or input_ids.ndim != 2 or input_ids.is_floating_point():
        msg = f"input_ids: expected integers [S, L], got {shown(input_ids)}."
        raise TypeError(msg)
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    for name, leaf in {ATTENTION_MASK: mask, **others}.items():
        check_type(name, leaf, Tensor, f"a tensor {[*input_ids.shape]}, as input_ids")
        if leaf.shape[:2] != input_ids.shape:
            msg = f"{name}: expected {[*input_ids.shape]}, as input_ids, got {[*leaf.shape]}."
            raise ValueError(msg)
    real = mask.bool()
    if not bool((mask == real).all()):
        msg = f"attention_mask: expected 1 for real tokens and 0 for others, got {_others(mask)}."
        raise ValueError(msg)
    lengths = real.sum(1).cpu()
    if not len(lengths) or int(lengths.min()) == 0:
        row = int(lengths.argmin()) if len(lengths) else 0
        msg = f"attention_mask: row {row} has no real token. Leave it out."
        raise ValueError(msg)
    rows = {INPUT_IDS: input_ids.long(), **others}
    made = {name: leaf[real] for name, leaf in rows.items()}
    marks = markers(lengths, conversation_ids.take(len(lengths)))
    flat = TensorDict({**made, **marks}, [int(lengths.sum())], names=[keys.TIME])
    return flat.to(input_ids.device)


def _others(mask: Tensor) -> list[float]:
    """A few numbers of a mask that are neither 0 nor 1."""
    found: list[float] = mask[(mask != 0) & (mask != 1)][:4].tolist()
    return found


def token_lists(batch: TensorDictBase) -> list[list[int]]:
    """The numbers of the tokens of each conversation.

    Args:
        batch: flat or padded tokens ``[*B, T]``.

    Example:
        >>> from rl_text import flat_tokens
        >>> token_lists(flat_tokens([[5, 6], [7]]))
        [[5, 6], [7]]
    """
    check_collection("batch", batch)
    segments = Segments.of(batch)
    real = segments.gather(batch.get(INPUT_IDS)).tolist()
    ends = segments.offsets.tolist()
    return [real[first:last] for first, last in itertools.pairwise(ends)]
