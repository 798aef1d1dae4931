"""Vectors within bounds: a normal distribution sent through tanh."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions.kl import register_kl

from rl_policies.distributions.loc_scale import HALF_LOG_2PI, BoundedLocScale, normal_kl
from rl_policies.distributions.sample_cache import SampleCache
from rl_tensordict import as_tensor

LOG_2 = math.log(2.0)


class TanhNormal(BoundedLocScale):
    """Vectors between two bounds, as in the appendix of Haarnoja et al. (2018).

        u = loc + scale ε,    half = (high - low) / 2,    x = low + half (1 + tanh u)
        log p(x) = Σᵢ log N(uᵢ) - log(1 - tanh² uᵢ) - log halfᵢ
        log(1 - tanh² u) = 2 (log 2 - log(exp(u) + exp(-u)))

    The last line is exact for any u. Values that this object has drawn keep their u; for others it
    is atanh of the value, pulled one rounding inside the bounds, so that a value on a bound has a
    finite log-probability. Mean and entropy have no closed form.

    Args:
        loc: floats `[*B, *E]`.
        scale: positive, broadcasts against `loc`; a number represents a constant.
        upscale: bound on `|loc|` where `tanh_loc` is set.
        low: lower bound, a number or broadcasting against `loc`.
        high: upper bound, likewise.
        event_dims: how many trailing dimensions are one event.
        tanh_loc: use upscale tanh(loc / upscale) in place of `loc`.
        validate_args: check the parameters and the values given to `log_prob`. This waits for
            the device.

    Raises:
        TypeError: `loc` is no tensor of floats.
        ValueError: shapes do not fit, a lower bound is not below the upper one, or values are
            refused.

    Example:
        >>> dist = TanhNormal(torch.zeros(2), torch.ones(2), low=0.0, high=4.0)
        >>> dist.mode, bool((dist.sample() < 4).all())
        (tensor([2., 2.]), True)
    """

    _needs_finite = True

    def _prepare(self) -> None:
        self._drawn: SampleCache | None = None

    @property
    def mode(self) -> Tensor:
        """The image of loc: floats `[*B, *E]`. It is the median, not the peak of the density."""
        return self._squash(self.loc)

    @property
    def median(self) -> Tensor:
        """The image of loc: floats `[*B, *E]`."""
        return self._squash(self.loc)

    deterministic_sample = median

    @property
    def mean(self) -> Tensor:
        """Refused: there is no closed form.

        Raises:
            NotImplementedError: always; `sample((1000,)).mean(0)` estimates it.
        """
        msg = "the mean of a TanhNormal has no closed form: use rsample((1000,)).mean(0), or mode"
        raise NotImplementedError(msg)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw vectors whose gradient reaches `loc` and `scale`.

        Args:
            sample_shape: how many are drawn for each row.

        Returns:
            Floats `[*sample_shape, *B, *E]`.
        """
        return self._squash(*self._draw_normal(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of vectors.

        Args:
            value: floats `[*S, *B, *E]`, within the bounds.

        Returns:
            Floats `[*S, *B]`.

        Raises:
            ValueError: the value does not end in the shape of the event.

        Example:
            >>> TanhNormal(torch.zeros(2), 1.0).log_prob(torch.zeros(2))
            tensor(-1.8379)
        """
        u, z = self._before_tanh(value)
        surprise = torch.sub(self._surprise(u, z), torch.logaddexp(u, -u), alpha=2)
        if not self._plain:
            surprise = surprise + self._half.log()
        return self._log_density(surprise, HALF_LOG_2PI + 2 * LOG_2)

    def entropy(self) -> Tensor:
        """Refused: there is no closed form.

        Raises:
            NotImplementedError: always; the mean of `-log_prob(rsample((n,)))` estimates it.
        """
        msg = (
            "the entropy of a TanhNormal has no closed form: "
            "estimate it by -dist.log_prob(dist.rsample((n,))).mean(0)"
        )
        raise NotImplementedError(msg)

    @property
    def _half(self) -> Tensor:
        """Half of the way from one bound to the other."""
        return as_tensor(self.high - self.low) / 2

    def _squash(self, u: Tensor, noise: Tensor | None = None) -> Tensor:
        """Send u to the bounds, and remember where the result came from."""
        out = u.tanh()
        if not self._plain:
            out = self._held(self.low + self._half * (1 + out))
        if self.loc.requires_grad or self.scale.requires_grad:
            # the noise represents (u - loc) / scale only where u carries their gradient
            noise = noise if u.requires_grad else None
        self._drawn = SampleCache(out, (u, noise))
        return out

    def _before_tanh(self, value: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return u = atanh of the value, and the noise (u - loc) / scale if it is cached."""
        drawn = self._drawn
        if drawn and drawn.holds(value):
            u, z = drawn.origin
            return u, z
        self._check_event(value)
        y = value if self._plain else (value - self.low) / self._half - 1
        limit = 1 - torch.finfo(y.dtype).eps
        return y.clamp(-limit, limit).atanh(), None


def _equal(bound: Tensor | float, other: Tensor | float) -> bool:
    return bool((as_tensor(bound) == as_tensor(other)).all())


@register_kl(TanhNormal, TanhNormal)  # type: ignore[untyped-decorator]
def _kl(p: TanhNormal, q: TanhNormal) -> Tensor:
    # both are one image of their normal distributions, and an image has the same divergence
    if not (_equal(p.low, q.low) and _equal(p.high, q.high)):
        msg = "the divergence of two TanhNormal is infinite or undefined unless their bounds agree"
        raise ValueError(msg)
    return normal_kl(p, q)
