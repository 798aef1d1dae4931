"""Completions sampled from a language model, as decisions in a flat batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import Segments, keys
from rl_tensordict import CPU, UnfitValue, as_tensor, require
from rl_tensordict.arguments import as_integer, check_type, check_whole, shown
from rl_text.models.language_model import call_model, check_above_0
from rl_text.tokens.flat import flat_tokens, whole_numbers
from rl_text.tokens.names import ACTION, LOSS_MASK, SAMPLE_LOG_PROB
from rl_text.tokens.shift import shift

CACHES = ("cache", "past_key_values")  # what models return it as, and take it as


@torch.no_grad()
def sample_completions(  # noqa: PLR0913 - as models of transformers generate
    model: Callable[..., Any],
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    eos_token_id: int | Sequence[int] | Tensor | None = None,
    num_samples: int = 1,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    groups: Sequence[int] | Tensor | None = None,
) -> TensorDictBase:
    """Sample what a model writes after each prompt.

    Args:
        model: a causal language model, called as those of transformers are.
        prompts: the tokens of each prompt.
        max_new_tokens: the most tokens of a completion.
        eos_token_id: the token that ends a completion and is its last, or several of which each
            does; None for none.
        num_samples: completions of each prompt, which are one group.
        temperature: what logits are divided by.
        generator: source of randomness; torch's own if None.
        groups: a number for each prompt; 0, 1, ... by default, in each call anew. Number them where
            completions of several calls are compared in one batch.

    Returns:
        Decisions ``[N]`` on the device of the model, as `shift` makes them, the completions of one
        prompt next to each other, with ``"group_ids"`` and float ``"sample_log_prob"`` ``[N]``, 0
        in prompts.

    Raises:
        ValueError: there is no prompt, one is empty, a number is out of range, or the model gives
            NaN.
        TypeError: prompts, end tokens or groups are no whole numbers.
        IndexError: the model does not have a token or a place.

    Example:
        >>> from rl_text.testing import TinyModel
        >>> rows = sample_completions(TinyModel(9), [[1, 2], [3]], max_new_tokens=4, num_samples=2)
        >>> rows["loss_mask"].sum().item(), rows["group_ids"].unique().tolist()
        (16, [0, 1])
    """
    check_whole("max_new_tokens", max_new_tokens, 1)
    check_whole("num_samples", num_samples, 1)
    check_above_0("temperature", temperature)
    check_type("generator", generator, torch.Generator | None, "a torch.Generator or None")
    prompts = _token_rows(prompts)
    ends = end_tokens(eos_token_id)
    numbers = _group_numbers(groups, len(prompts))
    repeated = [list(prompt) for prompt in prompts for _ in range(num_samples)]
    if not repeated or not all(repeated):
        where = f": number {repeated.index([]) // num_samples} is empty" if repeated else ""
        msg = f"prompts: expected prompts of at least one token{where}. Begin them with a token."
        raise ValueError(msg)
    device = _device_of(model)
    width = max(map(len, repeated))
    pads = [[0] * (width - len(one)) for one in repeated]
    ids = torch.tensor([p + t for p, t in zip(pads, repeated, strict=True)], device=device)
    masks = [[0] * len(p) + [1] * len(t) for p, t in zip(pads, repeated, strict=True)]
    real = torch.tensor(masks, device=device)
    ended = torch.zeros(len(repeated), dtype=torch.bool, device=device)
    state = _Continued(model, ids, real)
    found: list[tuple[Tensor, Tensor, Tensor]] = []  # tokens, log-probabilities, whether real
    for _ in range(max_new_tokens):
        chances = (state.next_logits().float() / temperature).log_softmax(-1)
        lost = chances.isnan().any(-1).nonzero()
        if len(lost):
            number = int(lost[0]) // num_samples
            msg = f"model: expected finite logits, got NaN after prompt {number}."
            raise UnfitValue(msg)
        token = torch.multinomial(chances.exp(), 1, generator=generator)
        found.append((token, chances.gather(-1, token), ~ended.unsqueeze(-1)))
        for end in ends:
            ended = ended | (token.squeeze(-1) == end)
        if bool(ended.all()):
            break
        state.append(token)
    drawn = (torch.cat(one, 1).cpu() for one in zip(*found, strict=True))
    rows = _decisions(repeated, numbers.repeat_interleave(num_samples), *drawn)
    return rows if device.type == "cpu" else rows.to(device)


def end_tokens(eos_token_id: Any) -> list[int]:
    """The numbers of one end token, of several, or of none."""
    one = as_integer(eos_token_id)
    given = [] if eos_token_id is None else [one] if one is not None else _listed(eos_token_id)
    found = [None] if given is None else [as_integer(number) for number in given]
    if None in found:
        msg = f"eos_token_id: expected the number of a token, or some, got {shown(eos_token_id)}."
        raise TypeError(msg)
    ends = [number for number in found if number is not None]
    if ends and min(ends) < 0:
        msg = f"eos_token_id: expected numbers of tokens, got {min(ends)}."
        raise ValueError(msg)
    return ends


def _group_numbers(groups: Any, count: int) -> Tensor:
    numbers = torch.arange(count, device=CPU) if groups is None else whole_numbers("groups", groups)
    if len(numbers) != count:
        msg = f"groups: expected one for each of {count} prompts, got {len(numbers)}."
        raise ValueError(msg)
    return numbers


def _token_rows(prompts: Any) -> list[list[int]]:
    """Prompts as lists of whole numbers."""
    listed = _listed(prompts)
    rows = [_listed(row) for row in listed or ()]
    whole = [row is not None and all(as_integer(n) is not None for n in row) for row in rows]
    if listed is None or not all(whole):
        given = prompts if listed is None else listed[whole.index(False)]
        where = "" if listed is None else f" at {whole.index(False)}"
        msg = f"prompts: expected lists of numbers of tokens, got {shown(given)}{where}."
        raise TypeError(msg + " Call the tokenizer first.")
    return [[int(n) for n in row] for row in rows if row is not None]


def _listed(values: Any) -> list[Any] | None:
    """The members of a list, a tensor or an array; None for texts and single values."""
    if isinstance(values, Tensor | np.ndarray) and values.ndim:
        return list(values.tolist())
    one = isinstance(values, str | bytes | Mapping | Tensor | np.ndarray | TensorDictBase)
    return None if one or not isinstance(values, Iterable) else list(values)


def place_rewards(batch: TensorDictBase, rewards: Tensor | Sequence[float]) -> TensorDictBase:
    """Give each conversation its reward, at the last action that counts.

    Args:
        batch: decisions ``[*B, T]``.
        rewards: finite numbers ``[S]``, one for each conversation.

    Returns:
        A new tensordict with ``("next", "reward")``, float32 ``[*B, T, 1]``, 0 elsewhere. Where no
        action counts, the reward is at the last row.

    Raises:
        ValueError: there is not one reward for each conversation, or one is NaN or infinite.
        TypeError: rewards are no numbers.
        KeyError: the tokens are no decisions, or do not say which count.

    Example:
        >>> from rl_text import flat_tokens, shift
        >>> rows = place_rewards(shift(flat_tokens([[5], [7]], [[8, 9], [6]])), [1.0, -1.0])
        >>> rows["next", "reward"].flatten().tolist()
        [0.0, 1.0, 0.0, -1.0, 0.0]
    """
    segments = Segments.of(batch)
    require(batch, ACTION)
    learnt = require(batch, LOSS_MASK)
    given = _finite(rewards).to(segments.starts.device)
    if given.shape != (len(segments),):
        msg = f"rewards: expected one for each of {len(segments)} conversations, got "
        raise UnfitValue(msg + f"{[*given.shape]}.")
    counts = segments.gather(learnt).reshape(-1)
    so_far = counts.cumsum(0)  # [M], over all conversations
    ends = segments.offsets[1:] - 1
    is_end = torch.zeros_like(counts).index_fill(0, ends, True)
    has_none = segments.spread(segments.sum(learnt) == 0)
    is_last = (counts & (so_far == segments.spread(so_far[ends]))) | (has_none & is_end)
    real = segments.spread(given).masked_fill(~is_last, 0)
    made = batch.copy()
    made.set(keys.NEXT_REWARD, segments.scatter(real).unsqueeze(-1))
    return made


def _finite(rewards: Any) -> Tensor:
    """Rewards as float32, none of them NaN or infinite."""
    given = None
    if not isinstance(rewards, Mapping):  # of which torch tells nothing that helps
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            given = as_tensor(rewards)
    if given is None or given.is_complex():
        msg = f"rewards: expected a number for each conversation, got {shown(rewards)}."
        raise TypeError(msg)
    found = given.detach().float()
    wrong = (~found.isfinite()).nonzero()
    if len(wrong):
        place = tuple(wrong[0].tolist())
        where = ", ".join(map(str, place))
        msg = f"rewards: expected finite numbers, got {given[place].item():g} at {where}."
        raise UnfitValue(msg)
    return found


class _Continued:
    """Rows that grow by one token, with the cache of the model where it has one."""

    def __init__(self, model: Callable[..., Any], ids: Tensor, mask: Tensor) -> None:
        self.model, self.ids, self.mask = model, ids, mask
        self.cache: dict[str, Any] = {}  # by the argument that takes it

    def next_logits(self) -> Tensor:
        """Logits of the next token of each row, ``[S, V]``."""
        places = (self.mask.cumsum(1) - 1).clamp(min=0)
        seen = self.ids[:, -1:] if self.cache else self.ids
        found = call_model(
            self.model,
            seen,
            attention_mask=self.mask,
            position_ids=places[:, -seen.shape[1] :],
            use_cache=True,
            **self.cache,
        )
        for name in CACHES:
            cache = getattr(found, name, None)
            if cache is not None:
                self.cache = {name: cache}
                break
        last: Tensor = found.logits[:, -1]
        return last

    def append(self, token: Tensor) -> None:
        """Add one token ``[S, 1]`` to each row."""
        self.ids = torch.cat([self.ids, token], 1)
        self.mask = torch.cat([self.mask, torch.ones_like(token)], 1)


def _decisions(
    prompts: list[list[int]], groups: Tensor, tokens: Tensor, log_prob: Tensor, real: Tensor
) -> TensorDictBase:
    lengths = real.sum(1).tolist()
    written = [row[:length] for row, length in zip(tokens.tolist(), lengths, strict=True)]
    rows = shift(flat_tokens(prompts, written, groups=groups))
    chances = torch.zeros(len(rows), device=CPU).masked_scatter(rows[LOSS_MASK], log_prob[real])
    rows.set(SAMPLE_LOG_PROB, chances)
    return rows


def _device_of(model: Any) -> torch.device:
    parameters = getattr(model, "parameters", None)
    first = next(parameters(), None) if callable(parameters) else None
    return torch.device("cpu") if first is None else first.device
