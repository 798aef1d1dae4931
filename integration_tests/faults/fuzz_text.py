"""Fuzzed parts of rl-text that have no public name: tokenizers and transforms as they are made."""

from __future__ import annotations

import torch
from fuzz_pools import Pool, each

from rl_text import (
    AdaptiveKLController,
    ByteTokenizer,
    ConstantKLController,
    Hash,
    PromptTensorDictTokenizer,
    TensorDictTokenizer,
    Tokenizer,
)

CALLS = [
    ("ByteTokenizer()", ByteTokenizer),
    ("Hash()", lambda: Hash(["observation"], ["hash"])),
    ("Tokenizer()", lambda: Tokenizer(["text"], ["tokens"], tokenizer=ByteTokenizer())),
    ("TensorDictTokenizer()", lambda: TensorDictTokenizer(ByteTokenizer(), 8)),
    ("PromptTensorDictTokenizer()", lambda: PromptTensorDictTokenizer(ByteTokenizer(), 8)),
    ("ConstantKLController()", lambda: ConstantKLController(kl_coef=0.1)),
]
POOLS: Pool = {
    "tokenizer": [ByteTokenizer],
    "max_length": each(4, 8),
    "kl_values": [lambda: [0.1, 0.2], lambda: torch.tensor([0.1])],
    "init_kl_coef": each(0.1),
    "controller": [lambda: AdaptiveKLController(init_kl_coef=0.1, target=6.0, horizon=100)],
}
TENSORCLASS = "a tensorclass, whose constructor is tensordict's and checks what that checks"
SKIP = {
    **dict.fromkeys(("PairwiseDataset", "PromptData", "RewardData"), TENSORCLASS),
    "KLController": "abstract: Python names the methods that are missing",
}
