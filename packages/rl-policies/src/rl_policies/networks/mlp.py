"""Perceptrons of several layers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_tensordict import note_call, note_errors

_WIDTH = 32
_DEPTH = 3


class MLP(nn.Sequential):
    """Linear layers with an activation between any two.

        h₀ = inputs side by side,    hₖ = activation(norm(Wₖ hₖ₋₁ + bₖ)),    y = W h_depth + b

    Args:
        in_features: size of the input; None to learn it from the first input.
        out_features: size of the output, or several: the output is then shaped so.
        depth: number of hidden layers; 0 for a single linear map. By default as many as
            `num_cells` lists, else 3.
        num_cells: size of all hidden layers, or of each; 32 by default.
        activation_class: makes the activation of a hidden layer.
        activation_kwargs: its arguments.
        norm_class: makes a normalisation before each activation.
        norm_kwargs: its arguments; without any it is given the size of the layer.
        dropout: chance for an entry of a hidden layer to be dropped in training.
        bias_last_layer: give the last layer a bias.
        layer_class: makes a layer from its two sizes and `bias`. With `in_features=None` it must
            be `nn.Linear`.
        layer_kwargs: further arguments of it.
        activate_last_layer: activate the output as well.
        device: where the parameters lie.

    Raises:
        ValueError: `out_features` is missing, `depth` and `num_cells` disagree, or a lazy layer of
            another class is wanted.

    Example:
        >>> MLP(3, 2, num_cells=[5, 7])(torch.zeros(4, 3)).shape
        torch.Size([4, 2])
        >>> critic = MLP(out_features=1, depth=1)
        >>> critic(torch.zeros(4, 3), torch.zeros(4, 2)).shape, critic[0].in_features
        (torch.Size([4, 1]), 5)
    """

    @note_errors
    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        in_features: int | None = None,
        out_features: int | Sequence[int] | None = None,
        depth: int | None = None,
        num_cells: Sequence[int] | int | None = None,
        activation_class: Callable[..., nn.Module] = nn.Tanh,
        activation_kwargs: dict[str, Any] | None = None,
        norm_class: Callable[..., nn.Module] | None = None,
        norm_kwargs: dict[str, Any] | None = None,
        dropout: float | None = None,
        bias_last_layer: bool = True,
        layer_class: Callable[..., nn.Module] = nn.Linear,
        layer_kwargs: dict[str, Any] | None = None,
        activate_last_layer: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        if out_features is None:
            msg = "out_features is missing: give the size of the output"
            raise ValueError(msg)
        plain = isinstance(out_features, int)
        out_shape = (out_features,) if isinstance(out_features, int) else tuple(out_features)
        widths = hidden_sizes(depth, num_cells)
        options = {**(layer_kwargs or {}), **({} if device is None else {"device": device})}

        layers: list[nn.Module] = []
        sizes = [*widths, math.prod(out_shape)]
        for place, after in enumerate(sizes):
            before = sizes[place - 1] if place else in_features
            last = place == len(widths)
            bias = {"bias": False} if last and not bias_last_layer else {}
            layers.append(_layer(layer_class, before, after, {**options, **bias}))
            if last and not activate_last_layer:
                break
            if norm_class is not None:
                layers.append(norm_class(**norm_kwargs) if norm_kwargs else norm_class(after))
            layers.append(activation_class(**(activation_kwargs or {})))
            if dropout and not last:
                layers.append(nn.Dropout(dropout))
        super().__init__(*layers)
        self.in_features = in_features
        self.out_features = out_features if plain else out_shape
        self._out_shape = None if plain else out_shape
        self.runs_layers = plain  # of one input, as `rl_tensordict.ModuleCalls` asks
        if device is not None:
            self.to(device)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Compute the output.

        Args:
            inputs: floats `[*B, ...]`, put side by side along the last dimension; other dtypes
                are cast to that of the first.

        Returns:
            `[*B, *out_features]`.

        Example:
            >>> MLP(3, (2, 5), depth=0)(torch.zeros(4, 3)).shape
            torch.Size([4, 2, 5])
        """
        try:
            first = inputs[0]
            if len(inputs) > 1:
                first = torch.cat([tensor.to(first.dtype) for tensor in inputs], -1)
            out: Tensor = super().forward(first)  # type: ignore[no-untyped-call]
            return out if self._out_shape is None else out.unflatten(-1, self._out_shape)
        except Exception as error:
            note_call(error, type(self).__name__, inputs)
            raise


def hidden_sizes(depth: int | None, num_cells: Sequence[int] | int | None) -> list[int]:
    """Work out the sizes of the hidden layers."""
    if num_cells is None or isinstance(num_cells, int):
        many = _DEPTH if depth is None else depth
        width = _WIDTH if num_cells is None else num_cells
        sizes = [width] * many
        if many < 0:
            msg = f"depth must not be negative: got {depth}"
            raise ValueError(msg)
    else:
        sizes = list(num_cells)
        if depth not in (None, len(sizes)):
            msg = f"depth is {depth} but num_cells lists {len(sizes)} layers: leave depth out"
            raise ValueError(msg)
    if any(size < 1 for size in sizes):
        msg = f"every hidden layer needs at least one cell: got {sizes}"
        raise ValueError(msg)
    return sizes


def _layer(
    layer_class: Callable[..., nn.Module], before: int | None, after: int, kwargs: dict[str, Any]
) -> nn.Module:
    if before is not None:
        return layer_class(before, after, **kwargs)
    if layer_class is not nn.Linear:
        msg = f"in_features is needed for layers of {layer_class}: only nn.Linear can learn it"
        raise ValueError(msg)
    with warnings.catch_warnings():
        # torch announces on every use that lazy modules may change
        warnings.filterwarnings("ignore", message="Lazy modules")
        return nn.LazyLinear(after, **kwargs)
