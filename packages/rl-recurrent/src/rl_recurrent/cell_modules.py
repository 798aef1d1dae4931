"""One step of one layer in plain operations: drop-ins for the cells of torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rl_recurrent.arguments import check_network_arguments, check_tensor
from rl_recurrent.cells.cell import LayerWeights
from rl_recurrent.cells.gru import gru_step
from rl_recurrent.cells.lstm import lstm_step
from rl_tensordict.arguments import shown


class _CheckedCell(nn.RNNCellBase):
    """A cell of torch that says what is wrong with its arguments."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = {"input_size": input_size, "hidden_size": hidden_size}
        check_network_arguments(sizes, {"bias": bias, "device": device, "dtype": dtype})
        super().__init__(input_size, hidden_size, bias, device, dtype)


class LSTMCell(_CheckedCell, nn.LSTMCell):
    """`torch.nn.LSTMCell` in plain operations, for vmap and for compilers.

    Args are those of `torch.nn.LSTMCell`, and so are the parameters.

    Example:
        >>> import torch
        >>> cell, x = LSTMCell(3, 5), torch.randn(2, 3)
        >>> torch.allclose(cell(x)[0], nn.LSTMCell.forward(cell, x)[0])
        True
    """

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Step once.

        Args:
            input: ``[I]`` or ``[B, I]``.
            hx: h and c, ``[H]`` or ``[B, H]`` each; zeros if None.

        Returns:
            The next h and c.

        Raises:
            ValueError: a shape does not fit.
        """
        pair: Any = (None, None) if hx is None else hx
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            msg = f"hx: expected h and c, got {shown(hx)}."
            raise TypeError(msg)
        h, c = pair
        states = _state(self, input, h), _state(self, input, c)
        h, c = lstm_step(input, states, _weights(self))
        return h, c


class GRUCell(_CheckedCell, nn.GRUCell):
    """`torch.nn.GRUCell` in plain operations, for vmap and for compilers.

    Args are those of `torch.nn.GRUCell`, and so are the parameters.

    Example:
        >>> import torch
        >>> GRUCell(3, 5)(torch.randn(2, 3)).shape
        torch.Size([2, 5])
    """

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Step once.

        Args:
            input: ``[I]`` or ``[B, I]``.
            hx: h, ``[H]`` or ``[B, H]``; zeros if None.

        Returns:
            The next h.

        Raises:
            ValueError: a shape does not fit.
        """
        (h,) = gru_step(input, (_state(self, input, hx),), _weights(self))
        return h


def _weights(cell: nn.RNNCellBase) -> LayerWeights:
    b_ih, b_hh = (cell.bias_ih, cell.bias_hh) if cell.bias else (None, None)
    return LayerWeights(cell.weight_ih, cell.weight_hh, b_ih, b_hh)


def _state(cell: nn.RNNCellBase, x: Tensor, state: Tensor | None) -> Tensor:
    check_tensor("input", x)
    if x.ndim not in (1, 2) or x.shape[-1] != cell.input_size:
        width = cell.input_size
        msg = f"expected inputs [{width}] or [B, {width}]: got {list(x.shape)}."
        raise ValueError(msg)
    expected = [*x.shape[:-1], cell.hidden_size]
    if state is None:
        return x.new_zeros(expected)
    check_tensor("hx", state)
    if list(state.shape) != expected:
        msg = f"expected a state of shape {expected}: got {list(state.shape)}."
        raise ValueError(msg)
    return state
