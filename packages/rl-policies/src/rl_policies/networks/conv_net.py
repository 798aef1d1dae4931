"""Convolutional networks of several layers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_policies.modules.call_notes import require_tensor
from rl_tensordict import note_errors

WindowSize = int | tuple[int, int]
_WIDTH = 32
_DEPTH = 3


class ConvNet(nn.Sequential):
    """Convolutions with an activation after each, then one vector for each image.

        h₀ = image,    hₖ = activation(norm(Wₖ * hₖ₋₁ + bₖ)),    y = h_depth as a vector

    Args:
        in_features: number of channels; None to learn it from the first image.
        depth: number of layers. By default as many as one of the lists has, else 3.
        num_cells: number of channels after all layers, or after each; 32 by default.
        kernel_sizes: size of the kernel of all layers, or of each; a pair for height and width.
        strides: step of it, likewise.
        paddings: zeros around the image, likewise.
        activation_class: makes the activation of a layer.
        activation_kwargs: its arguments.
        norm_class: makes a normalisation before each activation.
        norm_kwargs: its arguments; without any it is given the number of channels.
        bias_last_layer: give the last convolution a bias.
        aggregator_class: makes what follows the last activation, vectors `[*B, C H W]` by default;
            None for images.
        aggregator_kwargs: its arguments.
        squeeze_output: drop height and width of the output, which must be 1.
        device: where the parameters lie.

    Raises:
        ValueError: the lists differ in length, there is no layer, or a number is not positive.

    Example:
        >>> net = ConvNet(num_cells=[8, 16], kernel_sizes=[8, 4], strides=[4, 2])
        >>> net(torch.zeros(5, 2, 3, 84, 84)).shape, net[0].in_channels
        (torch.Size([5, 2, 1296]), 3)
    """

    @note_errors
    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        in_features: int | None = None,
        depth: int | None = None,
        num_cells: Sequence[int] | int | None = None,
        kernel_sizes: Sequence[WindowSize] | int = 3,
        strides: Sequence[WindowSize] | int = 1,
        paddings: Sequence[WindowSize] | int = 0,
        activation_class: Callable[..., nn.Module] = nn.ELU,
        activation_kwargs: dict[str, Any] | None = None,
        norm_class: Callable[..., nn.Module] | None = None,
        norm_kwargs: dict[str, Any] | None = None,
        bias_last_layer: bool = True,
        aggregator_class: Callable[..., nn.Module] | None = nn.Flatten,
        aggregator_kwargs: dict[str, Any] | None = None,
        squeeze_output: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        cells = _WIDTH if num_cells is None else num_cells
        each = {"num_cells": cells, "kernel_sizes": kernel_sizes, "strides": strides}
        widths, kernels, steps, around = per_layer(depth, {**each, "paddings": paddings})
        layers: list[nn.Module] = []
        for place, (after, kernel) in enumerate(zip(widths, kernels, strict=True)):
            before = widths[place - 1] if place else in_features
            bias = bias_last_layer or place + 1 < len(widths)
            layers.append(_layer(before, after, kernel, steps[place], around[place], bias))
            if norm_class is not None:
                layers.append(norm_class(**norm_kwargs) if norm_kwargs else norm_class(after))
            layers.append(activation_class(**(activation_kwargs or {})))
        if aggregator_class is not None:
            layers.append(aggregator_class(**(aggregator_kwargs or {})))
        super().__init__(*layers)
        self.in_features, self.out_features = in_features, widths[-1]
        self.squeeze_output = squeeze_output
        if device is not None:
            self.to(device)

    def forward(self, images: Tensor) -> Tensor:
        """Compute the output.

        Args:
            images: floats `[*B, C, H, W]`.

        Returns:
            `[*B, C' H' W']`; `[*B, C', H', W']` without an aggregator, `[*B, C']` squeezed.

        Raises:
            TypeError: the images are no floats.
            ValueError: they have no three dimensions, other channels than the first layer, or are
                smaller than the kernels; or the output cannot be squeezed.

        Example:
            >>> net = ConvNet(3, num_cells=[4], kernel_sizes=5, aggregator_class=None)
            >>> net(torch.zeros(3, 8, 9)).shape
            torch.Size([4, 4, 5])
        """
        self._check(images)
        rows, size = images.shape[:-3], images.shape[-3:]
        out: Tensor = super().forward(images.reshape(math.prod(rows), *size))  # type: ignore[no-untyped-call]
        out = out.reshape(*rows, *out.shape[1:])
        if not self.squeeze_output:
            return out
        if out.shape[-2:] != (1, 1):
            msg = f"squeeze_output needs a height and width of 1: got {tuple(out.shape)}"
            raise ValueError(msg)
        return out.flatten(-3)

    def _check(self, images: Tensor) -> None:
        require_tensor(images, "images")
        shape = tuple(images.shape)
        if not images.is_floating_point():
            msg = f"expected images of floats: got {images.dtype}. ToTensorImage scales bytes."
            raise TypeError(msg)
        if images.ndim < 3:
            msg = f"expected images [*B, C, H, W]: got shape {shape}"
            raise ValueError(msg)
        channels = self[0].in_channels
        if channels and shape[-3] != channels:
            msg = (
                f"expected images [*B, {channels}, H, W]: got shape {shape}. Channels come before "
                "height and width; ToTensorImage puts them there."
            )
            raise ValueError(msg)
        height, width = shape[-2:]
        for layer in self:
            if isinstance(layer, nn.Conv2d):
                height, width = _after(layer, (height, width))
        if min(height, width) < 1:
            msg = f"images of {shape[-2:]} are too small for these kernels: nothing is left of them"
            raise ValueError(msg)


def per_layer(depth: int | None, given: dict[str, Any]) -> list[list[Any]]:
    """Write what is given for all layers, or for each, as one list a layer."""
    lengths = {name: len(v) for name, v in given.items() if not isinstance(v, int)}
    if depth is not None:
        lengths["depth"] = depth
    if len(set(lengths.values())) > 1:
        msg = f"expected as many of each as there are layers: got {lengths}"
        raise ValueError(msg)
    count = next(iter(lengths.values()), _DEPTH)
    if count < 1:
        msg = f"a convolutional network needs at least one layer: got {count}"
        raise ValueError(msg)
    lists = {n: [v] * count if isinstance(v, int) else list(v) for n, v in given.items()}
    for name, values in lists.items():
        least = 0 if name == "paddings" else 1
        if any(min(v if isinstance(v, tuple) else (v,)) < least for v in values):
            msg = f"{name} must be at least {least}: got {values}"
            raise ValueError(msg)
    return list(lists.values())


def _after(layer: nn.Conv2d, size: tuple[int, int]) -> tuple[int, int]:
    """Height and width after a convolution, 0 or less where the kernel does not fit."""
    padding: Any = layer.padding
    height, width = (
        (size[i] + 2 * padding[i] - layer.kernel_size[i]) // layer.stride[i] + 1 for i in range(2)
    )
    return height, width


def _layer(
    before: int | None,
    after: int,
    kernel: WindowSize,
    stride: WindowSize,
    padding: WindowSize,
    bias: bool,
) -> nn.Module:
    if before is not None:
        return nn.Conv2d(before, after, kernel, stride, padding, bias=bias)
    with warnings.catch_warnings():
        # torch announces on every use that lazy modules may change
        warnings.filterwarnings("ignore", message="Lazy modules")
        return nn.LazyConv2d(after, kernel, stride, padding, bias=bias)
