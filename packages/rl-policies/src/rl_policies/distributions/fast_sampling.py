"""Samples and their log-probabilities from parameters, without a distribution object.

Acting draws once from each set of parameters. A distribution object costs more than the arithmetic
of one row, so each function computes what its distribution computes: the same samples from the same
generator, and log-probabilities that are equal up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from math import isnan
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical

from rl_policies.distributions.independent_normal import IndependentNormal
from rl_policies.distributions.loc_scale import HALF_LOG_2PI, are_plain, check_bounds, placed
from rl_policies.distributions.nan_check import can_read, refuse_nan, refuse_nan_density
from rl_policies.distributions.one_hot import OneHotCategorical
from rl_policies.distributions.tanh_normal import LOG_2, TanhNormal
from rl_tensordict.types import Array

Draw: TypeAlias = Callable[..., tuple[Tensor, Tensor]]
FEW = 64  # choices that are drawn from by numpy
FULL = (torch.float32, torch.float64)  # distributions compute narrower dtypes in float32


def direct_draw(
    distribution_class: Any, names: Sequence[str], kwargs: Mapping[str, Any]
) -> Draw | None:
    """Find the function that draws as a distribution does; None if there is none."""
    parameters, options = list(names), dict(kwargs)
    if (
        distribution_class is OneHotCategorical
        and parameters == ["logits"]
        and not {*options} - {"dtype"}
    ):
        return partial(draw_one_hot, dtype=options.get("dtype", torch.int64))
    if distribution_class is Categorical and parameters == ["logits"] and not options:
        return draw_categorical
    if parameters != ["loc", "scale"]:
        return None
    if distribution_class is IndependentNormal and not options:
        return draw_normal
    if distribution_class is TanhNormal and not {*options} - {"low", "high"}:
        low, high = options.get("low", -1.0), options.get("high", 1.0)
        if are_plain(low, high):
            return draw_tanh_normal
        check_bounds(low, high, finite=True)
        return partial(draw_bounded, low=low, high=high)
    return None


def can_draw(*parameters: Any) -> bool:
    """Tell whether parameters fit `Draw`: one shape, one dtype of FULL, no gradient."""
    first = parameters[0]
    if torch.is_grad_enabled() or not isinstance(first, Tensor) or not first.ndim:
        return False
    dtype = first.dtype
    if dtype not in FULL:
        return False
    if len(parameters) == 1:
        return True
    second = parameters[1]
    return isinstance(second, Tensor) and second.shape == first.shape and second.dtype == dtype


def draw_one_hot(logits: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Draw as `OneHotCategorical`: vectors ``[*B, n]``, log-probabilities ``[*B]``; refuse NaN."""
    log_probs = logits.log_softmax(-1)
    if dtype is torch.bool and _is_one_row(log_probs):
        choice, score = _one_choice(log_probs)
        places = _places_to(log_probs.numel())
        return torch.from_numpy(places == choice), torch.from_numpy(score)
    index, log_prob = _choices(log_probs)
    if dtype is torch.bool and not torch.compiler.is_compiling():
        vectors = index == _numbers_to(log_probs.shape[-1], log_probs.device)
    else:
        vectors = torch.zeros_like(log_probs, dtype=dtype).scatter_(-1, index, 1)
    return vectors, log_prob.squeeze(-1)


