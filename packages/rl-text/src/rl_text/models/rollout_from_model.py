"""Rollouts of a language model from prompts, with rewards and a penalty for each token."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_layout import Segments, keys
from rl_tensordict import UnfitValue
from rl_tensordict.arguments import check_calls, check_number, check_type, check_whole
from rl_text.datasets.preferences import PromptData, check_ends
from rl_text.models.completions import end_tokens, place_rewards, sample_completions
from rl_text.models.kl_controllers import KLController
from rl_text.models.language_model import LanguageModel
from rl_text.tokens.names import ACTION, ATTENTION_MASK, INPUT_IDS, LOSS_MASK, SAMPLE_LOG_PROB
from rl_value import GRPOLoss


class RolloutFromModel:
    """Lets a model complete prompts, and scores what it wrote.

    The reward of a token is -β (log π - log ρ), with a reference model ρ, and at the last token in
    addition the score of the whole text, less that of the label where prompts have one, clipped.

    Args:
        model: a causal language model. Its config names the end token, or several, and the pad
            token.
        ref_model: the reference model.
        reward_model: called with ``input_ids`` and ``attention_mask`` ``[B, L]``; what it returns
            is a score for each text ``[B]``, or has ``end_scores``, or is a tuple of which the
            last are the scores.
        kl_coef: β.
        max_new_tokens: the most tokens of a completion.
        score_clip: scores are clipped to plus and minus this.
        kl_scheduler: is told of divergences, and gives β from then on.
        num_steps: rollouts whose divergences `step_scheduler` passes on at once.

    Raises:
        ValueError: the model's config has no end token or no pad token; a number is out of range.
        TypeError: a model cannot be called, or the scheduler is none.

    Example:
        >>> from types import SimpleNamespace
        >>> from rl_text.testing import TinyModel
        >>> model = TinyModel(9)
        >>> model.config = SimpleNamespace(eos_token_id=1, pad_token_id=0)
        >>> def score(input_ids, attention_mask):
        ...     return (input_ids == 5).sum(-1).float()
        >>> rollouts = RolloutFromModel(model, model, score, max_new_tokens=4)
        >>> ids = torch.tensor([[2, 3, 0], [4, 5, 6]])
        >>> mask, last = torch.tensor([[1, 1, 0], [1, 1, 1]]), torch.tensor([1, 2])
        >>> steps = rollouts.rollout_from_data(PromptData(ids, mask, last, batch_size=[2]))
        >>> steps.batch_size, steps["next", "reward"].shape
        (torch.Size([2, 4]), torch.Size([2, 4, 1]))
    """

    def __init__(  # noqa: PLR0913 - the arguments are the seed's
        self,
        model: Callable[..., Any],
        ref_model: Callable[..., Any],
        reward_model: Callable[..., Any],
        kl_coef: float = 0.1,
        max_new_tokens: int = 50,
        score_clip: float = 10.0,
        kl_scheduler: KLController | None = None,
        num_steps: int | None = None,
    ) -> None:
        check_calls(model=model, ref_model=ref_model, reward_model=reward_model)
        for name, value in (("kl_coef", kl_coef), ("score_clip", score_clip)):
            check_number(name, value)
            if value < 0:
                msg = f"{name}: expected 0 or more, got {value}."
                raise UnfitValue(msg)
        if kl_coef == math.inf:  # times a ratio of 0, a reward is NaN
            msg = "kl_coef: expected a finite number, got inf."
            raise UnfitValue(msg)
        check_type("kl_scheduler", kl_scheduler, KLController | None, "a KLController or None")
        check_whole("max_new_tokens", max_new_tokens, 1)
        if num_steps is not None:
            check_whole("num_steps", num_steps, 1)
        self.model, self.ref_model, self.reward_model = model, ref_model, reward_model
        self.kl_coef = kl_coef
        self.max_new_tokens = max_new_tokens
        self.score_clip = score_clip
        self.kl_scheduler = kl_scheduler
        self.eos_token_id = end_tokens(configured(model, "eos_token_id", "end"))
        self.pad_token_id = end_tokens(configured(model, "pad_token_id", "pad"))[0]
        self._divergences: deque[float] = deque(maxlen=num_steps)

    @torch.no_grad()
    def rollout_from_data(
        self, batch: PromptData, *, generator: torch.Generator | None = None
    ) -> TensorDict:
        """Complete the prompts of a batch.

        Args:
            batch: prompts ``[B, L]``; what follows them is not seen.
            generator: source of randomness; torch's own if None.

        Returns:
            Steps ``[B, T]``, T = `max_new_tokens`, padded with ``("collector", "mask")``: int64
            ``"action"``, the token that was written; ``"input_ids"`` ``[B, T, W]`` and bool
            ``"attention_mask"``, all that was known before; float ``"sample_log_prob"``; and under
            ``"next"`` the same inputs with the token, ``"reward"``, ``"reward_raw"``,
            ``"reward_kl"`` and done flags. A completion that did not end is truncated.
        """
        rows = self.flat_rollout(batch, generator=generator)
        return self._as_steps(rows)

    @torch.no_grad()
    def flat_rollout(
        self, batch: PromptData, *, generator: torch.Generator | None = None
    ) -> TensorDictBase:
        """Complete the prompts of a batch, without padding.

        Args:
            batch: prompts ``[B, L]``.
            generator: source of randomness.

        Returns:
            Decisions ``[N]`` as of `sample_completions`, with ``("next", "reward")``,
            ``("next", "reward_raw")`` and ``("next", "reward_kl")`` ``[N, 1]``.

        Raises:
            TypeError: the batch holds no prompts.
            ValueError: a prompt ends outside of its row, or a score is NaN.
        """
        check_type("batch", batch, PromptData, "PromptData")
        check_ends(batch)  # they may be set after the batch is made
        width, last = batch.input_ids.shape[-1], batch.prompt_rindex
        outside = ((last < 0) | (last >= width)).nonzero()
        if len(outside):
            row = int(outside[0])
            msg = f"prompt_rindex: expected places from 0 to {width - 1}, got {int(last[row])} at "
            raise UnfitValue(msg + f"{row}.")
        cells = torch.arange(batch.input_ids.shape[-1], device=batch.input_ids.device)
        is_prompt = (cells <= batch.prompt_rindex.unsqueeze(-1)) & batch.attention_mask.bool()
        prompts = [
            row[flags].tolist() for row, flags in zip(batch.input_ids, is_prompt, strict=True)
        ]
        rows = sample_completions(
            self.model,
            prompts,
            max_new_tokens=self.max_new_tokens,
            eos_token_id=self.eos_token_id,
            generator=generator,
        )
        counts = rows[LOSS_MASK]
        reference = GRPOLoss(LanguageModel(self.ref_model)).log_prob(rows, counts)
        ratio = (rows[SAMPLE_LOG_PROB] - reference.to(rows[SAMPLE_LOG_PROB])) * counts
        self._divergences.append(float(ratio.sum() / counts.sum()))
        scores = self._scores(rows, batch)
        made = place_rewards(rows, scores)
        raw = made.pop(keys.NEXT_REWARD)
        penalty = (-self.kl_coef * ratio).unsqueeze(-1)
        made.set((keys.NEXT, "reward_raw"), raw)
        made.set((keys.NEXT, "reward_kl"), penalty)
        made.set(keys.NEXT_REWARD, raw + penalty)
        return made

    def step_scheduler(self) -> float:
        """Tell the scheduler of the divergences since the last call, at most `num_steps` of them.

        Returns:
            The weight of the penalty from now on.

        Raises:
            ValueError: there was no rollout.
        """
        if self.kl_scheduler is not None:
            if not self._divergences:
                msg = "there is no divergence yet: call rollout_from_data first."
                raise UnfitValue(msg)
            self.kl_coef = self.kl_scheduler.update(list(self._divergences))
        self._divergences.clear()
        return self.kl_coef

    def _scores(self, rows: TensorDictBase, batch: PromptData) -> Tensor:
        segments = Segments.of(rows)
        texts = segments.pad(rows[INPUT_IDS], self.pad_token_id)
        found = self._score(texts, segments.pad_mask.long())
        if batch.labels is not None:
            found = found - self._score(batch.labels, batch.attention_mask).cpu()
        return found.clamp(-self.score_clip, self.score_clip)

    def _score(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        found = self.reward_model(input_ids=input_ids, attention_mask=attention_mask)
        scores = getattr(found, "end_scores", None)
        if scores is None:
            scores = found[-1] if isinstance(found, tuple | list) and found else found
        if not isinstance(scores, Tensor) or scores.numel() != len(input_ids):
            got = [*scores.shape] if isinstance(scores, Tensor) else type(scores).__name__
            msg = f"reward_model: expected a score for each of {len(input_ids)} texts, got {got}."
            raise UnfitValue(msg)
        flat: Tensor = scores.reshape(-1).float()
        return flat

    def _as_steps(self, rows: TensorDictBase) -> TensorDict:
        """Decisions as steps of a rectangle, of completions alone."""
        segments, width = Segments.of(rows), self.max_new_tokens
        tokens = segments.pad(rows[INPUT_IDS], self.pad_token_id)  # [B, W]
        counts = segments.sum(rows[LOSS_MASK])  # [B]
        first = segments.lengths - counts  # tokens of each prompt
        steps = torch.arange(width, device=tokens.device)
        real = steps < counts.unsqueeze(1)  # [B, T]
        at = (segments.starts + first - 1).unsqueeze(1) + steps
        at = at.masked_fill(~real, 0)

        def taken(key: Any) -> Tensor:
            leaf = rows.get(key)
            wide = real.view(*real.shape, *(1,) * (leaf.ndim - 1))
            found: Tensor = leaf[at].masked_fill(~wide, 0)
            return found

        known = (first.unsqueeze(1) + steps).unsqueeze(-1)  # [B, T, 1], tokens before each step
        cells = torch.arange(tokens.shape[1], device=tokens.device)
        seen = tokens.unsqueeze(1).expand(-1, width, -1)  # a view: texts are stored once
        last = real & (steps == counts.unsqueeze(1) - 1)
        actions = taken(ACTION)
        ends = torch.tensor(self.eos_token_id, device=actions.device)
        ended = (last & torch.isin(actions, ends)).unsqueeze(-1)
        after = {
            INPUT_IDS: seen,
            ATTENTION_MASK: (cells < known + 1) & real.unsqueeze(-1),
            keys.TERMINATED: ended,
            keys.TRUNCATED: last.unsqueeze(-1) & ~ended,
            keys.DONE: last.unsqueeze(-1),
            **{name: taken((keys.NEXT, name)) for name in ("reward", "reward_raw", "reward_kl")},
        }
        ids = rows.get(keys.TRAJ_IDS)[at].masked_fill(~real, keys.PADDING_ID)
        group = {"mask": real, "traj_ids": ids, "traj_step": steps * real}
        root = {
            INPUT_IDS: seen,
            ATTENTION_MASK: (cells < known) & real.unsqueeze(-1),
            ACTION: actions,
            SAMPLE_LOG_PROB: taken(SAMPLE_LOG_PROB),
            keys.IS_INIT: ((steps == 0) & real).unsqueeze(-1),
            keys.COLLECTOR: group,
        }
        shape = [len(segments), width]
        whole = {**root, keys.NEXT: TensorDict(after, shape)}
        return TensorDict(whole, shape, names=[None, keys.TIME])


def configured(model: Any, name: str, what: str) -> int | Sequence[int]:
    """Read a token of the model's config, or some, or say which to set."""
    for place in ("generation_config", "config"):
        found: Any = getattr(getattr(model, place, None), name, None)
        if found is not None and found != []:
            return found  # type: ignore[no-any-return]
    msg = (
        f"model: there is no {what} token in the config of {type(model).__name__}. Set "
        f"model.config.{name}, as model.config.{name} = tokenizer.{name}."
    )
    raise UnfitValue(msg)
