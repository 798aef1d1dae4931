"""Controllers of the weight of a penalty on the divergence from a reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rl_tensordict import UnfitValue, as_tensor
from rl_tensordict.arguments import check_number, check_whole, shown


class KLController:
    """Holds the weight of a penalty, and writes it into a model that has one.

    Args:
        coef: the weight.
        model: what has ``kl_coef``, as `RolloutFromModel`; None for none.

    Raises:
        AttributeError: the model has no ``kl_coef``.
        ValueError: the weight is no finite number of 0 or more.

    Example:
        >>> ConstantKLController(kl_coef=0.2).kl_coef
        0.2
    """

    def __init__(self, coef: float, model: Any = None) -> None:
        check_number("kl_coef", coef)
        if not 0 <= coef < math.inf:
            msg = f"kl_coef: expected 0 or more and finite, got {coef}."
            raise UnfitValue(msg)
        if model is not None and not hasattr(model, "kl_coef"):
            msg = (
                f"model: a {type(model).__name__} has no kl_coef. Pass a RolloutFromModel, or None."
            )
            raise AttributeError(msg)
        self.model = model
        self._set(float(coef))

    def _set(self, coef: float) -> None:
        self.kl_coef = coef
        if self.model is not None:
            self.model.kl_coef = coef

    def update(self, kl_values: Sequence[float] | Tensor | None = None) -> float:
        """Take in divergences that were measured.

        Args:
            kl_values: mean divergences, 0 or more as divergences are.

        Returns:
            The weight from now on.
        """
        del kl_values
        return self.kl_coef


class ConstantKLController(KLController):
    """Leaves the weight as it is.

    Args:
        kl_coef: the weight.
        model: what has ``kl_coef``; None for none.

    Raises:
        AttributeError: the model has no ``kl_coef``.
        ValueError: there is no weight, or it is below 0.

    Example:
        >>> ConstantKLController(kl_coef=0.1).update([5.0])
        0.1
    """

    def __init__(self, *, kl_coef: float | None = None, model: Any = None) -> None:
        if kl_coef is None:
            if model is None:
                msg = "kl_coef: expected a number, or a model that has one."
                raise UnfitValue(msg)
            kl_coef = getattr(model, "kl_coef", 0.0)
        super().__init__(kl_coef, model)


class AdaptiveKLController(KLController):
    """Moves the weight until the divergence is at a target.

    With n divergences of mean k, the weight is multiplied by 1 + clip(k / target - 1, ±0.2) n / h.
    (Ziegler et al., arXiv:1909.08593.) Divergences are given as they are, positive and without
    the weight. From n = 5 h on a weight could fall below 0, so fewer are given at once.

    Args:
        init_kl_coef: the weight at first.
        target: the divergence to reach.
        horizon: h, divergences after which the weight has changed by the error.
        model: what has ``kl_coef``; None for none.

    Raises:
        AttributeError: the model has no ``kl_coef``.
        ValueError: a number is out of range.

    Example:
        >>> control = AdaptiveKLController(init_kl_coef=0.1, target=6.0, horizon=10)
        >>> round(control.update([12.0, 12.0]), 4)
        0.104
    """

    def __init__(
        self, *, init_kl_coef: float, target: float, horizon: int, model: Any = None
    ) -> None:
        check_number("target", target)
        check_whole("horizon", horizon, 1)
        if not 0 < target < math.inf:
            msg = f"target: expected a divergence above 0 and finite, got {target}."
            raise UnfitValue(msg)
        self.target, self.horizon = target, horizon
        super().__init__(init_kl_coef, model)

    def update(self, kl_values: Sequence[float] | Tensor | None = None) -> float:
        """Take in divergences that were measured, and move the weight.

        Args:
            kl_values: mean divergences.

        Returns:
            The weight from now on.

        Raises:
            ValueError: there is none, one is not finite, or there are five horizons of them.
            TypeError: they are no numbers.
        """
        try:
            found = as_tensor([] if kl_values is None else kl_values, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError) as reason:
            msg = f"kl_values: expected numbers, got {shown(kl_values)}."
            raise TypeError(msg) from reason
        if found.numel() >= 5 * self.horizon:
            msg = (
                f"kl_values: {found.numel()} divergences at once, and horizon is {self.horizon}: a "
                "weight could fall below 0. Give their mean, or a horizon of more divergences."
            )
            raise UnfitValue(msg)
        if not found.numel() or not bool(found.isfinite().all()):
            msg = f"kl_values: expected finite divergences, got {kl_values!r}."
            raise UnfitValue(msg)
        error = max(-0.2, min(0.2, float(found.mean()) / self.target - 1))
        self._set(self.kl_coef * (1 + error * found.numel() / self.horizon))
        return self.kl_coef
