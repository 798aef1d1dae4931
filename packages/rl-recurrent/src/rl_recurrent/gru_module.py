"""GRU: the network, and the module that reads a tensordict."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rl_layout import Segments
from rl_recurrent.arguments import check_network_arguments
from rl_recurrent.backends.settings import Settings
from rl_recurrent.recurrent_module import RecurrentModule
from rl_recurrent.torch_layout import run_network


class GRU(nn.RNNBase):
    """`torch.nn.GRU` whose sequences may hold several trajectories, each from its own state.

    Parameters, their names and their initial values are those of torch: state dicts load either
    way. Without segments every sequence is one trajectory, as in torch.

    Args:
        input_size: features I of an input.
        hidden_size: width H of the cells.
        num_layers: layers.
        bias: whether gates have biases.
        batch_first: whether ``[B, T, I]`` is read, or ``[T, B, I]``.
        dropout: share of the features dropped between layers, while training.
        bidirectional: whether every layer also runs backwards in time.
        device: of the parameters.
        dtype: of the parameters.
        recurrent_backend: ``"auto"``, ``"pad"``, ``"pack"``, ``"scan"`` or ``"triton"``.

    Example:
        >>> segments = Segments.from_lengths(torch.tensor([2, 4]))
        >>> out, h = GRU(3, 5)(torch.randn(6, 3), segments=segments)
        >>> out.shape, h.shape
        (torch.Size([6, 5]), torch.Size([1, 2, 5]))
    """

    def __init__(  # noqa: PLR0913 - the arguments are torch's
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        recurrent_backend: str = "auto",
    ) -> None:
        check_network_arguments(
            {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers},
            {
                "bias": bias,
                "batch_first": batch_first,
                "bidirectional": bidirectional,
                "dropout": dropout,
                "device": device,
                "dtype": dtype,
            },
        )
        super().__init__(
            "GRU",
            input_size,
            hidden_size,
            num_layers=num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            device=device,
            dtype=dtype,
        )
        self.settings = Settings(backend=recurrent_backend)

    def forward(
        self, input: Tensor, hx: Tensor | None = None, segments: Segments | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run over sequences.

        Args:
            input: ``[T, I]`` or ``[B, T, I]``; ``[*B, T, I]`` with segments.
            hx: the state that sequences start from, ``[L, H]`` or ``[L, B, H]``; ``[L, S, H]``, one
                for each segment, with segments. Zeros if None.
            segments: where trajectories begin and end; None where every sequence is one.

        Returns:
            Outputs in the shape of the input, and h at the end of every sequence or segment.

        Raises:
            TypeError: the input is a packed sequence.
            ValueError: a shape, dtype or device does not fit.
            RuntimeError: the backend cannot run here.
        """
        states = None if hx is None else (hx,)
        out, (h,) = run_network(self, input, states, segments, self.settings)
        return out, h


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
        recurrent_backend: ``"auto"``, ``"pad"``, ``"pack"``, ``"scan"`` or ``"triton"``.
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
        kwargs = {
            "num_layers": num_layers,
            "bias": bias,
            "batch_first": batch_first,
            "dropout": dropout,
            "bidirectional": bidirectional,
        }
        super().__init__(gru, GRU, sizes, kwargs, **options)

    @property
    def gru(self) -> nn.RNNBase:
        """The network that holds the parameters."""
        network: nn.RNNBase = self.network
        return network
