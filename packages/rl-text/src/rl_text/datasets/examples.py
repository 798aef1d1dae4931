"""Examples of a data set, whatever they come as."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_tensordict import UnfitValue
from rl_tensordict.arguments import shown

ListColumns = dict[str, list[Any]]


def read_examples(source: Any, split: str = "train", *, from_disk: bool = False) -> ListColumns:
    """Read the columns of a data set.

    Args:
        source: a list of mappings, a mapping of columns, a ``Dataset`` or ``DatasetDict`` of
            datasets, or a name: of a folder that ``save_to_disk`` wrote, or on the hub.
        split: which part, if there are several.
        from_disk: a name is that of a folder.

    Returns:
        A list for each column.

    Raises:
        TypeError: the source is none of these.
        ValueError: columns or examples do not fit together.
        KeyError: there is no such part.
        ModuleNotFoundError: a name is given, and datasets is not installed.

    Example:
        >>> read_examples([{"prompt": "a", "label": "b"}, {"prompt": "c", "label": "d"}])
        {'prompt': ['a', 'c'], 'label': ['b', 'd']}
    """
    if isinstance(source, str | Path):
        source = _named(str(source), split, from_disk=from_disk)
    if isinstance(source, Mapping) and any(hasattr(v, "column_names") for v in source.values()):
        if split not in source:
            msg = f"split: there is no part {split!r}: there are {sorted(source)}."
            raise KeyError(msg)
        source = source[split]
    if hasattr(source, "column_names"):
        return {name: list(source[name]) for name in source.column_names}
    if isinstance(source, Mapping):
        return _aligned({str(name): _values(name, values) for name, values in source.items()})
    if isinstance(source, Sequence) and all(isinstance(one, Mapping) for one in source):
        names = list(source[0]) if source else []
        for place, one in enumerate(source):
            if list(one) != names:
                msg = f"example {place} has {list(one)}, and the first has {names}. Give all alike."
                raise UnfitValue(msg)
        return {name: [one[name] for one in source] for name in names}
    msg = (
        "dataset_name: expected a data set, a list of examples, columns or a name, got "
        f"{shown(source)}."
    )
    raise TypeError(msg)


def _values(name: Any, values: Any) -> list[Any]:
    """A column of several values; a text alone is none."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        msg = f"dataset_name: expected a list of values under {name!r}, got {shown(values)}."
        raise TypeError(msg)
    if isinstance(values, torch.Tensor | np.ndarray) and not values.ndim:
        msg = f"dataset_name: expected a list of values under {name!r}, got a single number."
        raise TypeError(msg)
    # those of tensors and arrays as Python's own, which JSON can hold
    return values.tolist() if isinstance(values, torch.Tensor | np.ndarray) else list(values)


def content_hash(columns: ListColumns) -> str:
    """Hash every value of some columns: 32 hexadecimal digits."""
    state = blake2b(digest_size=16)
    for name, values in sorted(columns.items()):
        state.update(json.dumps([name, len(values)]).encode())
        for value in values:
            text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
            kind = b"t" if isinstance(value, str) else b"j"
            written = text.encode(errors="surrogatepass")
            state.update(kind + len(written).to_bytes(8, "little") + written)
    return state.hexdigest()


def plain_text(value: Any, tokenizer: Any) -> str:
    """A text, of a list of messages too."""
    if isinstance(value, str):
        return value
    is_chat = isinstance(value, Sequence) and all(
        isinstance(one, Mapping) and {"role", "content"} <= set(one) for one in value
    )
    if not is_chat:
        msg = f"expected a text, or messages with role and content, got {shown(value)}."
        raise TypeError(msg)
    if getattr(tokenizer, "chat_template", None) is None:
        msg = (
            f"messages need a chat template, and {type(tokenizer).__name__} has none. Set "
            "tokenizer.chat_template, or pass texts."
        )
        raise TypeError(msg)
    return str(tokenizer.apply_chat_template(list(value), tokenize=False))


def prompt_columns(columns: ListColumns) -> ListColumns:
    """Name the columns of prompts ``prompt`` and ``label``, whatever they are called."""
    if "prompt" not in columns:
        msg = f"there is no column 'prompt': there are {sorted(columns)}."
        raise KeyError(msg)
    label = columns.get("label", columns.get("completion"))
    found = {"prompt": columns["prompt"]}
    return found if label is None else _aligned({**found, "label": label})


def pair_texts(columns: ListColumns, min_length: int = 0) -> ListColumns:
    """Write both texts of each pair after its prompt: all chosen ones, then all rejected ones."""
    for name in ("chosen", "rejected"):
        if name not in columns:
            msg = f"there is no column {name!r}: there are {sorted(columns)}."
            raise KeyError(msg)
    chosen, rejected = columns["chosen"], columns["rejected"]
    if len(chosen) != len(rejected):
        msg = f"expected a rejected text for each chosen one: got {len(chosen)} chosen and "
        raise UnfitValue(msg + f"{len(rejected)} rejected.")
    prompts = columns.get("prompt", [""] * len(chosen))
    kept = [
        (prompt + good, prompt + bad)
        for prompt, good, bad in zip(prompts, chosen, rejected, strict=True)
        if not min_length
        or (good != bad and min(len(good.split()), len(bad.split())) >= min_length)
    ]
    return {"text": [good for good, _ in kept] + [bad for _, bad in kept]}


def _named(name: str, split: str, *, from_disk: bool) -> Any:
    try:
        import datasets
    except ModuleNotFoundError as error:
        msg = f"{name!r}: data sets are read by their names with datasets: pip install "
        raise ModuleNotFoundError(msg + "rl-text[datasets]") from error
    if from_disk:
        return datasets.load_from_disk(name)
    return datasets.load_dataset(name, split=split)


def _aligned(columns: ListColumns) -> ListColumns:
    counts = {name: len(values) for name, values in columns.items()}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{count} of {name!r}" for name, count in counts.items())
        msg = f"columns differ in length: {said}. Give one value of each to every example."
        raise UnfitValue(msg)
    return columns
