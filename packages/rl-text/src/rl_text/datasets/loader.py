"""Data sets that are tokenised once."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_tensordict import UnfitValue
from rl_tensordict.arguments import check_calls, check_type, check_whole, drop_useless
from rl_text.datasets.columns import FORMAT, NumpyColumns, read_columns, write_columns
from rl_text.datasets.examples import ListColumns, content_hash, plain_text, read_examples
from rl_text.datasets.tokenized import LENGTHS, TokenizedDataset
from rl_text.tokenizers.fingerprint import fingerprint
from rl_text.tokenizers.protocol import TextTokenizer
from rl_text.tokens.names import ATTENTION_MASK, INPUT_IDS

CHUNK = 1_000  # examples of one call of the tokenizer
USELESS = {"num_workers": "tokenizers take all cores by themselves"}
TEXTS = ("text", "prompt", "label", "completion", "chosen", "rejected", "messages")


class TokenizedDatasetLoader:
    """Tokenises a data set once, and opens the mapped copy from then on.

    The copy is found by a hash of the texts, the tokenizer, and all settings: if any of them
    changes, the data set is tokenised again, and an old copy is never read. Examples of which
    ``"valid_sample"`` is False, which are too long, are left out and counted. Loading runs no
    code: there is no pickle.

    Args:
        split: which part of the data set; of one whose name begins with ``"valid"``, the first
            `valid_size` examples.
        max_length: the most tokens of an example.
        dataset_name: a data set: see `read_examples`.
        tokenizer_fn: makes what tokenises examples: called with a tokenizer and `max_length`, as
            `TensorDictTokenizer` is.
        pre_tokenization_hook: changes the examples first: is given columns, and returns columns.
        root_dir: where copies are kept; ``$RL_TEXT`` or ``~/.cache/rl-text`` by default.
        from_disk: the name is that of a folder that ``save_to_disk`` wrote.
        valid_size: examples of a validation split.
        num_workers: has no effect.
        tokenizer_class: loads a tokenizer by its name, as ``AutoTokenizer`` does.
        tokenizer_model_name: the name of one of transformers.
        tokenizer: the tokenizer itself, instead of a name.

    Raises:
        ValueError: a number is out of range.

    Example:
        >>> import tempfile
        >>> from rl_text import ByteTokenizer, PromptTensorDictTokenizer
        >>> loader = TokenizedDatasetLoader(
        ...     "train", 4, {"prompt": ["a", "bcde"], "label": ["x", "y"]},
        ...     PromptTensorDictTokenizer, root_dir=tempfile.mkdtemp(), tokenizer=ByteTokenizer(),
        ... )
        >>> loader.load()
        TokenizedDataset({'samples': 1, 'tokens': 3, 'left_out': 1})
    """

    def __init__(  # noqa: PLR0913 - the arguments are the seed's
        self,
        split: str,
        max_length: int,
        dataset_name: Any,
        tokenizer_fn: Callable[..., Any],
        pre_tokenization_hook: Callable[[ListColumns], ListColumns] | None = None,
        root_dir: str | Path | None = None,
        from_disk: bool = False,
        valid_size: int = 2000,
        num_workers: int | None = None,
        tokenizer_class: Any = None,
        tokenizer_model_name: str = "gpt2",
        *,
        tokenizer: TextTokenizer | None = None,
    ) -> None:
        check_type(
            "split", split, str, "the name of a part, as 'train'; examples are dataset_name="
        )
        check_whole("max_length", max_length, 1)
        check_whole("valid_size", valid_size, 1)
        check_type("tokenizer_fn", tokenizer_fn, Callable, "a class as TensorDictTokenizer")
        check_calls(pre_tokenization_hook=pre_tokenization_hook)
        drop_useless({} if num_workers is None else {"num_workers": num_workers}, USELESS)
        self.split = split
        self.max_length = max_length
        self.dataset_name = dataset_name
        self.tokenizer_fn = tokenizer_fn
        self.pre_tokenization_hook = pre_tokenization_hook
        home = os.environ.get("RL_TEXT") or Path.home() / ".cache" / "rl-text"
        self.root_dir = Path(home if root_dir is None else root_dir)
        self.from_disk = from_disk
        self.valid_size = valid_size
        self.tokenizer_class = tokenizer_class
        self.tokenizer_model_name = tokenizer_model_name
        self.tokenizer = tokenizer

    def load(self) -> TokenizedDataset:
        """Open the mapped copy, after it was made if there is none.

        Returns:
            The data set.

        Raises:
            ValueError: no example is left; a tokenizer lacks a token; a file is damaged.
            KeyError: examples lack a column that is tokenised.
        """
        tokenizer = self._tokenizer()
        examples = read_examples(self.dataset_name, self.split, from_disk=self.from_disk)
        if not any(map(len, examples.values())):
            msg = "no data: there is no example."
            raise UnfitValue(msg)
        if self.split.startswith("valid"):
            examples = {name: values[: self.valid_size] for name, values in examples.items()}
        texts = {
            name: [plain_text(value, tokenizer) for value in values] if name in TEXTS else values
            for name, values in examples.items()
        }
        if self.pre_tokenization_hook is not None:
            texts = self.pre_tokenization_hook(texts)
            check_type("pre_tokenization_hook", texts, Mapping, "it to return columns")
        process = self._process(tokenizer)
        folder = self.root_dir / self._key(texts, tokenizer, process)
        found = read_columns(folder)
        if found is None:
            arrays, left_out = tokenized(texts, process)
            samples = len(arrays[LENGTHS])
            stats = {"samples": samples, "tokens": len(arrays[INPUT_IDS]), "left_out": left_out}
            found = arrays, {"stats": stats, "pad_token_id": tokenizer.pad_token_id}
            write_columns(folder, *found)
            found = read_columns(folder) or found  # another process may still be writing them
        arrays, about = found
        # of the tokenizer now: nothing that is stored depends on it
        return TokenizedDataset(arrays, {**about, "pad_token_id": tokenizer.pad_token_id})

    def _tokenizer(self) -> TextTokenizer:
        if self.tokenizer is not None:
            return self.tokenizer
        loads = self.tokenizer_class
        if loads is None:
            from transformers import AutoTokenizer

            loads = AutoTokenizer
        found: TextTokenizer = loads.from_pretrained(self.tokenizer_model_name)
        if found.pad_token_id is None:
            found.pad_token = found.eos_token  # type: ignore[attr-defined]
        return found

    def _process(self, tokenizer: TextTokenizer) -> Callable[[ListColumns], Any]:
        """The process of examples, whose lists are not padded where it can do so."""
        options = {"padding": False, "return_tensordict": False}
        known = inspect.signature(self.tokenizer_fn).parameters
        taken = {name: value for name, value in options.items() if name in known}
        made: Callable[[ListColumns], Any] = self.tokenizer_fn(
            tokenizer, max_length=self.max_length, **taken
        )
        return made

    def _key(self, texts: ListColumns, tokenizer: TextTokenizer, process: Any) -> str:
        """The name of the folder: it changes with everything that tokens depend on."""
        named = getattr(self.tokenizer_fn, "__qualname__", repr(self.tokenizer_fn))
        parts = [content_hash(texts), fingerprint(tokenizer), self.max_length, named]
        parts += [source_of(self.tokenizer_fn), *map(settings_of, (self.tokenizer_fn, process))]
        parts += [FORMAT]
        return blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def tokenized(
    texts: ListColumns, process: Callable[[ListColumns], Any]
) -> tuple[NumpyColumns, int]:
    """Tokenise examples, and leave out invalid ones."""
    count = len(next(iter(texts.values()), []))
    rows: list[list[int]] = []
    others: dict[str, list[Any]] = {}
    left_out = 0
    for begin in range(0, count, CHUNK):
        made = process({name: values[begin : begin + CHUNK] for name, values in texts.items()})
        chunk = {name: made[name] for name in made.keys()}  # noqa: SIM118 - of a tensordict too
        lists, mask = (_lists(chunk.pop(name)) for name in (INPUT_IDS, ATTENTION_MASK))
        valid = _lists(chunk.pop("valid_sample", [True] * len(lists)))
        left_out += len(lists) - sum(valid)
        for row, flags, keep in zip(lists, mask, valid, strict=True):
            if keep:
                real = (
                    row if all(flags) else [t for t, flag in zip(row, flags, strict=True) if flag]
                )
                rows.append(real)
        for name, values in chunk.items():
            kept = [one for one, keep in zip(_lists(values), valid, strict=True) if keep]
            others.setdefault(name, []).extend(kept)
    if not rows or not all(rows):
        what = f"{left_out} of {count} examples are too long, and none is left: raise max_length."
        if rows:
            what = f"example {rows.index([])} has no token. Leave empty ones out."
        raise UnfitValue(f"no data: {what}")
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    flat = np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum()))
    small = np.int32 if flat.max(initial=0) < 2**31 else np.int64
    columns = {name: np.asarray(values) for name, values in others.items()}
    return {INPUT_IDS: flat.astype(small), LENGTHS: lengths, **columns}, left_out


def source_of(function: Any) -> str:
    """The source of a function or class, where it can be read."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return ""


def settings_of(made: Any) -> dict[str, Any]:
    """JSON values of an object's attributes, and of what a function reads and its defaults."""
    values = dict(getattr(made, "__dict__", {}))
    if inspect.isfunction(made):
        read, taken = inspect.getclosurevars(made), inspect.signature(made).parameters
        values |= {**read.globals, **read.nonlocals}
        values |= {name: one.default for name, one in taken.items()}
    return {name: value for name, value in values.items() if name[:2] != "__" and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    """Whether JSON can hold a value."""
    try:
        json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):
        return False
    return True


def _lists(values: Any) -> list[Any]:
    return values.tolist() if isinstance(values, torch.Tensor) else list(values)
