"""One kernel for all segments at once; CUDA, or a CPU under Triton's interpreter."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import linear

from rl_layout import Segments
from rl_recurrent.backends.settings import Settings
from rl_recurrent.cells.weights import RowWeights


def lstm_layer(
    x: Tensor,
    weights: RowWeights,
    states: tuple[Tensor, Tensor],
    segments: Segments,
    settings: Settings,
) -> tuple[Tensor, Tensor]:
    """Run one layer of an LSTM in one direction: h and c after every row, ``[M, H]`` each."""
    # imported on use: the kernels need triton
    from rl_recurrent.backends.triton.lstm import lstm_scan

    gates = linear(x, weights.w_ih, weights.bias)
    states_after: tuple[Tensor, Tensor] = lstm_scan(
        gates,
        weights.w_hh,
        *states,
        segments,
        save="gates" if settings.save == "gates" else "state",
        precision=settings.precision,
        projection=(x, weights.w_ih, weights.bias),
    )
    return states_after


def gru_layer(
    x: Tensor, weights: RowWeights, state: Tensor, segments: Segments, settings: Settings
) -> Tensor:
    """Run one layer of a GRU in one direction: h after every row, ``[M, H]``."""
    from rl_recurrent.backends.triton.gru import gru_scan

    gates = linear(x, weights.w_ih, weights.bias)
    hidden: Tensor = gru_scan(
        gates,
        weights.w_hh,
        weights.inner_bias,
        state,
        segments,
        save="gates" if settings.save == "gates" else "state",
        precision=settings.precision,
        projection=(x, weights.w_ih, weights.bias),
    )
    return hidden
