"""The layers that others are compared with, on cases that can be computed by hand."""

import torch
from torch.testing import assert_close

from rl_layout import Segments
from rl_recurrent.cells.cell import RowWeights
from rl_recurrent.reference import gru_layer, lstm_layer

SEGMENTS = Segments.from_lengths(torch.tensor([2]))


def test_an_lstm_of_no_weights_halves_its_cell():
    weights = RowWeights(torch.zeros(8, 3), torch.zeros(8, 2), torch.zeros(8))
    states = torch.zeros(1, 2), torch.ones(1, 2)
    out, cell = lstm_layer(torch.zeros(2, 3), weights, states, SEGMENTS)
    assert cell[:, 0].tolist() == [0.5, 0.25]
    assert_close(out[:, 1], 0.5 * torch.tensor([0.5, 0.25]).tanh())


def test_a_gru_of_no_weights_halves_its_state():
    weights = RowWeights(*map(torch.zeros, ((6, 3), (6, 2), 6, 2)))
    out = gru_layer(torch.zeros(2, 3), weights, torch.ones(1, 2), SEGMENTS)
    assert out[:, 0].tolist() == [0.5, 0.25]
