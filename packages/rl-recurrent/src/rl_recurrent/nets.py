"""LSTM and GRU in the shapes of `torch.nn`, over sequences of one trajectory or of several."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from rl_layout import Segments
from rl_recurrent.arguments import check_network_arguments, check_tensor
from rl_recurrent.backends.dispatch import Settings, is_dense
from rl_recurrent.cells.cell import States
from rl_recurrent.inputs import check_input, check_states
from rl_recurrent.network import Network, choice_for, unroll_checked


class _CheckedNetwork(nn.RNNBase):
    """A network of torch that says what is wrong with its arguments, and knows its backend."""

    def __init__(
        self, mode: str, sizes: dict[str, Any], options: dict[str, Any], recurrent_backend: str
    ) -> None:
        check_network_arguments(sizes, options)
        super().__init__(mode, **{**sizes, **options})
        self.settings = Settings(backend=recurrent_backend)


class LSTM(_CheckedNetwork):
    """`torch.nn.LSTM` whose sequences may hold several trajectories, each from its own state.

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
        proj_size: width P of h, if not H.
        device: of the parameters.
        dtype: of the parameters.
        recurrent_backend: ``"auto"``, ``"pad"``, ``"pack"``, ``"compiled"``, ``"scan"`` or
            ``"triton"``.

    Example:
        >>> segments = Segments.from_lengths(torch.tensor([2, 4]))
        >>> out, (h, c) = LSTM(3, 5)(torch.randn(6, 3), segments=segments)
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
        proj_size: int = 0,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        recurrent_backend: str = "auto",
    ) -> None:
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}
        options: dict[str, Any] = {"bias": bias, "batch_first": batch_first, "dropout": dropout}
        options |= {"bidirectional": bidirectional, "device": device, "dtype": dtype}
        options["proj_size"] = proj_size
        super().__init__("LSTM", sizes, options, recurrent_backend)

    def forward(
        self,
        input: Tensor,
        hx: tuple[Tensor, Tensor] | None = None,
        segments: Segments | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run over sequences.

        Args:
            input: ``[T, I]`` or ``[B, T, I]``; ``[*B, T, I]`` with segments.
            hx: h and c that sequences start from, ``[L, H]`` or ``[L, B, H]``; ``[L, S, H]``, one
                for each segment, with segments. Zeros if None.
            segments: where trajectories begin and end; None if every sequence is one.

        Returns:
            Outputs in the shape of the input, and h and c at the end of every sequence or segment.

        Raises:
            TypeError: the input is a packed sequence.
            ValueError: a shape, dtype or device does not fit.
            RuntimeError: the backend cannot run here.
        """
        out, (h, c) = run_network(self, input, hx, segments, self.settings)
        return out, (h, c)


class GRU(_CheckedNetwork):
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
        recurrent_backend: ``"auto"``, ``"pad"``, ``"pack"``, ``"compiled"``, ``"scan"`` or
            ``"triton"``.

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
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}
        options: dict[str, Any] = {"bias": bias, "batch_first": batch_first, "dropout": dropout}
        options |= {"bidirectional": bidirectional, "device": device, "dtype": dtype}
        super().__init__("GRU", sizes, options, recurrent_backend)

    def forward(
        self, input: Tensor, hx: Tensor | None = None, segments: Segments | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run over sequences.

        Args:
            input: ``[T, I]`` or ``[B, T, I]``; ``[*B, T, I]`` with segments.
            hx: the state that sequences start from, ``[L, H]`` or ``[L, B, H]``; ``[L, S, H]``, one
                for each segment, with segments. Zeros if None.
            segments: where trajectories begin and end; None if every sequence is one.

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


def run_network(
    module: nn.RNNBase,
    x: Tensor | PackedSequence,
    states: States | None,
    segments: Segments | None,
    settings: Settings,
) -> tuple[Tensor, States]:
    """Run a network on what `torch.nn` takes, or on a batch with segments."""
    if isinstance(x, PackedSequence):
        msg = "packed sequences are not taken: pass the rows end to end, and segments=."
        raise TypeError(msg)
    check_tensor("input", x)
    if segments is not None:
        return _over_segments(module, x, states, segments, settings)
    if x.ndim == 2:
        sequences = 0 if module.batch_first else 1
        batched = None if states is None else tuple(state.unsqueeze(1) for state in states)
        out, after = run_network(module, x.unsqueeze(sequences), batched, None, settings)
        return out.squeeze(sequences), tuple(state.squeeze(1) for state in after)
    if x.ndim != 3:
        msg = f"expected inputs [T, I] or [B, T, I], or segments=: got {list(x.shape)}."
        raise ValueError(msg)
    inputs = x if module.batch_first else x.transpose(0, 1)
    rows = dense_segments(inputs.shape[0], inputs.shape[1], x.device)
    out, after = _over_segments(module, inputs, states, rows, settings)
    return out if module.batch_first else out.transpose(0, 1), after


@lru_cache(maxsize=16)
def dense_segments(num_sequences: int, num_steps: int, device: torch.device) -> Segments:
    """Segments of one length, cached by shape and device."""
    if not num_sequences * num_steps:
        msg = f"expected at least one row: got [{num_sequences}, {num_steps}]."
        raise ValueError(msg)
    lengths = torch.full((num_sequences,), num_steps, dtype=torch.int64, device=device)
    flat = Segments.from_lengths(lengths)
    return Segments(flat.starts, lengths, flat.kinds, torch.Size([num_sequences, num_steps]))


def _over_segments(
    module: nn.RNNBase, x: Tensor, states: States | None, segments: Segments, settings: Settings
) -> tuple[Tensor, States]:
    """Run over ``[*B, T, I]``, every segment from its states ``[L, S, H]``."""
    network, count = Network.of(module), len(segments)
    weight, shapes = network.layers[0].w_ih, network.state_shapes
    check_input(x, segments.batch_shape, weight)
    if states is None:
        states = tuple(x.new_zeros(depth, count, width) for depth, width in shapes)
    check_states(states, (count,), weight, shapes, layers_first=True)
    choice = choice_for(x, segments, network, settings, every_state=False)
    of_torch = x.dtype in (torch.float32, torch.float64) and not module.proj_size  # of oneDNN
    if not (choice.backend == "pad" and of_torch and is_dense(segments)):
        second = tuple(state.transpose(0, 1) for state in states)
        out, after = unroll_checked(x, segments, second, network, settings, every_state=False)
        return out, tuple(state.transpose(0, 1) for state in after)
    rows = segments.gather(x).view(count, segments.max_length, -1)
    # all layers in one call of torch: the same memory and time as torch's own network
    params = [weight for layer in module.all_weights for weight in layer]
    states = tuple(state.contiguous() for state in states)  # cuDNN takes no others
    options = module.bias, module.num_layers, module.dropout, module.training
    with torch.autocast(x.device.type, enabled=False):
        out, *ends = network.equations.torch_layers(
            rows, states, params, *options, module.bidirectional, True
        )
    if out.shape[:-1] == segments.batch_shape and not segments.has_gaps:
        return out, tuple(ends)  # as torch gives it, which has time first in memory: no copy
    return segments.scatter(out.flatten(0, 1)), tuple(ends)
