"""One of n choices as a number, some of them not allowed."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributions import Categorical

from rl_policies.distributions.one_hot import OneHotCategorical


class MaskedCategorical(Categorical):
    """Numbers of choices, of which a mask allows some.

        pᵢ = exp(lᵢ) mᵢ / Σⱼ exp(lⱼ) mⱼ

    What is not allowed is never drawn, has the log-probability -inf, and adds nothing to the
    entropy and its gradient. Where choices are vectors, `OneHotCategorical` takes a mask.

    Args:
        logits: floats `[*B, n]`, not necessarily normalised.
        probs: floats `[*B, n]`, not negative; instead of `logits`.
        mask: bool, broadcasts to `[*B, n]`, True where a choice is allowed.
        validate_args: look for NaN, negative probabilities and rows without a choice, and check
            the values given to `log_prob`. This waits for the device.

    Raises:
        ValueError: both or none of `logits` and `probs` are given, or they do not hold a
            distribution and `validate_args` is set.
        TypeError: they are no floats, or the mask is not bool.

    Example:
        >>> import torch
        >>> mask = torch.tensor([True, False, True])
        >>> dist = MaskedCategorical(torch.zeros(3), mask=mask)
        >>> dist.probs, dist.log_prob(torch.tensor(1))
        (tensor([0.5000, 0.0000, 0.5000]), tensor(-inf))
    """

    def __init__(
        self,
        logits: Tensor | None = None,
        probs: Tensor | None = None,
        *,
        mask: Tensor,
        validate_args: bool = False,
    ) -> None:
        vectors = OneHotCategorical(logits, probs, mask=mask, validate_args=validate_args)
        # they are normalised; torch's checks do not know -inf
        super().__init__(logits=vectors.logits, validate_args=False)
        self._vectors = vectors
        self._validate_args = validate_args

    @property
    def deterministic_sample(self) -> Tensor:
        """The mode: the likeliest choice, int64 `[*B]`."""
        return self.mode

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw choices, from the generator of torch.

        Args:
            sample_shape: how many are drawn for each row.

        Returns:
            int64 `[*sample_shape, *B]`.
        """
        return self._vectors.sample(sample_shape).argmax(-1)

    def entropy(self) -> Tensor:
        """Entropy -Σᵢ pᵢ log pᵢ over what is allowed, in nats: floats `[*B]`."""
        return self._vectors.entropy()

    def expand(self, batch_shape: Any, _instance: Any = None) -> MaskedCategorical:
        """Repeat the rows.

        Args:
            batch_shape: the new shape of the batch.

        Returns:
            A distribution that shares the logits.
        """
        new: Any = type(self).__new__(type(self)) if _instance is None else _instance
        super().expand(batch_shape, new)  # type: ignore[no-untyped-call]
        new._vectors = self._vectors.expand(batch_shape)
        made: MaskedCategorical = new
        return made
