"""Tokenising many short texts, and the memory of a batch of conversations.

    nox -s "bench(rl-text)"

The peer of tokenising is the batch call of the tokenizer itself, a byte-level one of transformers
that is trained here. The peer of memory is the padded rectangle, with its attention mask.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import warnings
from itertools import count
from pathlib import Path
from typing import Any

from bench import medians_us, session, table
from tensordict import TensorDictBase

from rl_text import TensorDictTokenizer, TokenizedDatasetLoader, flat_tokens, padded

TEXTS, MOST = 10_000, 64  # and tokens of a text
WORDS = "the a cat dog bird sat ran saw on under mat tree and then was not it they where".split()  # noqa: SIM905


def texts(seed: int = 0) -> list[str]:
    """Short texts: 4 to 24 words each."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, 24))) for _ in range(TEXTS)]


def trained(found: list[str]) -> Any:
    """A tokenizer of transformers, with a pad token."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<pad>", "<eos>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(found[:500], trainer)
    named = {"pad_token": "<pad>", "eos_token": "<eos>"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **named)


def bytes_of(batch: TensorDictBase) -> int:
    """The bytes of all leaves."""
    return sum(leaf.nbytes for leaf in batch.values(True, True))


def show_tokenising(found: list[str], tokenizer: Any, folder: Path) -> None:
    """Ways to tokenise, and the first and the later loads of a data set."""
    process = TensorDictTokenizer(tokenizer, MOST)
    options = {"truncation": True, "max_length": MOST}
    rectangle = {**options, "padding": "max_length", "return_tensors": "pt"}
    numbers = count()

    def load(name: str) -> Any:
        return TokenizedDatasetLoader(
            "train",
            max_length=MOST,
            dataset_name=[{"text": text} for text in found],
            tokenizer_fn=TensorDictTokenizer,
            root_dir=folder / name,
            tokenizer=tokenizer,
        ).load()

    load("again")
    own, flat, own_pad, pad, first, again = medians_us(
        15,
        lambda: tokenizer(found, **options),
        lambda: process.flat({"text": found}),
        lambda: tokenizer(found, **rectangle),
        lambda: process({"text": found}),
        lambda: load(str(next(numbers))),
        lambda: load("again"),
        warm_up=2,
    )
    work = f"{TEXTS:,} texts to tokens end to end"
    table(work, {"the tokenizer's own call": own, "flat": flat}, "flat")
    work = f"{TEXTS:,} texts to a rectangle"
    table(work, {"the tokenizer's own call": own_pad, "padded": pad}, "padded")
    found_again = {"the tokenizer's own call": own, "the first load": first, "a later load": again}
    table(f"{TEXTS:,} texts to a data set on disk", found_again, "the first load")


def show_memory(found: list[str], tokenizer: Any) -> None:
    """Bytes of a batch of 64 conversations, of its real tokens, and of a padded rectangle."""
    rows = tokenizer(found[:64])["input_ids"]
    prompts = [row[: len(row) // 2] for row in rows]
    completions = [row[len(row) // 2 :] for row in rows]
    batch = flat_tokens(prompts, completions, groups=range(64))
    one = bytes_of(flat_tokens([[1]], [[2]], groups=[0])) / 2
    tokens = sum(map(len, rows))
    print(f"\na batch of 64 conversations, {tokens} tokens of {one:.0f} bytes each")
    print(f"  of its real tokens {bytes_of(batch) / (one * tokens):.3f}")
    print(f"  of the rectangle   {bytes_of(batch) / bytes_of(padded(batch)):.3f}")


def main() -> None:
    """Print the tables."""
    warnings.simplefilter("ignore")
    found = texts()
    tokenizer = trained(found)
    with tempfile.TemporaryDirectory() as folder:
        show_tokenising(found, tokenizer, Path(folder))
    show_memory(found, tokenizer)


if __name__ == "__main__":
    with session(argparse.ArgumentParser(description=__doc__.splitlines()[0])):
        main()
