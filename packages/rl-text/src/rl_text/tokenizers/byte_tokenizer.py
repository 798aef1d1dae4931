"""A tokenizer of bytes, which needs no vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from rl_tensordict import CPU, UnfitValue
from rl_tensordict.arguments import as_integer, check_choice, check_flags, check_whole, shown

BYTES = 256


class ByteTokenizer:
    """Takes each byte of UTF-8 for a token; 256 pads and 257 ends.

    It is called as tokenizers of transformers are.

    Attributes:
        pad_token_id: 256.
        eos_token_id: 257.
        vocab_size: 258.

    Example:
        >>> tokenizer = ByteTokenizer()
        >>> tokenizer(["ab", "c"])["input_ids"]
        [[97, 98], [99]]
        >>> tokenizer.decode([97, 98, 257, 256])
        'ab'
    """

    pad_token_id: int | None = BYTES
    eos_token_id: int | None = BYTES + 1
    vocab_size = BYTES + 2
    padding_side = "right"

    def __call__(
        self,
        text: str | Sequence[str],
        *,
        padding: bool | str = False,
        truncation: bool = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        """Tokenise a text, or several.

        Args:
            text: a string, or some.
            padding: ``"max_length"``, or True for the longest.
            truncation: cut texts to `max_length`.
            max_length: the most tokens of a text.
            return_tensors: ``"pt"`` for tensors.

        Returns:
            ``input_ids`` and ``attention_mask``, lists or tensors.

        Raises:
            TypeError: there is something else than strings.
            ValueError: tensors are asked for, and lengths differ.
        """
        if not _is_list(text):
            msg = f"text: expected a string, or a list of strings, got {shown(text)}."
            raise TypeError(msg)
        check_flags(truncation=truncation)
        if max_length is not None:
            check_whole("max_length", max_length, 0)
        if not isinstance(padding, bool):
            check_choice("padding", padding, ["longest", "max_length", "do_not_pad"])
        texts: list[Any] = [text] if isinstance(text, str) else [*text]
        for one in texts:
            if not isinstance(one, str):
                msg = f"text: expected strings, got {shown(one)}."
                raise TypeError(msg)
        limit = max_length if truncation else None
        rows = [[*one.encode()][:limit] for one in texts]
        width = max(map(len, rows), default=0)
        if padding == "max_length" and max_length is not None:
            width = max_length
        pads = [[BYTES] * (width - len(row)) if padding else [] for row in rows]
        found: dict[str, Any] = {
            "input_ids": [row + pad for row, pad in zip(rows, pads, strict=True)],
            "attention_mask": [
                [1] * len(r) + [0] * len(p) for r, p in zip(rows, pads, strict=True)
            ],
        }
        if return_tensors == "pt":
            if len({len(row) for row in found["input_ids"]}) > 1:
                msg = "return_tensors: texts differ in length. Pass padding=True."
                raise UnfitValue(msg)
            return {name: torch.tensor(rows, device=CPU) for name, rows in found.items()}
        if isinstance(text, str):
            return {name: value[0] for name, value in found.items()}
        return found

    def decode(self, token_ids: Any, **_: Any) -> str:
        """Write the text of some tokens, without pads and ends.

        Args:
            token_ids: numbers below 258.

        Returns:
            The text; bytes that are no UTF-8 are replaced.

        Raises:
            TypeError: they are no list of whole numbers.
            ValueError: a number below 0.
        """
        tokens = _whole_numbers("token_ids", token_ids)
        if tokens and min(tokens) < 0:
            msg = f"token_ids: expected numbers of tokens from 0 on, got {min(tokens)}."
            raise ValueError(msg)
        return bytes(t for t in tokens if t < BYTES).decode(errors="replace")

    def batch_decode(self, sequences: Any, **_: Any) -> list[str]:
        """Write the texts of several lists of tokens."""
        if isinstance(sequences, str | bytes) or not _is_list(sequences):
            msg = f"sequences: expected lists of numbers of tokens, got {shown(sequences)}."
            raise TypeError(msg)
        return [self.decode(one) for one in sequences]

    def fingerprint(self) -> str:
        """Identify the tokenizer, for caches."""
        return f"{type(self).__qualname__} {self.pad_token_id} {self.eos_token_id}"


def _is_list(values: Any) -> bool:
    """Whether a value can be iterated over; tensors without dimensions cannot."""
    return isinstance(values, Iterable) and getattr(values, "ndim", 1) > 0


def _whole_numbers(name: str, values: Any) -> list[int]:
    """A list of whole numbers, or a tensor of one dimension."""
    if isinstance(values, torch.Tensor | np.ndarray):
        values = values.tolist() if values.ndim == 1 else None
    numbers = [as_integer(one) for one in values] if _is_list(values) else [None]
    if isinstance(values, str) or None in numbers:
        msg = f"{name}: expected a list of numbers of tokens, got {shown(values)}."
        raise TypeError(msg)
    return [one for one in numbers if one is not None]
