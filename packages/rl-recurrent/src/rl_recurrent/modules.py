"""LSTM and GRU that read and write tensordicts."""

from __future__ import annotations

from typing import Any

from torch import nn

from rl_recurrent.nets import GRU, LSTM
from rl_recurrent.recurrent_module import RecurrentModule


class LSTMModule(RecurrentModule):
    """An LSTM that reads and writes tensordicts: one step, or whole sequences.

    One step (sequential mode) starts from the states in its row. A batch ``[N]`` or ``[*B, T]``
    (recurrent mode) is cut where its markers cut, and every segment starts from the states in its
    first row, ``is_init`` or not: both modes compute the same. See
    `rl_layout.set_recurrent_mode`.

    In recurrent mode the next states are written at segment ends, and are zero elsewhere.

    Args:
        input_size: features I of an input.
        hidden_size: width H of the cells.
        num_layers: layers.
        bias: whether gates have biases.
        batch_first: True; tensordicts have time last among the dimensions of the batch.
        dropout: share of the features dropped between layers, while training.
        proj_size: width P of h, if not H.
        bidirectional: whether every layer also runs backwards in time; in recurrent mode only.
        recurrent_backend: ``"auto"``, ``"pad"``, ``"pack"``, ``"compiled"``, ``"scan"`` or
            ``"triton"``.
        in_key: the input; states are then ``"recurrent_state_h"`` and ``"recurrent_state_c"``.
        in_keys: input, h, c, and ``"is_init"``, which is added if left out.
        out_key: the output; states are then under ``"next"`` with the names of the read ones.
        out_keys: output, next h, next c.
        device: of the parameters.
        dtype: of the parameters.
        lstm: a `torch.nn.LSTM` to use, instead of sizes; `torch.compile` does not take it.
        default_recurrent_mode: the mode where none is set; False if None.
        every_state: write the states after every row in recurrent mode, not at segment ends alone.
        burn_in: rows at the start of every segment that only warm its state up, without gradient,
            unless ``traj_step`` says that the segment begins at a reset.
        learned_initial_state: whether a state that is zero throughout, as a primer leaves it at a
            reset, represents a parameter. It starts at zero.
        recurrent_matmul_precision: of ``triton``: ``"auto"``, ``"ieee"``, ``"tf32"``, ``"tf32x3"``,
            ``"bf16"``.
        recurrent_save: what is kept for backward: ``"state"`` for the least memory, ``"gates"`` to
            compute less, ``"auto"``; see `Settings`.
        max_length: the longest segment that ``scan`` is made ready for, best the length of a slice;
            None for the longest one, under `torch.compile` for T rows of ``[B, T]``.

    Raises:
        ValueError: the keys or sizes do not fit together.

    Example:
        >>> import torch
        >>> from rl_layout import set_recurrent_mode
        >>> from rl_layout.synthetic import trajectories
        >>> rows = trajectories([2, 4])
        >>> for key in ("recurrent_state_h", "recurrent_state_c"):
        ...     rows[key] = torch.zeros(6, 1, 5)
        >>> module = LSTMModule(2, 5, in_key="observation", out_key="features")
        >>> with set_recurrent_mode("recurrent"):
        ...     module(rows)["features"].shape
        torch.Size([6, 5])
    """

    cell = "lstm"
    default_states = ("recurrent_state_h", "recurrent_state_c")

    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        input_size: int | None = None,
        hidden_size: int | None = None,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0.0,
        proj_size: int = 0,
        bidirectional: bool = False,
        *,
        lstm: nn.LSTM | None = None,
        **options: Any,
    ) -> None:
        sizes = (input_size, hidden_size)
        shape: dict[str, Any] = {"num_layers": num_layers, "bias": bias, "dropout": dropout}
        shape |= {"batch_first": batch_first, "bidirectional": bidirectional}
        super().__init__(lstm, LSTM, sizes, {**shape, "proj_size": proj_size}, **options)

    @property
    def lstm(self) -> nn.RNNBase:
        """The network that holds the parameters."""
        return self.network


class GRUModule(RecurrentModule):
    """A GRU that reads and writes tensordicts: one step, or whole sequences.

    One step (sequential mode) starts from the state in its row. A batch ``[N]`` or ``[*B, T]``
    (recurrent mode) is cut where its markers cut, and every segment starts from the state in its
    first row, ``is_init`` or not: both modes compute the same. See
    `rl_layout.set_recurrent_mode`.

    In recurrent mode the next state is written at segment ends, and is zero elsewhere.

    Args:
        input_size: features I of an input.
        hidden_size: width H of the cells.
        num_layers: layers.
        bias: whether gates have biases.
        batch_first: True; tensordicts have time last among the dimensions of the batch.
        dropout: share of the features dropped between layers, while training.
        bidirectional: whether every layer also runs backwards in time; in recurrent mode only.
        recurrent_backend: ``"auto"``, ``"pad"``, ``"pack"``, ``"compiled"``, ``"scan"`` or
            ``"triton"``.
        in_key: the input; the state is then ``"recurrent_state"``.
        in_keys: input, state, and ``"is_init"``, which is added if left out.
        out_key: the output; the state is then under ``"next"`` with the name of the read one.
        out_keys: output, next state.
        device: of the parameters.
        dtype: of the parameters.
        gru: a `torch.nn.GRU` to use, instead of sizes; `torch.compile` does not take it.
        default_recurrent_mode: the mode where none is set; False if None.
        every_state: write the state after every row in recurrent mode, not at segment ends alone.
        burn_in: rows at the start of every segment that only warm its state up, without gradient,
            unless ``traj_step`` says that the segment begins at a reset.
        learned_initial_state: whether a state that is zero throughout, as a primer leaves it at a
            reset, represents a parameter. It starts at zero.
        recurrent_matmul_precision: of ``triton``: ``"auto"``, ``"ieee"``, ``"tf32"``, ``"tf32x3"``,
            ``"bf16"``.
        recurrent_save: what is kept for backward: ``"state"`` for the least memory, ``"gates"`` to
            compute less, ``"auto"``; see `Settings`.
        max_length: the longest segment that ``scan`` is made ready for, best the length of a slice;
            None for the longest one, under `torch.compile` for T rows of ``[B, T]``.

    Raises:
        ValueError: the keys or sizes do not fit together.

    Example:
        >>> import torch
        >>> from rl_layout import set_recurrent_mode
        >>> from rl_layout.synthetic import trajectories
        >>> rows = trajectories([2, 4])
        >>> rows["recurrent_state"] = torch.zeros(6, 1, 5)
        >>> module = GRUModule(2, 5, in_key="observation", out_key="features")
        >>> with set_recurrent_mode("recurrent"):
        ...     module(rows)["next", "recurrent_state"].any(-1).flatten()
        tensor([False,  True, False, False, False,  True])
    """

    cell = "gru"
    default_states = ("recurrent_state",)

    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        input_size: int | None = None,
        hidden_size: int | None = None,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        gru: nn.GRU | None = None,
        **options: Any,
    ) -> None:
        sizes = (input_size, hidden_size)
        shape: dict[str, Any] = {"num_layers": num_layers, "bias": bias, "dropout": dropout}
        shape |= {"batch_first": batch_first, "bidirectional": bidirectional}
        super().__init__(gru, GRU, sizes, shape, **options)

    @property
    def gru(self) -> nn.RNNBase:
        """The network that holds the parameters."""
        return self.network