def draw_categorical(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Draw as torch's `Categorical`: int64 ``[*B]``, log-probabilities ``[*B]``; refuse NaN."""
    log_probs = logits.log_softmax(-1)
    if _is_one_row(log_probs):
        choice, score = _one_choice(log_probs)
        return torch.from_numpy(choice), torch.from_numpy(score)
    index, log_prob = _choices(log_probs)
    return index.squeeze(-1), log_prob.squeeze(-1)


def _choices(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Draw choices and their log-probabilities, ``[*B, 1]`` each; refuse NaN."""
    # what torch.multinomial does for one draw, without its checks
    index = log_probs.exp().div_(torch.empty_like(log_probs).exponential_()).argmax(-1, True)
    log_prob = log_probs.gather(-1, index)
    refuse_nan(log_prob)  # log_softmax spreads a NaN over its row
    return index, log_prob


def _is_one_row(log_probs: Tensor) -> bool:
    """Whether log-probabilities are those of one environment, a few numbers on the CPU."""
    return log_probs.ndim == 1 and log_probs.numel() <= FEW and can_read(log_probs)


def _one_choice(log_probs: Tensor) -> tuple[Array, Array]:
    """Draw as `_choices`: a choice and its log-probability, as arrays without dimensions.

    Between the steps of an environment an operation of torch takes several times that of numpy.
    """
    chances, noise = log_probs.exp(), torch.empty_like(log_probs).exponential_()
    choice = np.array((chances.numpy() / noise.numpy()).argmax())
    score = log_probs.numpy()[choice, ...]
    if isnan(score.item()):
        refuse_nan(torch.from_numpy(score))
    return choice, score


def draw_normal(loc: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Draw as `IndependentNormal`: ``[*B, k]`` and ``[*B]``."""
    x = torch.addcmul(loc, torch.randn_like(loc), scale)
    # the density of the returned x, which is rounded; the noise is not
    z = x.sub(loc).div_(scale)
    surprise = torch.addcmul(scale.log(), z, z, value=0.5)
    return x, _log_density(surprise, HALF_LOG_2PI)


def draw_tanh_normal(loc: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Draw as a `TanhNormal` between -1 and 1: ``[*B, k]`` and ``[*B]``."""
    u, surprise = _before_tanh(loc, scale)
    return u.tanh(), _log_density(surprise, HALF_LOG_2PI + 2 * LOG_2)


def draw_bounded(
    loc: Tensor, scale: Tensor, low: Tensor | float, high: Tensor | float
) -> tuple[Tensor, Tensor]:
    """Draw as a `TanhNormal` between any bounds: ``[*B, k]`` and ``[*B]``."""
    low, high = placed(low, loc), placed(high, loc)
    half = (high - low) / 2
    u, surprise = _before_tanh(loc, scale)
    # the sum may round past a bound
    x = (low + half * (1 + u.tanh())).clamp(low, high)
    return x, _log_density(surprise + half.log(), HALF_LOG_2PI + 2 * LOG_2)


def _before_tanh(loc: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The argument u of tanh, and minus the log-density of each entry, ``[*B, k]`` each."""
    noise = torch.randn_like(loc)
    u = torch.addcmul(loc, noise, scale)
    surprise = torch.addcmul(scale.log(), noise, noise, value=0.5)
    # log (1 - tanh(u)²) = 2 (log 2 - log(exp(u) + exp(-u))); the constant is added by the caller
    return u, surprise.sub_(torch.logaddexp(u, -u), alpha=2)


def _log_density(surprise: Tensor, constant: float) -> Tensor:
    """Log-density ``[*B]`` from the surprise of entries ``[*B, k]`` and a constant per entry."""
    # a scalar tensor on the CPU broadcasts against any device
    total, whole = surprise.sum(-1), -constant * surprise.shape[-1]
    if torch.compiler.is_compiling():
        return torch.rsub(total, whole)
    log_density = _number(whole, total.dtype) - total
    refuse_nan_density(log_density)
    return log_density


@cache
def _places_to(stop: int) -> Array:
    return np.arange(stop)


@cache
def _numbers_to(stop: int, device: torch.device) -> Tensor:
    """A cached count from 0; a comparison with it takes less than zeros and a write."""
    return torch.arange(stop, device=device)


@cache
def _number(value: float, dtype: torch.dtype) -> Tensor:
    """A cached scalar tensor; making a new one costs as much as an operation."""
    return torch.full((), value, dtype=dtype, device="cpu")
