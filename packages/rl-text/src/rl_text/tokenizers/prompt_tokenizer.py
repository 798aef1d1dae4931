"""Prompts with their labels as tensordicts of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from rl_tensordict import UnfitValue
from rl_text.tokenizers.protocol import TextTokenizer, require_eos, require_pad
from rl_text.tokenizers.tensordict_tokenizer import TensorDictTokenizer, as_batch, stacked
from rl_text.tokens.flat import flat_tokens
from rl_text.tokens.names import ATTENTION_MASK, INPUT_IDS


class PromptTensorDictTokenizer(TensorDictTokenizer):
    """Tokenises prompts, each followed by its label and the end token.

    Prompts and labels are tokenised apart, as a model that is asked sees the prompt: the last
    token of the prompt is known exactly. In addition to what `TensorDictTokenizer` writes there
    are int64 ``"prompt_rindex"``, its place, and bool ``"valid_sample"``: that everything fits.

    Args:
        tokenizer: one of transformers, or `ByteTokenizer`.
        max_length: the most tokens of an example.
        key: the column of prompts.
        padding: ``"max_length"``, True for the longest of a call, False for none.
        truncation: cut longer examples, which are not valid then; otherwise they are refused.
        return_tensordict: False for lists.
        device: of the tensors.
        label_key: the column of labels; without it prompts are alone and have no end token.

    Raises:
        ValueError: the tokenizer has no end token, or no pad token where one is needed.

    Example:
        >>> from rl_text import ByteTokenizer
        >>> process = PromptTensorDictTokenizer(ByteTokenizer(), max_length=5)
        >>> found = process({"prompt": ["ab"], "label": ["c"]})
        >>> found["input_ids"].tolist(), found["prompt_rindex"].tolist()
        ([[97, 98, 99, 257, 256]], [1])
    """

    def __init__(  # noqa: PLR0913 - the arguments are the seed's
        self,
        tokenizer: TextTokenizer,
        max_length: int,
        key: str = "prompt",
        padding: str | bool = "max_length",
        truncation: bool = True,
        return_tensordict: bool = True,
        device: torch.device | str | None = None,
        *,
        label_key: str = "label",
    ) -> None:
        super().__init__(tokenizer, max_length, key, padding, truncation, return_tensordict, device)
        self.label_key = label_key
        self._eos = require_eos(tokenizer, "the end of a label")

    def __call__(self, sample: Mapping[str, Any]) -> TensorDictBase | dict[str, Any]:
        """Tokenise one example, or columns of them.

        Args:
            sample: prompts under the key, and labels.

        Returns:
            A tensordict ``[]`` of one example or ``[S]`` of lists.

        Raises:
            KeyError: there are no prompts.
            ValueError: there is not one label for each prompt; an example is too long and
                `truncation` is False.
        """
        is_one = isinstance(self._texts(sample, self.key), str)
        prompts, labels = self._parts(sample)
        rows = [[*prompt, *label] for prompt, label in zip(prompts, labels, strict=True)]
        fits = [len(row) <= self.max_length for row in rows]
        ends = [min(len(prompt), self.max_length) - 1 for prompt in prompts]
        rows = [row[: self.max_length] for row in rows]
        width = self.max_length if self.padding == "max_length" else max(map(len, rows), default=0)
        pad = require_pad(self.tokenizer, "padding") if self.padding else 0
        pads = [width - len(row) if self.padding else 0 for row in rows]
        found: dict[str, Any] = {
            INPUT_IDS: [row + [pad] * n for row, n in zip(rows, pads, strict=True)],
            ATTENTION_MASK: [[1] * len(r) + [0] * n for r, n in zip(rows, pads, strict=True)],
            "prompt_rindex": ends,
            "valid_sample": fits,
        }
        if not self.return_tensordict:
            return {name: value[0] for name, value in found.items()} if is_one else found
        made = self._rectangle({name: found[name] for name in (INPUT_IDS, ATTENTION_MASK)})
        whole = {**made, "prompt_rindex": stacked(ends), "valid_sample": stacked(fits)}
        batch = as_batch(whole, self.device)
        return batch[0] if is_one else batch

    def flat(self, sample: Mapping[str, Any]) -> TensorDict:
        """Tokenise examples end to end; labels are learnt from, prompts are not.

        Args:
            sample: lists of prompts and labels.

        Returns:
            Tokens ``[N]``, see `flat_tokens`; those beyond `max_length` are left out.
        """
        prompts, labels = self._parts(sample)
        kept = [prompt[: self.max_length] for prompt in prompts]
        rest = [
            label[: self.max_length - len(prompt)]
            for prompt, label in zip(kept, labels, strict=True)
        ]
        return flat_tokens(kept, rest)

    def _parts(self, sample: Mapping[str, Any]) -> tuple[list[list[int]], list[list[int]]]:
        """The tokens of prompts and of labels."""
        prompts = self._texts(sample, self.key)
        prompts = [prompts] if isinstance(prompts, str) else prompts
        has_labels = self.label_key in sample
        labels = self._texts(sample, self.label_key) if has_labels else []
        labels = [labels] if isinstance(labels, str) else labels
        if has_labels and len(labels) != len(prompts):
            msg = f"{self.label_key!r}: expected one for each of {len(prompts)} prompts, got "
            raise UnfitValue(msg + f"{len(labels)}.")
        first = [self._open(tokens) for tokens in self.tokenizer(prompts)[INPUT_IDS]]
        then = self.tokenizer(labels, add_special_tokens=False)[INPUT_IDS] if has_labels else []
        ended = [[*label, self._eos] for label in then] if has_labels else [[] for _ in prompts]
        self._check(first, ended)
        return first, ended

    def _open(self, tokens: list[int]) -> list[int]:
        """A prompt without the end token that some tokenizers append."""
        return tokens[:-1] if tokens[-1:] == [self._eos] else tokens

    def _check(self, prompts: list[list[int]], labels: list[list[int]]) -> None:
        for place, (prompt, label) in enumerate(zip(prompts, labels, strict=True)):
            if not prompt:
                msg = f"prompt {place} has no token. Begin it with a token, or leave it out."
                raise UnfitValue(msg)
            if not self.truncation and len(prompt) + len(label) > self.max_length:
                what = "prompt" if len(prompt) > self.max_length else "prompt and label"
                count = len(prompt) + (0 if what == "prompt" else len(label))
                msg = (
                    f"{what} {place} has {count} tokens, and max_length is {self.max_length}. "
                    "Leave it out, raise max_length, or pass truncation=True."
                )
                raise UnfitValue(msg)
