"""One of n choices, drawn as a vector with a single one."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.kl import register_kl

from rl_policies.distributions.nan_check import refuse_nan
from rl_policies.distributions.sample_cache import SampleCache
from rl_policies.modules.call_notes import require_tensor
from rl_policies.modules.choice_mask import check_mask
from rl_tensordict import note_errors

_HALF = (torch.float16, torch.bfloat16)


class OneHotCategorical(Distribution):
    """Vectors of n entries, one of them 1 and the others 0.

        pᵢ = exp(lᵢ) / Σⱼ exp(lⱼ),    log p(x) = Σᵢ xᵢ log pᵢ

    A choice of probability 0 (a logit of -inf, or masked) is never drawn, and neither the entropy
    nor a gradient becomes NaN for it. NaN logits are refused where one is drawn, on the CPU, unless
    code is compiled or the mode is recurrent, as in losses. `sample` is for acting; `rsample` is
    the straight-through estimator of Bengio et al. (2013): the drawn vector forward, the gradient
    of p backward. It has to be asked for, as `has_rsample` is False.

    Args:
        logits: floats `[*B, n]`, not necessarily normalised.
        probs: floats `[*B, n]`, not negative, not necessarily normalised; instead of `logits`.
        mask: bool, broadcasts to `[*B, n]`, True where a choice is allowed.
        dtype: dtype of what is drawn; that of the spec of the action.
        validate_args: look for NaN, negative probabilities and rows without a choice, and check
            the values given to `log_prob`. This waits for the device.

    Raises:
        ValueError: both or none of `logits` and `probs` are given, they have no dimension, the
            mask is of another shape, or they do not hold a distribution and `validate_args` is set.
        TypeError: they are no floats, or the mask is not bool.

    Example:
        >>> dist = OneHotCategorical(torch.tensor([0.0, -torch.inf, 0.0]))
        >>> dist.probs, dist.log_prob(torch.tensor([1, 0, 0]))
        (tensor([0.5000, 0.0000, 0.5000]), tensor(-0.6931))
    """

    arg_constraints: ClassVar[dict[str, Any]] = {"logits": constraints.real_vector}
    support = constraints.one_hot
    has_rsample = False
    has_enumerate_support = True
    _drawn: SampleCache | None
    _mask: Tensor | None = None  # pickles of earlier versions hold none

    def __init__(
        self,
        logits: Tensor | None = None,
        probs: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        dtype: torch.dtype = torch.int64,
        validate_args: bool = False,
    ) -> None:
        if (logits is None) == (probs is None):
            msg = "give either logits or probs: got " + ("none" if logits is None else "both")
            raise ValueError(msg)
        _check_given(probs if logits is None else logits, mask)
        if validate_args:
            _check_values(logits, probs, mask)
        # computed here and not when first read, which may be where no gradient is kept
        if logits is not None:
            self.logits = _log_softmax(logits, mask)
        elif probs is not None:
            self.logits = _log(probs, mask)
        self.dtype = dtype
        self._mask, self._drawn = mask, None
        shape = self.logits.shape
        # what Distribution.__init__ would set, in a tenth of the time
        self._batch_shape, self._event_shape = shape[:-1], shape[-1:]
        self._validate_args = validate_args

    @property
    def probs(self) -> Tensor:
        """Probability of each choice: floats `[*B, n]`."""
        return self.logits.exp()

    @property
    def param_shape(self) -> torch.Size:
        """Shape of the logits: `[*B, n]`."""
        return self.logits.shape

    @property
    def mode(self) -> Tensor:
        """The likeliest choice, the first where several are: `[*B, n]` in the dtype drawn."""
        logits = self.logits.detach()
        refuse_nan(logits, self._mask)
        return self._vectors(logits.argmax(-1, keepdim=True), logits)

    @property
    def deterministic_sample(self) -> Tensor:
        """The mode."""
        return self.mode

    @property
    def mean(self) -> Tensor:
        """The probabilities: floats `[*B, n]`."""
        return self.probs

    @property
    def variance(self) -> Tensor:
        """Variance of each entry, p (1 - p): floats `[*B, n]`."""
        probs = self.probs
        return probs * (1 - probs)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw vectors, from the generator of torch.

        With q exponential of rate 1, argmax pᵢ / qᵢ is i with probability pᵢ.

        Args:
            sample_shape: how many are drawn for each row.

        Returns:
            `[*sample_shape, *B, n]`, in the dtype given at the start, without gradient.

        Raises:
            RuntimeError: logits on the CPU hold NaN, unless the mode is recurrent.

        Example:
            >>> OneHotCategorical(torch.zeros(2, 3)).sample((5,)).sum(-1).unique()
            tensor([1])
        """
        probs = self.logits.detach().exp()
        refuse_nan(probs, self._mask)
        if probs.dtype in _HALF:  # it would make ties
            probs = probs.float()
        if sample_shape:
            probs = probs.expand(self._extended_shape(sample_shape))
        noise = torch.empty_like(probs).exponential_()
        return self._vectors((probs / noise).argmax(-1, True), probs)

    @note_errors
    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw vectors whose gradient is that of the probabilities.

        Args:
            sample_shape: how many are drawn for each row.

        Returns:
            Floats `[*sample_shape, *B, n]`.
        """
        probs = self.probs
        return self.sample(sample_shape).to(probs.dtype) + (probs - probs.detach())

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of vectors.

        Args:
            value: one-hot, any dtype, `[*S, *B, n]`.

        Returns:
            Floats `[*S, *B]`.

        Raises:
            ValueError: the last size is not n.

        Example:
            >>> OneHotCategorical(torch.zeros(3, 4)).log_prob(torch.eye(4)[:3]).shape
            torch.Size([3])
        """
        logits, drawn = self.logits, self._drawn
        index = drawn.origin if drawn and drawn.holds(value) else self._places(value)
        if index.ndim != logits.ndim or index.shape[:-1] != logits.shape[:-1]:
            rows = torch.broadcast_shapes(index.shape[:-1], logits.shape[:-1])
            index, logits = index.expand(*rows, 1), logits.expand(*rows, -1)
        return logits.gather(-1, index).squeeze(-1)

    def _places(self, value: Tensor) -> Tensor:
        """Write vectors as positions `[*S, *B, 1]`."""
        require_tensor(value, "one-hot vectors")
        if value.shape[-1:] != self.event_shape:
            msg = (
                f"expected one-hot vectors of {self.event_shape[0]} entries: got shape "
                f"{tuple(value.shape)}. Numbers of choices are for torch's Categorical."
            )
            raise ValueError(msg)
        if self._validate_args:
            self._validate_sample(value)
        # argmax knows no bool
        entries = value.to(torch.uint8) if value.dtype == torch.bool else value
        return entries.argmax(-1, keepdim=True)

    def entropy(self) -> Tensor:
        """Entropy -Σᵢ pᵢ log pᵢ, in nats: floats `[*B]`."""
        # 0 times -inf would be NaN
        finite = self.logits.clamp(min=torch.finfo(self.logits.dtype).min)
        return -(self.logits.exp() * finite).sum(-1)

    @note_errors
    def enumerate_support(self, expand: bool = True) -> Tensor:
        """List the vectors.

        Args:
            expand: repeat them for each row.

        Returns:
            `[n, *B, n]` in the dtype drawn; `[n, 1, ..., n]` without `expand`.
        """
        n = self.logits.shape[-1]
        eye = torch.eye(n, dtype=self.dtype, device=self.logits.device)
        eye = eye.view(n, *(1,) * len(self.batch_shape), n)
        return eye.expand(n, *self.batch_shape, n) if expand else eye

    @note_errors
    def expand(self, batch_shape: Any, _instance: Any = None) -> OneHotCategorical:
        """Repeat the rows.

        Args:
            batch_shape: the new shape of the batch.

        Returns:
            A distribution that shares the logits.
        """
        new = type(self).__new__(type(self)) if _instance is None else _instance
        new.logits = self.logits.expand(*batch_shape, -1)
        new.dtype, new._mask, new._drawn = self.dtype, self._mask, None
        new._batch_shape, new._event_shape = new.logits.shape[:-1], self._event_shape
        new._validate_args = self._validate_args
        return new

    def _vectors(self, index: Tensor, like: Tensor) -> Tensor:
        """Write positions `[*S, *B, 1]` as vectors `[*S, *B, n]`, and remember which they are."""
        out = torch.zeros_like(like, dtype=self.dtype).scatter_(-1, index, 1)
        self._drawn = SampleCache(out, index)
        return out


