"""The weight of an entropy, learned so that the entropy stays near a target."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from rl_tensordict.arguments import check_flags, check_number
from rl_value.arguments import check_weights


class Temperature(nn.Module):
    """The weight α of an entropy: exp of a parameter, or of a constant if it is fixed."""

    log_alpha: Tensor
    target_entropy: Tensor

    def __init__(
        self,
        alpha_init: float,
        bounds: tuple[float | None, float | None],  # of α; None for none
        fixed: bool,
        target_entropy: float,
    ) -> None:
        super().__init__()
        check_flags(fixed_alpha=fixed)
        low, high = bounds
        known = {"min_alpha": low, "max_alpha": high}
        numbers = {name: bound for name, bound in known.items() if bound is not None}
        numbers["alpha_init"] = alpha_init
        check_weights(**numbers)
        if 0 in numbers.values():
            msg = f"expected alpha_init, min_alpha and max_alpha above 0: got {alpha_init}, {low} "
            raise ValueError(msg + f"and {high}.")
        if low is not None and high is not None and low >= high:
            msg = f"expected min_alpha below max_alpha: got {low} and {high}."
            raise ValueError(msg)
        log_alpha = torch.tensor(math.log(alpha_init), device=None)
        if fixed:
            self.register_buffer("log_alpha", log_alpha)
        else:
            self.log_alpha = nn.Parameter(log_alpha)
        self.fixed = fixed
        self.bounds = tuple(None if one is None else math.log(one) for one in bounds)
        self.register_buffer("target_entropy", torch.tensor(float(target_entropy), device=None))

    @property
    def alpha(self) -> Tensor:
        """The weight, a constant; a parameter beyond the bounds is put back first."""
        if any(bound is not None for bound in self.bounds):
            with torch.no_grad():
                self.log_alpha.clamp_(*self.bounds)
        return self.log_alpha.detach().exp()

    def surplus(self, log_prob: Tensor) -> Tensor:
        """The loss of each step: -log α (log π + target), which raises α below the target."""
        if self.fixed:
            return torch.zeros_like(log_prob)
        return -self.log_alpha * (log_prob.detach() + self.target_entropy)


def entropy_target(given: Any, automatic: float | None, advice: str) -> float:
    """The target entropy: a number, or what ``"auto"`` represents, if that is known."""
    if isinstance(given, Tensor) and given.numel() == 1:
        given = given.item()
    if given != "auto":
        check_number("target_entropy", given)
        if math.isinf(given):
            msg = f"target_entropy: expected a finite number, got {given}."
            raise ValueError(msg)
        return float(given)
    if automatic is None:
        msg = f"target_entropy='auto' is not known: {advice}, or pass a number."
        raise ValueError(msg)
    return automatic
