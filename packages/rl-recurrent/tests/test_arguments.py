from __future__ import annotations

import pytest
import torch

from rl_recurrent import GRU, LSTM, GRUCell, GRUModule, LSTMCell, LSTMModule, explain_backend


def module():
    return GRUModule(3, 4, in_key="observation", out_key="x")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: LSTM(0, 4), ValueError, "input_size: expected 1 to .* got 0"),
        (lambda: GRU(3, "4"), TypeError, r"hidden_size: expected a whole number, got '4' \(str\)"),
        (lambda: GRU(3, 4, num_layers=True), TypeError, "num_layers: expected a whole number"),
        (lambda: GRU(3, 4, bias="yes"), TypeError, "bias: expected True or False, got 'yes'"),
        (lambda: LSTM(3, 4, dropout=1.5), ValueError, "dropout: expected a share .* got 1.5"),
        (lambda: LSTM(3, 4, proj_size=4), ValueError, "proj_size: .* less than hidden_size=4"),
        (lambda: GRUCell(3, 4, dtype=torch.int64), TypeError, "dtype: expected a floating-point"),
        (lambda: LSTMCell(3, 4, device="moon"), ValueError, "device: .* got 'moon'"),
        (lambda: LSTMCell(3, 4)(torch.zeros(3), [1, 2, 3]), TypeError, "hx: expected h and c"),
        (lambda: GRUCell(3, 4)("x"), TypeError, "input: expected a tensor, got 'x'"),
        (lambda: LSTMModule(3, -4, in_key="a", out_key="b"), ValueError, "hidden_size: expected 1"),
        (
            lambda: LSTMModule(3, 4, in_key="a", out_key="b", burn_in="2"),
            ValueError,
            "burn_in must be 0 or more rows: got '2'",
        ),
        (
            lambda: LSTMModule(3, 4, in_key="a", out_key="b", recurrent_backend=2),
            ValueError,
            "backend must be one of",
        ),
        (lambda: module()(torch.zeros(3)), TypeError, r"expected a tensordict, got a tensor \[3\]"),
        (lambda: module().explain_backend(3), TypeError, "expected a tensordict, got 3"),
        (lambda: module().step(torch.zeros(3)), ValueError, r"a tensor for each of .* got 1"),
        (lambda: explain_backend("gru", None), TypeError, "work: expected Work, got 'gru'"),
    ],
)
def test_argument_errors_name_the_argument_and_its_value(call, error, message):
    with pytest.raises(error, match=message):
        call()
