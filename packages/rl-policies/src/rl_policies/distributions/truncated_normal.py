"""Truncated normal distribution of vectors between bounds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.special import log_ndtr, ndtri

from rl_policies.distributions.loc_scale import HALF_LOG_2PI, BoundedLocScale

FAR = 1e15  # scales, in place of an infinite bound: no sample is that far
DEEP = -300.0  # log Φ below which Φ underflows, and its inverse is computed from log Φ
# below it φ / Φ is -z; torch takes this slope from a difference of logarithms, which cancels
FAR_TAIL = -1e5
# below these the terms of the entropy, of size z², cancel to fewer than 7 digits
FAR_ENTROPY, FAR_NARROW = -150.0, -20.0
ROUNDS = 6  # of Newton's method, which doubles the digits; the first guess has two


class TruncatedNormal(BoundedLocScale):
    """Vectors with independent entries, normal and held between bounds by conditioning.

        p(x) = φ((x - loc) / scale) / (scale Z),    Z = Φ(b) - Φ(a)

    with a and b the bounds in units of scale from loc. Unlike clipping, no point has a probability
    of its own. Computed in double precision in the tail where the bounds lie.

    Args:
        loc: floats `[*B, *E]`.
        scale: positive, broadcasts against `loc`; a number represents a constant.
        upscale: bound on `|loc|` where `tanh_loc` is set.
        low: lower bound, a number or broadcasting against `loc`.
        high: upper bound, likewise.
        event_dims: how many trailing dimensions are one event.
        tanh_loc: use upscale tanh(loc / upscale) in place of `loc`.
        validate_args: look for NaN and for scales that are not positive, and check the values
            given to `log_prob`. This waits for the device.

    Raises:
        ValueError: shapes do not fit, the bounds are crossed, or values are refused.

    Example:
        >>> dist = TruncatedNormal(torch.zeros(1), 1.0, low=-1.0, high=1.0)
        >>> dist.log_prob(torch.zeros(1)), dist.log_prob(torch.full((1,), 2.0))
        (tensor(-0.5372), tensor(-inf))
    """

    def _prepare(self) -> None:
        self._wide = loc, scale = self.loc.double(), self.scale.double()
        first, last = _in_scales(self.low, loc, scale), _in_scales(self.high, loc, scale)
        # both bounds on the side where Φ is small: there differences keep their digits
        self._turned = first + last > 0
        self._from = torch.where(self._turned, -last, first)
        self._to = torch.where(self._turned, -first, last)
        below, up_to = _log_share(self._from), _log_share(self._to)
        self._log_from = below
        self._log_mass = up_to + torch.log(-torch.expm1(below - up_to))

    @property
    def mode(self) -> Tensor:
        """The likeliest value, loc held between the bounds: floats `[*B, *E]`."""
        return self._held(self.loc)

    @property
    def deterministic_sample(self) -> Tensor:
        """The mean."""
        return self.mean

    @property
    def mean(self) -> Tensor:
        """The expectation, loc + scale (φ(a) - φ(b)) / Z, floats `[*B, *E]`."""
        far = self._to < FAR_TAIL
        first, last = (
            torch.exp((-0.5 * end.square() - HALF_LOG_2PI - self._log_mass).masked_fill(far, 0))
            for end in (self._from, self._to)
        )
        z = torch.where(far, self._to + 1 / self._to, first - last)
        return self._at(torch.where(self._turned, -z, z))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw vectors whose gradient reaches `loc` and `scale`, by the inverse of Φ.

        Args:
            sample_shape: how many are drawn for each row.

        Returns:
            Floats `[*sample_shape, *B, *E]` within the bounds.
        """
        shape = self._extended_shape(sample_shape)
        share = torch.rand(shape, dtype=torch.float64, device=self.loc.device)
        z = _quantile(torch.logaddexp(self._log_from, share.log() + self._log_mass))
        z = torch.maximum(torch.minimum(z, self._to), self._from)
        z = torch.where(self._turned, -z, z)
        return self._at(z)

    def _at(self, z: Tensor) -> Tensor:
        """Compute loc + z scale in double precision: far out the two terms nearly cancel."""
        loc, scale = self._wide
        return self._held(torch.addcmul(loc, scale, z).to(self.loc.dtype))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of vectors, -inf outside of the bounds.

        Args:
            value: floats `[*S, *B, *E]`.

        Returns:
            Floats `[*S, *B]`.

        Raises:
            ValueError: the value does not end in the shape of the event.
        """
        self._check_event(value)
        loc, scale = self._wide
        z = (value - loc) / scale
        surprise = torch.addcmul(scale.log() + self._log_mass, z, z, value=0.5)
        log_density = torch.rsub(surprise, -HALF_LOG_2PI).to(value.dtype)
        outside = (value < self.low) | (value > self.high)
        return self._sum_event(log_density.masked_fill(outside, -torch.inf))

    def entropy(self) -> Tensor:
        """Entropy log(scale Z √(2πe)) + (a φ(a) - b φ(b)) / (2 Z), in nats: floats `[*B]`."""
        narrow = (self._from - self._to) * self._to < 1
        far = self._to < torch.where(narrow, FAR_NARROW, FAR_ENTROPY)
        mass = self._log_mass.masked_fill(far, 0)
        first, last = (
            end * torch.exp(-0.5 * end.square() - HALF_LOG_2PI - mass)
            for end in (self._from.masked_fill(far, -1), self._to.masked_fill(far, 0))
        )
        each = mass + HALF_LOG_2PI + 0.5 + (first - last) / 2
        if not _none_set(far):
            each = torch.where(far, self._far_entropy(far), each)
        return self._sum_event((self._wide[1].log() + each).to(self.loc.dtype))

    def _far_entropy(self, far: Tensor) -> Tensor:
        """Entropy in units of scale with both bounds in one tail: p(u) ~ exp(-u - u² / (2 λ²))."""
        # u is the distance from the nearer bound times λ = -to, from 0 to q = λ (to - from). The
        # exponential law has the entropy 1 - r + log(1 - exp(-q)) - log λ, r = q / (exp(q) - 1);
        # the square adds -Cov(u, u²) / (2 λ²), and the error is of order 1 / λ⁴.
        rate = -self._to.masked_fill(~far, -1)
        q = (rate * (self._to - self._from)).masked_fill(~far, 1).clamp(max=700.0)
        r = q / torch.expm1(q)
        first = 1 - r
        second = 2 * first - q * r
        third = 3 * second - q.square() * r
        bend = (third - first * second) / (2 * rate.square())
        return first + torch.log(-torch.expm1(-q)) - rate.log() - bend


def _in_scales(bound: Tensor | float, loc: Tensor, scale: Tensor) -> Tensor:
    """A bound in units of scale from loc; FAR for an infinite one, whose gradient is NaN."""
    at = torch.as_tensor(bound, dtype=loc.dtype, device=loc.device)
    far = at.isinf()
    if _none_set(far):
        return (at - loc) / scale
    return torch.where(far, at.sign() * FAR, (at.masked_fill(far, 0) - loc) / scale)


def _quantile(log_share: Tensor) -> Tensor:
    """The z of Φ(z) by its logarithm, also if Φ(z) itself underflows."""
    deep = log_share < DEEP
    is_shallow = _none_set(deep)
    plain: Tensor = ndtri((log_share if is_shallow else log_share.masked_fill(deep, -1.0)).exp())
    if is_shallow:
        return plain
    target = log_share.masked_fill(~deep, DEEP)
    with torch.no_grad():
        z = -(-2 * target).sqrt()
        for _ in range(ROUNDS):  # Newton's, of a concave function, from one side
            z = z - (_log_share(z) - target) / _hazard(z)
    z = z - (_log_share(z) - target) / _hazard(z)  # once more with the gradient
    return torch.where(deep, z, plain)


def _none_set(flag: Tensor) -> bool:
    """Whether no flag is set; False if only a device sync could tell."""
    return not torch.compiler.is_compiling() and flag.is_cpu and not bool(flag.any())


def _log_share(z: Tensor) -> Tensor:
    """Logarithm of Φ(z); in the far tail by its expansion, whose gradient is accurate."""
    far = z < FAR_TAIL
    near: Tensor = log_ndtr(z.masked_fill(far, 0))
    if _none_set(far):
        return near
    out = z.masked_fill(~far, FAR_TAIL)
    tail = -0.5 * out.square() - HALF_LOG_2PI - (-out).log()
    return torch.where(far, tail, near)


def _hazard(z: Tensor) -> Tensor:
    """φ(z) / Φ(z), the slope of log Φ."""
    near = torch.exp(-0.5 * z.square() - HALF_LOG_2PI - _log_share(z))
    return torch.where(z < FAR_TAIL, -z, near)
