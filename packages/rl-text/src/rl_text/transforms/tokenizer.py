"""Texts as tokens, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_specs import TensorSpec, Unbounded
from rl_tensordict import CPU, NestedKey
from rl_tensordict.arguments import check_calls, check_whole, shown
from rl_text.tokenizers.protocol import TextTokenizer, require_pad
from rl_text.tokens.names import INPUT_IDS
from rl_text.transforms.texts import as_texts, texts_of
from rl_transforms import Transform

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


class Tokenizer(Transform):
    """Tokenises texts on their way out, and writes tokens as text on their way in.

    Args:
        in_keys: texts.
        out_keys: int64 tokens ``[*B, L]``, padded.
        in_keys_inv: texts inside, as actions that an environment takes.
        out_keys_inv: tokens outside, ``[*B, L]``.
        tokenizer: one of transformers, or `ByteTokenizer`, the default.
        max_length: L; longer texts are cut. None for the longest text of a call, which has no
            spec and is for buffers.

    Raises:
        ValueError: the tokenizer has no pad token; a length below 1.
        TypeError: the tokenizer cannot be called.

    Example:
        >>> from tensordict import NonTensorStack, TensorDict
        >>> batch = TensorDict({"text": NonTensorStack("ab", "c")}, [2])
        >>> Tokenizer(["text"], ["tokens"], max_length=3)(batch)["tokens"].tolist()
        [[97, 98, 256], [99, 256, 256]]
    """

    def __init__(
        self,
        in_keys: list[NestedKey] | None = None,
        out_keys: list[NestedKey] | None = None,
        in_keys_inv: list[NestedKey] | None = None,
        out_keys_inv: list[NestedKey] | None = None,
        *,
        tokenizer: TextTokenizer | None = None,
        max_length: int | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        if max_length is not None:
            check_whole("max_length", max_length, 1)
        if tokenizer is None:
            from rl_text.tokenizers.byte_tokenizer import ByteTokenizer

            tokenizer = ByteTokenizer()
        check_calls(tokenizer=tokenizer)
        self.pad_token_id = require_pad(tokenizer, "a rectangle of tokens")
        self.tokenizer = tokenizer
        self.max_length = max_length

    def apply_leaf(self, entry: Any) -> Tensor:
        """Tokenise texts ``[*B]``: int64 ``[*B, L]``."""
        texts, shape = texts_of(entry)
        if not texts:
            return torch.zeros(*shape, self.max_length or 0, dtype=torch.int64, device=CPU)
        found: Tensor = self.tokenizer(
            texts,
            padding=True if self.max_length is None else "max_length",
            truncation=self.max_length is not None,
            max_length=self.max_length,
            return_tensors="pt",
        )[INPUT_IDS]
        return found.view(*shape, -1)

    def invert_leaf(self, value: Tensor) -> Any:
        """Write tokens ``[*B, L]`` as texts ``[*B]``."""
        if not isinstance(value, Tensor) or not value.ndim or value.dtype not in INTEGERS:
            msg = f"tokens: expected whole numbers [*B, L], got {shown(value)}."
            raise TypeError(msg)
        rows = value.reshape(-1, value.shape[-1]).tolist()
        kept = [[token for token in row if token != self.pad_token_id] for row in rows]
        texts = [self.tokenizer.decode(row, skip_special_tokens=True) for row in kept]
        return as_texts(texts, value.shape[:-1])

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """The spec of tokens, given that of texts."""
        if self.max_length is None:
            msg = "max_length: an environment needs the number of tokens. Pass max_length=."
            raise ValueError(msg)
        return Unbounded((*spec.shape, self.max_length), dtype=torch.int64, device=spec.device)

    def inverse_leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """The spec of the tokens that are taken, given that of the texts inside."""
        return self.leaf_spec(spec)
