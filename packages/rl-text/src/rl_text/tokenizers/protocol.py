"""What a tokenizer must do: that of transformers, or one of your own."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

from rl_tensordict import UnfitValue
from rl_tensordict.arguments import shown


class TextTokenizer(Protocol):
    """A tokenizer, called as those of transformers are.

    Attributes:
        pad_token_id: the token of cells without one; None if there is none.
        eos_token_id: the token that ends a text; None if there is none.

    Example:
        >>> from rl_text import ByteTokenizer
        >>> tokenizer: TextTokenizer = ByteTokenizer()
    """

    pad_token_id: int | None
    eos_token_id: int | None

    def __call__(self, text: Any, **options: Any) -> Any:
        """Tokenise a text or several: a mapping with ``input_ids`` and ``attention_mask``."""
        ...

    def decode(self, token_ids: Any, **options: Any) -> Any:
        """Write the text of some tokens."""
        ...


def takes(tokenizer: Any, option: str) -> bool:
    """Whether a tokenizer names an option that not all have."""
    try:
        return option in inspect.signature(tokenizer).parameters
    except (TypeError, ValueError):  # it cannot be called, or is compiled
        return False


def require_pad(tokenizer: TextTokenizer, purpose: str) -> int:
    """Read the pad token, or say which attribute to set."""
    _require_tokenizer(tokenizer)
    if tokenizer.pad_token_id is None:
        msg = (
            f"tokenizer: {purpose} needs a pad token, and {type(tokenizer).__name__} has none. Set "
            "tokenizer.pad_token, as tokenizer.pad_token = tokenizer.eos_token."
        )
        raise UnfitValue(msg)
    return int(tokenizer.pad_token_id)


def require_eos(tokenizer: TextTokenizer, purpose: str) -> int:
    """Read the end token, or say which attribute to set."""
    _require_tokenizer(tokenizer)
    if tokenizer.eos_token_id is None:
        msg = (
            f"tokenizer: {purpose} needs an end token, and {type(tokenizer).__name__} has none. "
            "Set tokenizer.eos_token to a token of its vocabulary."
        )
        raise UnfitValue(msg)
    return int(tokenizer.eos_token_id)


def _require_tokenizer(tokenizer: Any) -> None:
    if not (callable(tokenizer) and hasattr(tokenizer, "pad_token_id")):
        msg = (
            "tokenizer: expected one of transformers, or one with pad_token_id and eos_token_id "
            f"that is called with texts, got {shown(tokenizer)}. ByteTokenizer() is one."
        )
        raise TypeError(msg)
