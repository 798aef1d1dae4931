"""Vectors whose entries are normal and independent."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributions import constraints
from torch.distributions.kl import register_kl

from rl_policies.distributions.loc_scale import HALF_LOG_2PI, LocScale, normal_kl


class IndependentNormal(LocScale):
    """Vectors x = loc + scale ε, ε standard normal.

        log p(x) = Σᵢ -½ ((xᵢ - locᵢ) / scaleᵢ)² - log scaleᵢ - ½ log 2π

    It is torch's `Independent(Normal(loc, scale), event_dim)` with less work in between.

    Args:
        loc: floats `[*B, *E]`.
        scale: positive, broadcasts against `loc`; a number represents a constant.
        upscale: bound on `|loc|` where `tanh_loc` is set.
        tanh_loc: use upscale tanh(loc / upscale) in place of `loc`.
        event_dim: how many trailing dimensions are one event.
        validate_args: look for NaN and for scales that are not positive, and check the values
            given to `log_prob`. This waits for the device.

    Raises:
        TypeError: `loc` is no tensor of floats.
        ValueError: shapes do not fit, or values are refused.

    Example:
        >>> import torch
        >>> dist = IndependentNormal(torch.zeros(3, 2), torch.ones(3, 2))
        >>> dist.log_prob(torch.zeros(3, 2)), dist.mode.shape
        (tensor([-1.8379, -1.8379, -1.8379]), torch.Size([3, 2]))
    """

    def __init__(
        self,
        loc: Tensor,
        scale: Tensor | float,
        upscale: float = 5.0,
        tanh_loc: bool = False,
        event_dim: int = 1,
        validate_args: bool = False,
    ) -> None:
        super().__init__(loc, scale, event_dim, upscale, tanh_loc, validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> Any:
        """Real numbers, in as many dimensions as the event has."""
        return constraints.independent(constraints.real, len(self.event_shape))

    @property
    def mean(self) -> Tensor:
        """The location: floats `[*B, *E]`."""
        return self.loc

    mode = median = deterministic_sample = mean

    @property
    def stddev(self) -> Tensor:
        """The scale: floats `[*B, *E]`."""
        return self.scale

    @property
    def variance(self) -> Tensor:
        """The square of the scale: floats `[*B, *E]`."""
        return self.scale**2

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw vectors whose gradient reaches `loc` and `scale`.

        Args:
            sample_shape: how many are drawn for each row.

        Returns:
            Floats `[*sample_shape, *B, *E]`.
        """
        return self._draw_normal(sample_shape)[0]

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of vectors.

        Args:
            value: floats `[*S, *B, *E]`.

        Returns:
            Floats `[*S, *B]`.

        Raises:
            ValueError: the value does not end in the shape of the event.

        Example:
            >>> import torch
            >>> IndependentNormal(torch.zeros(2), 1.0).log_prob(torch.tensor([1.0, 0.0]))
            tensor(-2.3379)
        """
        self._check_event(value)
        return self._log_density(self._surprise(value))

    def entropy(self) -> Tensor:
        """Entropy Σᵢ ½ + ½ log 2π + log scaleᵢ, in nats: floats `[*B]`."""
        return self._sum_event(self.scale.log() + (0.5 + HALF_LOG_2PI))


register_kl(IndependentNormal, IndependentNormal)(normal_kl)
