"""One of n choices, some of them not allowed: as a number, or as a vector with a single one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical
from torch.distributions.kl import register_kl

from rl_policies.distributions.one_hot import OneHotCategorical, divergence_of_choices
from rl_policies.modules.choice_mask import require_mask
from rl_tensordict import note_errors


class MaskedCategorical(Categorical):
    """Numbers of choices, of which a mask allows some.

        pᵢ = exp(lᵢ) mᵢ / Σⱼ exp(lⱼ) mⱼ

    What is not allowed is never drawn, has the log-probability -inf, and adds nothing to the
    entropy and its gradient. Where choices are vectors it is `MaskedOneHotCategorical`.

    Args:
        logits: floats `[*B, n]`, not necessarily normalised.
        probs: floats `[*B, n]`, not negative; instead of `logits`.
        mask: bool, broadcasts to `[*B, n]`, True where a choice is allowed.
        validate_args: look for NaN, negative probabilities and rows without a choice, and check
            the values given to `log_prob`. This waits for the device.

    Raises:
        ValueError: both or none of `logits` and `probs` are given, the mask is of another shape,
            or they do not hold a distribution and `validate_args` is set.
        TypeError: they are no floats, or the mask is not bool.

    Example:
        >>> mask = torch.tensor([True, False, True])
        >>> dist = MaskedCategorical(torch.zeros(3), mask=mask)
        >>> dist.probs, dist.log_prob(torch.tensor(1))
        (tensor([0.5000, 0.0000, 0.5000]), tensor(-inf))
    """

    @note_errors
    def __init__(
        self,
        logits: Tensor | None = None,
        probs: Tensor | None = None,
        *,
        mask: Tensor,
        validate_args: bool = False,
    ) -> None:
        require_mask(mask)
        vectors = OneHotCategorical(logits, probs, mask=mask, validate_args=validate_args)
        # they are normalised; torch's checks do not know -inf
        super().__init__(logits=vectors.logits, validate_args=False)
        self._vectors = vectors
        self._validate_args = validate_args

    @property
    def mode(self) -> Tensor:
        """The likeliest choice that is allowed, the first where several are: int64 `[*B]`."""
        return self._vectors.mode.argmax(-1)

    @property
    def deterministic_sample(self) -> Tensor:
        """The mode: the likeliest choice, int64 `[*B]`."""
        return self.mode

    @note_errors
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

    @note_errors
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
        expanded: MaskedCategorical = new
        return expanded


class MaskedOneHotCategorical(OneHotCategorical):
    """Vectors with a single one, in places that a mask allows.

    It is a `OneHotCategorical` that cannot be made without its mask.

    Args:
        logits: floats `[*B, n]`, not necessarily normalised.
        probs: floats `[*B, n]`, not negative; instead of `logits`.
        mask: bool, broadcasts to `[*B, n]`, True where a choice is allowed.
        dtype: dtype of what is drawn; that of the spec of the action.
        validate_args: look for NaN, negative probabilities and rows without a choice, and check
            the values given to `log_prob`. This waits for the device.

    Raises:
        ValueError: both or none of `logits` and `probs` are given, the mask is of another shape,
            or they do not hold a distribution and `validate_args` is set.
        TypeError: they are no floats, or the mask is not bool.

    Example:
        >>> mask = torch.tensor([True, False, True])
        >>> dist = MaskedOneHotCategorical(torch.zeros(3), mask=mask)
        >>> dist.log_prob(torch.eye(3))
        tensor([-0.6931,    -inf, -0.6931])
    """

    @note_errors
    def __init__(
        self,
        logits: Tensor | None = None,
        probs: Tensor | None = None,
        *,
        mask: Tensor,
        dtype: torch.dtype = torch.int64,
        validate_args: bool = False,
    ) -> None:
        require_mask(mask)
        super().__init__(logits, probs, mask=mask, dtype=dtype, validate_args=validate_args)


register_kl(MaskedCategorical, Categorical)(divergence_of_choices)
