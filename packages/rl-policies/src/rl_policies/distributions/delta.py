"""One point, with certainty."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from rl_policies.distributions.loc_scale import check_event
from rl_tensordict import note_errors


class Delta(Distribution):
    """The parameter itself, and nothing else.

        P(x) = 1 where abs(xᵢ - paramᵢ) ≤ atol + rtol abs(paramᵢ) for every i, else 0

    It is a probability and no density: the log-probability of the point is 0, so that the ratio of
    two of them is 1, where infinities would make it NaN.

    Args:
        param: the point, `[*B, *E]`, any dtype.
        atol: absolute tolerance.
        rtol: relative tolerance.
        event_dims: how many trailing dimensions are one event.
        validate_args: look for NaN, and check the shape of values given to `log_prob`. This waits
            for the device.

    Raises:
        TypeError: the parameter is no tensor.
        ValueError: it has fewer dimensions than an event, or holds NaN and `validate_args` is set.

    Example:
        >>> dist = Delta(torch.tensor([[1.0, 2.0]]))
        >>> dist.sample(), dist.log_prob(dist.mode), dist.log_prob(torch.zeros(1, 2))
        (tensor([[1., 2.]]), tensor([0.]), tensor([-inf]))
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real
    has_rsample = True

    def __init__(
        self,
        param: Tensor,
        atol: float = 1e-6,
        rtol: float = 1e-6,
        event_dims: int = 1,
        validate_args: bool = False,
    ) -> None:
        _check(param, event_dims, validate_args)
        self.param, self.atol, self.rtol = param, atol, rtol
        cut = param.ndim - event_dims
        # what Distribution.__init__ would set, in a tenth of the time
        self._batch_shape, self._event_shape = param.shape[:cut], param.shape[cut:]
        self._validate_args = validate_args

    @property
    def mean(self) -> Tensor:
        """The point: `[*B, *E]`."""
        return self.param

    mode = median = deterministic_sample = mean

    @property
    def variance(self) -> Tensor:
        """Zeros: `[*B, *E]`."""
        return torch.zeros_like(self.param)

    @note_errors
    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Repeat the point, without gradient.

        Args:
            sample_shape: how many for each row.

        Returns:
            `[*sample_shape, *B, *E]`.
        """
        return self.rsample(sample_shape).detach()

    @note_errors
    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Repeat the point, with its gradient.

        Args:
            sample_shape: how many for each row.

        Returns:
            `[*sample_shape, *B, *E]`.
        """
        return self.param.expand(self._extended_shape(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of values: 0 at the point, -inf elsewhere.

        Args:
            value: `[*S, *B, *E]`.

        Returns:
            Floats `[*S, *B]`, without gradient.

        Raises:
            ValueError: the value does not end in the shape of the event.
        """
        size = self.event_shape
        check_event(value, size)
        if self.param.is_floating_point():
            near = value.to(self.param.dtype)
            there = torch.isclose(near, self.param, rtol=self.rtol, atol=self.atol)
        else:
            there = value == self.param
        there = there.flatten(there.ndim - len(size)).all(-1) if size else there
        dtype = value.dtype if value.is_floating_point() else torch.get_default_dtype()
        return torch.where(there, 0.0, -torch.inf).to(dtype)

    def entropy(self) -> Tensor:
        """Entropy 0, in nats: floats `[*B]`."""
        dtype = self.param.dtype if self.param.is_floating_point() else None
        return torch.zeros(self.batch_shape, dtype=dtype, device=self.param.device)

    @note_errors
    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        """Repeat the rows.

        Args:
            batch_shape: the new shape of the batch.

        Returns:
            A distribution that shares the point.
        """
        new = type(self).__new__(type(self)) if _instance is None else _instance
        new.__dict__.update(self.__dict__)
        new.param = self.param.expand((*batch_shape, *self.event_shape))
        new._batch_shape = torch.Size(batch_shape)
        return new


def _check(param: Any, event_dims: int, validate_args: bool) -> None:
    if not isinstance(param, Tensor):
        msg = f"param must be a tensor: got {type(param).__name__}"
        raise TypeError(msg)
    shape = tuple(param.shape)
    if not isinstance(event_dims, int) or not 0 <= event_dims <= param.ndim:
        msg = f"event_dims must be 0 to {param.ndim} for param {shape}: got {event_dims}"
        raise ValueError(msg)
    if validate_args and bool(param.isnan().any()):
        count = int(param.isnan().sum())
        msg = f"param {shape} holds {count} NaN: look at the network that computed it"
        raise ValueError(msg)