def _log_softmax(logits: Tensor, mask: Tensor | None) -> Tensor:
    return (logits if mask is None else logits.masked_fill(~mask, -torch.inf)).log_softmax(-1)


def _log(probs: Tensor, mask: Tensor | None) -> Tensor:
    probs = probs if mask is None else probs.masked_fill(~mask, 0.0)
    there = probs > 0
    # the inner replacement keeps the gradient of log at 0 out
    logs = torch.where(there, probs, 1.0).log() - probs.sum(-1, keepdim=True).log()
    return torch.where(there, logs, -torch.inf)


def _check_given(given: Any, mask: Tensor | None) -> None:
    if not isinstance(given, Tensor) or not given.is_floating_point():
        came = given.dtype if isinstance(given, Tensor) else type(given).__name__
        msg = f"logits and probs must be floating-point tensors: got {came}"
        raise TypeError(msg)
    if given.ndim == 0:
        msg = "logits and probs must end in a dimension of choices: got a scalar"
        raise ValueError(msg)
    if mask is not None:
        check_mask(mask, given.shape, wider=True)


def _check_values(logits: Tensor | None, probs: Tensor | None, mask: Tensor | None) -> None:
    name, scores = ("logits", logits) if logits is not None else ("probs", probs)
    assert scores is not None
    wrong = scores.isnan() | (scores == torch.inf) | (scores < 0 if logits is None else False)
    if bool(wrong.any()):
        rule = "not NaN, not inf" + (" and not negative" if logits is None else "")
        msg = (
            f"{name} of shape {tuple(scores.shape)} must be {rule}: {int(wrong.sum())} of "
            f"{scores.numel()} entries are not. Look at the network that computed them."
        )
        raise ValueError(msg)
    possible = scores > (-torch.inf if probs is None else 0)
    empty = ~(possible if mask is None else possible & mask).any(-1)
    if bool(empty.any()):
        msg = f"{int(empty.sum())} of {empty.numel()} rows of {name} leave no choice: mend the mask"
        raise ValueError(msg)


def divergence_of_choices(p: Any, q: Any) -> Tensor:
    """Kullback and Leibler's divergence, to which choices that p forbids add nothing."""
    never = p.logits == -torch.inf  # q may forbid them as well
    gap = p.logits.masked_fill(never, 0) - q.logits.masked_fill(never, 0)
    return torch.where(gap == torch.inf, gap, p.probs * gap).sum(-1)


register_kl(OneHotCategorical, OneHotCategorical)(divergence_of_choices)
