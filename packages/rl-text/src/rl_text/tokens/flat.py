"""Lists of tokens laid end to end in one flat batch."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from rl_layout import keys
from rl_tensordict import CPU, as_tensor
from rl_tensordict.arguments import shown
from rl_text.tokens.conversation_ids import conversation_ids
from rl_text.tokens.names import GROUP_IDS, INPUT_IDS, LOSS_MASK

Tokens = Sequence[int] | Tensor


def flat_tokens(
    tokens: Iterable[Tokens],
    completions: Iterable[Tokens] | None = None,
    *,
    groups: Sequence[int] | Tensor | None = None,
    ids: Tensor | None = None,
) -> TensorDict:
    """Lay conversations end to end, one row a token.

    Args:
        tokens: the numbers of the tokens of each conversation, S lists or integer tensors; of its
            prompt where completions are given.
        completions: what was written after each prompt, S lists. An empty one is a conversation
            without a token to learn from.
        groups: a number for each conversation ``[S]``, equal where the prompt is the same.
        ids: int64 ``[S]``, trajectory ids; ones never used before by default.

    Returns:
        A tensordict ``[N]`` of N tokens with int64 ``"input_ids"``, bool ``"loss_mask"`` (tokens
        to learn from: all, or those of the completions), int64 ``"group_ids"`` where groups are
        given, and the markers ``"is_init"``, ``("collector", "traj_ids")`` and
        ``("collector", "traj_step")``.

    Raises:
        ValueError: there is no conversation, one has no token at all, a token is below 0, or the
            numbers of prompts, completions, groups or ids differ.
        TypeError: tokens, groups or ids are not whole numbers.

    Example:
        >>> batch = flat_tokens([[5, 6], [7]], [[8], [9, 10]], groups=[0, 1])
        >>> batch["input_ids"].tolist(), batch["loss_mask"].int().tolist()
        ([5, 6, 8, 7, 9, 10], [0, 0, 1, 0, 1, 1])
    """
    first = _as_list("tokens", tokens)
    then = None if completions is None else _as_list("completions", completions)
    for name, others in (("completions", then), ("groups", groups), ("ids", ids)):
        if others is not None and len(others) != len(first):
            msg = f"{name}: expected one for each of {len(first)} conversations, got {len(others)}."
            raise ValueError(msg)
    pieces = first if then is None else [*chain.from_iterable(zip(first, then, strict=True))]
    counts = np.fromiter(map(len, pieces), np.int64, len(pieces))
    parts = torch.from_numpy(counts).view(len(first), 1 if then is None else 2)  # [S, 1] or [S, 2]
    lengths = parts.sum(1)
    if not len(first) or int(lengths.min()) == 0:
        where = f": number {int(lengths.argmin())} has none" if len(first) else ", got nothing"
        msg = f"tokens: expected conversations of at least one token{where}. Leave empty ones out."
        raise ValueError(msg)
    learnt = torch.ones(len(pieces), dtype=torch.bool, device=CPU)
    if then is not None:
        learnt[::2] = False
    leaves: dict[str, Any] = {
        INPUT_IDS: _joined(pieces, int(counts.sum())),
        LOSS_MASK: torch.repeat_interleave(learnt, parts.flatten()),
    }
    if groups is not None:
        leaves[GROUP_IDS] = torch.repeat_interleave(whole_numbers("groups", groups), lengths)
    numbers = conversation_ids.take(len(first)) if ids is None else whole_numbers("ids", ids)
    return TensorDict({**leaves, **markers(lengths, numbers)}, [int(lengths.sum())], names=["time"])


def markers(lengths: Tensor, ids: Tensor) -> dict[str, Any]:
    """The markers of trajectories that lie end to end."""
    # lengths: int64 ``[S]``.
    # ids: int64 ``[S]``.
    starts = torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths)
    steps = torch.arange(len(starts), device=starts.device) - starts
    group = {
        keys.TRAJ_IDS[-1]: torch.repeat_interleave(ids, lengths),
        keys.TRAJ_STEP[-1]: steps,
    }
    return {keys.IS_INIT: (steps == 0).unsqueeze(-1), keys.COLLECTOR: group}


def _as_list(name: str, tokens: Any) -> list[Tokens]:
    if isinstance(tokens, Mapping):  # what a tokenizer returns
        columns = sorted(map(str, tokens))
        msg = f"{name}: expected lists of tokens, got columns {columns}. Pass those of 'input_ids'."
        raise TypeError(msg)
    single = isinstance(tokens, Tensor | np.ndarray) and not tokens.ndim
    if single or isinstance(tokens, str | bytes) or not isinstance(tokens, Iterable):
        msg = f"{name}: expected lists of tokens, one for each conversation, got {shown(tokens)}."
        raise TypeError(msg)
    listed: list[Any] = list(tokens)
    if set(map(type, listed)) == {list}:  # what tokenizers return
        return listed
    for place, one in enumerate(listed):
        single = isinstance(one, Tensor | np.ndarray) and not one.ndim
        if single or isinstance(one, str) or not isinstance(one, Sequence | Tensor | np.ndarray):
            msg = f"{name}: expected a list of numbers of tokens, got {shown(one)} at {place}."
            raise TypeError(msg + " Call the tokenizer first.")
    return listed


def _joined(pieces: list[Tokens], count: int) -> Tensor:
    """All tokens as one int64 tensor."""
    if any(issubclass(kind, Tensor) for kind in set(map(type, pieces))):
        return _checked(torch.cat([whole_numbers("tokens", piece) for piece in pieces]))
    try:  # index refuses floats, which numpy would cut
        flat = map(operator.index, chain.from_iterable(pieces))
        return _checked(torch.from_numpy(np.fromiter(flat, np.int64, count)))
    except (TypeError, OverflowError) as error:
        msg = f"tokens: expected whole numbers of 64 bits: {error}. Call the tokenizer first."
        raise TypeError(msg) from error


def _checked(tokens: Tensor) -> Tensor:
    low = int(tokens.min())
    if low < 0:
        msg = f"tokens: expected numbers of 0 or more, got {low}. Leave out what is no token."
        raise ValueError(msg)
    return tokens


def whole_numbers(name: str, values: Any) -> Tensor:
    """Whole numbers ``[S]`` as int64."""
    try:
        found = as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        msg = f"{name}: expected whole numbers, got {shown(values)}."
        raise TypeError(msg) from error
    if found.is_floating_point() and not found.numel():
        return found.long()  # torch takes an empty list for one of floats
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        msg = f"{name}: expected whole numbers, got {found.dtype}."
        raise TypeError(msg)
    if found.ndim != 1:
        msg = f"{name}: expected one number each, got the shape {list(found.shape)}."
        raise ValueError(msg)
    return found.to(torch.int64)
