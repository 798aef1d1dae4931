"""Fuzzed parts of rl-recurrent that have no public name: networks, cells and modules."""

from __future__ import annotations

import torch
from fuzz_pools import TENSORS, Pool, each, steps
from tensordict import TensorDict

from rl_layout import Segments
from rl_recurrent import GRU, LSTM, GRUCell, GRUModule, LSTMCell, LSTMModule, Settings, Work


def batch() -> TensorDict:
    """Steps with the states that the modules below start from."""
    rows = steps()
    rows["recurrent_state"] = torch.zeros(6, 1, 4)
    rows["recurrent_state_h"] = rows["recurrent_state_c"] = torch.zeros(6, 1, 4)
    return rows


CALLS = [
    ("GRU()", lambda: GRU(3, 4)),
    ("LSTM()", lambda: LSTM(3, 4)),
    ("GRUCell()", lambda: GRUCell(3, 4)),
    ("LSTMCell()", lambda: LSTMCell(3, 4)),
    ("GRUModule()", lambda: GRUModule(3, 4, in_key="observation", out_key="x")),
    ("LSTMModule()", lambda: LSTMModule(3, 4, in_key="observation", out_key="x")),
]

SEGMENTS: Pool = [
    *each(None),
    lambda: Segments.from_lengths(torch.tensor([2, 4])),
    lambda: Segments.from_lengths(torch.tensor([3])),
]
POOLS: dict[str, Pool] = {
    "tensordict": [batch, lambda: batch()[0], steps],
    "batch": [batch, steps],
    "tensors": TENSORS,
    "input": [lambda: torch.randn(6, 3), lambda: torch.randn(2, 5, 3), lambda: torch.randn(3)],
    "hx": [*each(None), lambda: torch.zeros(1, 2, 4), lambda: (torch.zeros(4), torch.zeros(4))],
    "segments": SEGMENTS,
    "work": [lambda: Work("gru", 4), lambda: Work("lstm", 8)],
    "settings": [Settings, lambda: Settings("pack")],
    "cell": each("gru", "lstm"),
    "in_key": each("observation", None),
    "out_key": each("x", None),
    "in_keys": [lambda: ["observation", "h", "is_init"], lambda: ["observation", "h", "c"]],
    "out_keys": [lambda: ["x", ("next", "h")], lambda: ["x", ("next", "h"), ("next", "c")]],
    "input_size": each(3, None),
    "hidden_size": each(4, None),
    "recurrent_backend": each("auto", "pad", "pack", "scan"),
    "lstm": [*each(None), lambda: torch.nn.LSTM(3, 4, batch_first=True)],
    "gru": [*each(None), lambda: torch.nn.GRU(3, 4, batch_first=True)],
}
