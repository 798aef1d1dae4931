"""What a tokenizer does, as a number that changes with it."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

SETTINGS = ("padding_side", "truncation_side", "chat_template", "special_tokens_map")


def fingerprint(tokenizer: Any) -> str:
    """Hash everything that the tokens of a text depend on.

    Args:
        tokenizer: one of transformers, or one with a method ``fingerprint() -> str``.

    Returns:
        32 hexadecimal digits, the same in each process.

    Raises:
        TypeError: the tokenizer cannot be identified.

    Example:
        >>> from rl_text import ByteTokenizer
        >>> len(fingerprint(ByteTokenizer()))
        32
    """
    own = getattr(tokenizer, "fingerprint", None)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if callable(own):
        said: Any = own()
    elif backend is not None:
        said = json.loads(backend.to_str())
        # each call leaves its options there
        said.update(truncation=None, padding=None)
    elif hasattr(tokenizer, "get_vocab"):
        said = [tokenizer.get_vocab(), repr(getattr(tokenizer, "init_kwargs", None))]
    else:
        msg = (
            f"tokenizer: a {type(tokenizer).__name__} cannot be identified, so "
            "a cache could not tell it from another one. Give it a method fingerprint() that "
            "returns a string."
        )
        raise TypeError(msg)
    settings = {name: repr(getattr(tokenizer, name, None)) for name in SETTINGS}
    whole = json.dumps([type(tokenizer).__qualname__, said, settings], sort_keys=True)
    return blake2b(whole.encode(), digest_size=16).hexdigest()
