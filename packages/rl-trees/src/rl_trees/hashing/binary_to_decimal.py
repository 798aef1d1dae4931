"""Binary digits as numbers."""

from __future__ import annotations

import math

import torch

from rl_tensordict.arguments import as_device, check_type, check_whole, shown


class BinaryToDecimal(torch.nn.Module):
    """Reads groups of binary digits as numbers, the highest digit first, and adds the groups up.

    Args:
        num_bits: Digits of a group; divides the number of features.
        device: Where the numbers are.
        dtype: Their dtype.
        convert_to_binary: Take every positive feature as 1 and all others as 0. Without it
            features are taken as digits.

    Raises:
        ValueError: Fewer than one digit, or more than `dtype` can hold.
        TypeError: No whole number, or no dtype or device.

    Example:
        >>> import torch
        >>> numbers = BinaryToDecimal(4, "cpu", torch.int32, convert_to_binary=True)
        >>> numbers(torch.tensor([[0, 0, 1, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0, 10, 0]]))
        tensor([3, 2], dtype=torch.int32)
    """

    def __init__(
        self,
        num_bits: int,
        device: torch.device | str,
        dtype: torch.dtype,
        convert_to_binary: bool = False,
    ) -> None:
        super().__init__()
        check_whole("num_bits", num_bits, 1)
        check_type("dtype", dtype, torch.dtype, "a dtype")
        device = as_device("device", device)
        most = _digits(dtype)
        if num_bits > most:
            raise ValueError(
                f"num_bits must be at most {most}, the digits of {dtype}, got {num_bits}: read "
                "fewer digits at once, or pass a wider dtype."
            )
        self.num_bits = num_bits
        self.convert_to_binary = convert_to_binary
        weights = [2**place for place in reversed(range(num_bits))]
        self.register_buffer("weights", torch.tensor(weights, device=device, dtype=dtype))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Reads digits.

        Args:
            features: `[*B, F]`.

        Returns:
            `[N]`, with the N elements of `*B` in one dimension.

        Raises:
            ValueError: Fewer features than digits, or no whole groups.
            TypeError: No tensor, or one without dimensions.
        """
        if not isinstance(features, torch.Tensor) or not features.ndim:
            raise TypeError(f"features: expected a tensor [*B, F], got {shown(features)}.")
        count = features.shape[-1]
        if count < self.num_bits or count % self.num_bits:
            raise ValueError(
                f"{count} features are no groups of num_bits={self.num_bits}: num_bits must "
                "divide the number of features."
            )
        digits = features > 0 if self.convert_to_binary else features
        weights = self.get_buffer("weights")
        groups = digits.to(weights).reshape(-1, count // self.num_bits, self.num_bits)
        return (groups * weights).sum((-2, -1), dtype=weights.dtype)


def _digits(dtype: torch.dtype) -> int:
    """How many binary digits there can be in a number of a dtype."""
    if dtype.is_floating_point:
        return math.frexp(torch.finfo(dtype).max)[1]
    if dtype.is_complex or dtype == torch.bool:
        raise TypeError(f"dtype: expected one of integers or floats, got {dtype}.")
    return int(torch.iinfo(dtype).max).bit_length()
