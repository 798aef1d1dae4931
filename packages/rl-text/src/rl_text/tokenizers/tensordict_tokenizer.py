"""Texts as tensordicts of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from rl_tensordict import UnfitValue, as_tensor
from rl_tensordict.arguments import as_device, check_choice, check_type, check_whole, shown
from rl_text.tokenizers.protocol import TextTokenizer, require_pad, takes
from rl_text.tokens.flat import flat_tokens
from rl_text.tokens.names import ATTENTION_MASK, INPUT_IDS


class TensorDictTokenizer:
    """Tokenises the texts of examples.

    Args:
        tokenizer: one of transformers, or `ByteTokenizer`.
        max_length: the most tokens of a text.
        key: the column of texts.
        padding: ``"max_length"``, True or ``"longest"`` for the longest of a call, False for none.
        truncation: cut longer texts; otherwise they are refused.
        return_tensordict: False for the lists of the tokenizer.
        device: of the tensors.

    Raises:
        ValueError: padding is asked for, and the tokenizer has no pad token; there is no such
            padding; or a length below 1.

    Example:
        >>> from rl_text import ByteTokenizer
        >>> process = TensorDictTokenizer(ByteTokenizer(), max_length=4)
        >>> process({"text": ["ab", "c"]})["input_ids"]
        tensor([[ 97,  98, 256, 256],
                [ 99, 256, 256, 256]])
        >>> process.flat({"text": ["ab", "c"]})["input_ids"].tolist()
        [97, 98, 99]
    """

    def __init__(  # noqa: PLR0913 - the arguments are the seed's
        self,
        tokenizer: TextTokenizer,
        max_length: int,
        key: str = "text",
        padding: str | bool = "max_length",
        truncation: bool = True,
        return_tensordict: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        check_whole("max_length", max_length, 1)
        check_choice("padding", padding, ("max_length", "longest", True, False))
        if padding:
            require_pad(tokenizer, f"padding={padding!r}")
        self.tokenizer = tokenizer
        # a list of ones for each text takes a tenth of a call
        name = "return_attention_mask"
        self._without_mask = {name: False} if takes(tokenizer, name) else {}
        self.max_length = max_length
        self.key = key
        self.padding = True if padding == "longest" else padding
        self.truncation = truncation
        self.return_tensordict = return_tensordict
        self.device = None if device is None else as_device("device", device)

    def __call__(self, sample: Mapping[str, Any]) -> TensorDictBase | dict[str, Any]:
        """Tokenise one example, or a column of them.

        Args:
            sample: a text, or a list of texts, under the key.

        Returns:
            A tensordict ``[]`` of one text or ``[S]`` of a list, of int64 ``"input_ids"`` and
            ``"attention_mask"``, the tokens last.

        Raises:
            KeyError: there is no such column.
            ValueError: a text is too long and `truncation` is False; texts that are not padded
                differ in length.
        """
        texts = self._texts(sample, self.key)
        is_one = isinstance(texts, str)
        found = self._tokenised([texts] if is_one else texts)
        if not self.return_tensordict:
            return {name: rows[0] for name, rows in found.items()} if is_one else found
        batch = self._rectangle(found)
        return batch[0] if is_one else batch

    def flat(self, sample: Mapping[str, Any]) -> TensorDict:
        """Tokenise examples end to end, without padding.

        Args:
            sample: a text, or a list of texts, under the key.

        Returns:
            Tokens ``[N]``, see `flat_tokens`.
        """
        texts = self._texts(sample, self.key)
        found = self._tokenised([texts] if isinstance(texts, str) else texts, flat=True)
        return flat_tokens(found[INPUT_IDS])

    def _texts(self, sample: Mapping[str, Any], key: str) -> Any:
        check_type("sample", sample, Mapping | TensorDictBase, "columns of texts by their names")
        if key not in sample:
            msg = f"there is no column {key!r}: there are {sorted(sample)}. Pass key=."
            raise KeyError(msg)
        texts = sample[key]
        if isinstance(texts, str):
            return texts
        if not isinstance(texts, Sequence) or not all(isinstance(one, str) for one in texts):
            msg = f"{key!r}: expected a text or a list of texts, got {shown(texts)}."
            raise TypeError(msg)
        return list(texts)

    def _tokenised(self, texts: list[str], *, flat: bool = False) -> dict[str, Any]:
        """The lists, or tensors, of the tokenizer; of tokens that are to lie flat no mask."""
        padding = False if flat else self.padding
        names = (INPUT_IDS,) if flat else (INPUT_IDS, ATTENTION_MASK)
        options = self._without_mask if flat else {}
        tensors = "pt" if padding and self.return_tensordict else None
        found = self.tokenizer(
            texts,
            padding=padding,
            truncation=self.truncation,
            max_length=self.max_length if self.truncation or padding == "max_length" else None,
            return_tensors=tensors,
            **options,
        )
        if not self.truncation:
            self._refuse_long(found[INPUT_IDS])
        return {name: found[name] for name in names}

    def _refuse_long(self, rows: Any) -> None:
        for place, row in enumerate(rows):
            if len(row) > self.max_length:
                msg = (
                    f"text {place} has {len(row)} tokens, and max_length is {self.max_length}. "
                    "Leave it out, raise max_length, or pass truncation=True."
                )
                raise UnfitValue(msg)

    def _rectangle(self, found: dict[str, Any]) -> TensorDict:
        made = {}
        for name, rows in found.items():
            try:
                made[name] = as_tensor(rows)
            except ValueError as error:
                msg = "padding=False: texts differ in length, which makes no tensor. Call flat."
                raise UnfitValue(msg) from error
        return as_batch(made, self.device)


def as_batch(made: dict[str, Any], device: torch.device | None) -> TensorDict:
    """A tensordict of tokens, whose last dimension is not one of the batch."""
    tokens = made[INPUT_IDS]
    return TensorDict(made, tokens.shape[:-1], device=device)


def stacked(values: Sequence[int] | Sequence[bool]) -> torch.Tensor:
    """One number for each example."""
    return torch.from_numpy(np.asarray(values))
