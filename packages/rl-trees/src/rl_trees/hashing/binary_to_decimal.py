"""Binary digits as numbers."""

from __future__ import annotations

import torch


class BinaryToDecimal(torch.nn.Module):
    """Reads groups of binary digits as numbers, the highest digit first, and adds the groups up.

    Args:
        num_bits: Digits of a group; divides the number of features.
        device: Where the numbers are.
        dtype: Their dtype.
        convert_to_binary: Take every positive feature as 1 and all others as 0. Without it
            features are taken as digits.

    Raises:
        ValueError: Fewer than one digit.

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
        if num_bits < 1:
            raise ValueError(f"num_bits must be at least 1, got {num_bits}.")
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
        """
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
