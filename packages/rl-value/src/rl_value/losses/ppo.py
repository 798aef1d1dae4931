"""Proximal policy optimisation."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torch.distributions import Distribution

from rl_tensordict import NestedKey, as_tuple, find
from rl_tensordict.arguments import check_flags, check_whole
from rl_value.actions import divergence, stored_log_probability
from rl_value.arguments import check_weights, floats
from rl_value.losses.actor_critic import ActorCriticLoss
from rl_value.masked_means import (
    effective_sample_size,
    kept,
    ratio_statistics,
    reduce,
    standardise,
)


class PPOLoss(ActorCriticLoss):
    """The surrogate that proximal methods start from: -E[w A], w = π(a|s) / μ(a|s).

    Written are ``loss_objective``, ``loss_critic`` and ``loss_entropy``, to be added up, and
    ``entropy``, ``kl_approx`` and ``explained_variance``. Where the batch has no advantages, the
    value estimator writes them. (Schulman et al., arXiv:1707.06347.)

    Args:
        actor_network: has ``get_dist``, the distribution of actions now.
        critic_network: writes ``"state_value"``.
        normalize_advantage: shift and scale advantages over the steps that count.
        normalize_advantage_exclude_dims: dimensions along which each slice is scaled for itself.
        settings: what `ActorCriticLoss` takes besides.

    Raises:
        TypeError: no actor is given, or an argument belongs elsewhere.
        ValueError: a setting is unknown or out of range.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModule
        >>> from tensordict.nn import ProbabilisticTensorDictSequential as Sequential
        >>> actor = Sequential(
        ...     TensorDictModule(torch.nn.Linear(2, 3), ["observation"], ["logits"]),
        ...     ProbabilisticTensorDictModule(
        ...         ["logits"], ["action"], distribution_class=torch.distributions.Categorical
        ...     ),
        ... )
        >>> critic = TensorDictModule(torch.nn.Linear(2, 1), ["observation"], ["state_value"])
        >>> batch = trajectories([3, 4])
        >>> batch["action"] = batch["action"].squeeze(-1)
        >>> batch["sample_log_prob"] = torch.full((7,), 1 / 3).log()
        >>> losses = PPOLoss(actor, critic)(batch)
        >>> sorted(key for key in losses.keys() if key.startswith("loss_"))
        ['loss_critic', 'loss_entropy', 'loss_objective']
    """

    # what the objective reports: names that follow it, and names that follow all losses
    first_reported: tuple[NestedKey, ...] = ()
    last_reported: tuple[NestedKey, ...] = ()

    def __init__(
        self,
        actor_network: TensorDictModuleBase | None = None,
        critic_network: TensorDictModuleBase | None = None,
        *,
        normalize_advantage: bool = False,
        normalize_advantage_exclude_dims: tuple[int, ...] = (),
        **settings: Any,
    ) -> None:
        super().__init__(actor_network, critic_network, **settings)
        check_flags(normalize_advantage=normalize_advantage)
        self.normalize_advantage = normalize_advantage
        given: object = normalize_advantage_exclude_dims
        if not isinstance(given, tuple | list) or not all(isinstance(dim, int) for dim in given):
            msg = (
                f"normalize_advantage_exclude_dims: expected numbers of dimensions, got {given!r}."
            )
            raise TypeError(msg)
        self.normalize_advantage_exclude_dims = tuple(normalize_advantage_exclude_dims)

    @property
    def outputs(self) -> list[NestedKey]:
        """What `forward` gives when it is called by arguments."""
        clipped: list[NestedKey] = [] if self.clip_value is None else ["value_clip_fraction"]
        own, critic = [*self.first_reported, *self._entropy_keys()], self._critic_keys()
        return ["loss_objective", *own, *critic, *clipped, *self.last_reported]

    def _log_probability_keys(self) -> list[NestedKey]:
        return [self.entries["sample_log_prob"]]

    def _before(self, batch: TensorDictBase, dist: Distribution, shape: torch.Size) -> Tensor:
        entry = self.entries["sample_log_prob"]
        before = stored_log_probability(dist, batch, self.entries["action"], entry)
        if before.shape != shape:
            msg = (
                f"{entry!r}: expected {list(shape)}, as the actor gives it, got "
                f"{list(before.shape)}. A log-probability has no dimension of size 1 after."
            )
            raise ValueError(msg)
        return before

    def _scaled(self, advantage: Tensor, counted: Tensor | None) -> Tensor:
        if self.normalize_advantage:
            return standardise(advantage, counted, self.normalize_advantage_exclude_dims)
        return super()._scaled(advantage, counted)

    def _policy_objective(
        self, log_weight: Tensor, advantage: Tensor, counted: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        reported = {"kl_approx": -reduce(log_weight.detach(), counted)}
        return log_weight.exp() * advantage, reported


class ClipPPOLoss(PPOLoss):
    """Proximal policy optimisation with a clipped ratio.

    -E[min(w A, clip(w, 1 - ε, 1 + ε) A)]. In addition to what `PPOLoss` writes there are
    ``clip_fraction``, ``ESS``, the effective sample size as a share of the steps, and
    ``max_ratio`` and ``mean_ratio`` of the weights w.
    (Schulman et al., arXiv:1707.06347.)

    Args:
        actor_network: has ``get_dist``, the distribution of actions now.
        critic_network: writes ``"state_value"``.
        clip_epsilon: ε, or two of them, below and above 1; an annealed one is set anew.
        clip_value: how far the value may move from the stored one; True for ε.
        settings: what `PPOLoss` takes besides.

    Raises:
        ValueError: an ε is negative, the lower one is 1 or more, or there are not two.

    Example:
        >>> ClipPPOLoss.__mro__[1].__name__
        'PPOLoss'
    """

    first_reported = ("clip_fraction",)
    last_reported = ("ESS", "kl_approx", "max_ratio", "mean_ratio")

    def __init__(
        self,
        actor_network: TensorDictModuleBase | None = None,
        critic_network: TensorDictModuleBase | None = None,
        *,
        clip_epsilon: float | tuple[float, float] = 0.2,
        clip_value: float | bool | None = None,
        **settings: Any,
    ) -> None:
        _, high = clip_range(clip_epsilon)
        bound = (high if clip_value else None) if isinstance(clip_value, bool) else clip_value
        super().__init__(actor_network, critic_network, clip_value=bound, **settings)
        self.clip_epsilon = clip_epsilon

    def _policy_objective(
        self, log_weight: Tensor, advantage: Tensor, counted: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return clipped_gain(log_weight, advantage, self.clip_epsilon, counted)


class KLPENPPOLoss(PPOLoss):
    """Proximal policy optimisation with a penalty on the divergence, whose weight adapts.

    -E[w A] + β E[KL(μ, π)]. After each call, β is multiplied by `increment` where the divergence
    is above 1.5 times `dtarg`, and by `decrement` if it is below `dtarg` / 1.5. Alongside what
    `PPOLoss` writes there are ``kl`` and ``beta``. The batch must hold the parameters of the
    distribution that acted. (Schulman et al., arXiv:1707.06347, section 4.)

    Args:
        actor_network: a `ProbabilisticTensorDictSequential`.
        critic_network: writes ``"state_value"``.
        dtarg: the divergence that is wanted.
        beta: the first weight.
        increment: at least 1.
        decrement: at most 1.
        samples_mc_kl: actions to draw where a divergence has no formula.
        settings: what `PPOLoss` takes besides.

    Raises:
        ValueError: `increment` is below 1, or `decrement` above, or a number is infinite
            or negative.

    Example:
        >>> KLPENPPOLoss.__mro__[1].__name__
        'PPOLoss'
    """

    first_reported = ("kl",)
    beta: Tensor

    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        actor_network: TensorDictModuleBase | None = None,
        critic_network: TensorDictModuleBase | None = None,
        *,
        dtarg: float = 0.01,
        beta: float = 1.0,
        increment: float = 2.0,
        decrement: float = 0.5,
        samples_mc_kl: int = 1,
        **settings: Any,
    ) -> None:
        check_weights(dtarg=dtarg, beta=beta, increment=increment, decrement=decrement)
        check_whole("samples_mc_kl", samples_mc_kl, 1)
        if increment < 1 or decrement > 1:
            msg = f"expected increment >= 1 and decrement <= 1: got {increment} and {decrement}."
            raise ValueError(msg)
        super().__init__(actor_network, critic_network, **settings)
        self.dtarg = dtarg
        self.increment = increment
        self.decrement = decrement
        self.samples_mc_kl = samples_mc_kl
        self._first_beta = beta
        self.register_buffer("beta", torch.tensor(float(beta), device=None))

    @property
    def in_keys(self) -> list[NestedKey]:
        """What `forward` reads, the parameters of the distribution that acted among it."""
        return list(dict.fromkeys([*super().in_keys, *self.actor_network[-1].in_keys]))

    def reset(self) -> None:
        """Give β its first value again."""
        self.beta.fill_(self._first_beta)

    def _stored(self) -> list[NestedKey]:
        """Parameters of the distribution that acted, besides."""
        return [*super()._stored(), *self.actor_network[-1].in_keys]

    def _actor_terms(
        self, batch: TensorDictBase, dist: Distribution, advantage: Tensor, counted: Tensor | None
    ) -> dict[str, Tensor]:
        """Add β KL to the objective, and adapt β."""
        found = super()._actor_terms(batch, dist, advantage, counted)
        needed = self.actor_network[-1].in_keys
        names = [key for key in needed if find(batch, as_tuple(key)) is None]
        if names:
            msg = (
                f"{names[0]!r} is missing: the divergence is from the distribution that acted. "
                "Store its parameters with the actions."
            )
            raise KeyError(msg)
        for key in needed:
            floats(batch.get(key), key)
        before = self.actor_network.build_dist_from_params(batch.detach())
        apart = divergence(before, dist, batch, self.samples_mc_kl).unsqueeze(-1)
        apart = kept(apart, counted)
        mean = reduce(apart, counted).detach()
        weight = self.beta.clone()
        found["loss_objective"] = found["loss_objective"] + weight * self._reduce(apart, counted)
        found["kl"], found["beta"] = mean, weight
        with torch.no_grad():
            factor = torch.ones_like(weight)
            factor = torch.where(mean > 1.5 * self.dtarg, self.increment, factor)
            factor = torch.where(mean < self.dtarg / 1.5, self.decrement, factor)
            if counted is not None:  # no step says nothing of the divergence
                factor = torch.where(counted.any(), factor, 1)
            self.beta.mul_(factor)
        return found


def clipped_gain(
    log_weight: Tensor, advantage: Tensor, clip_epsilon: Any, counted: Tensor | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped objective of each step, and what is reported of its weights."""
    low, high = clip_range(clip_epsilon)
    ratio = log_weight.exp()
    clipped = ratio.clamp(1 - low, 1 + high)
    outside = (clipped != ratio).to(ratio.dtype)
    reported = {
        "clip_fraction": reduce(outside, counted),
        "ESS": effective_sample_size(log_weight.detach(), counted),
        **ratio_statistics(ratio.detach(), counted),
        "kl_approx": -reduce(log_weight.detach(), counted),
    }
    return torch.min(ratio * advantage, clipped * advantage), reported


def clip_range(given: Any) -> tuple[float, float]:
    """How far a ratio may go below and above 1."""
    pair = tuple(given) if isinstance(given, tuple | list) else (given, given)
    numbers = len(pair) == 2 and all(isinstance(epsilon, Real) for epsilon in pair)
    if not numbers or not (pair[0] >= 0 and pair[1] >= 0 and pair[0] < 1):
        msg = f"clip_epsilon: expected a number in [0, 1), or one below and one above: got {given}."
        raise ValueError(msg)
    return pair[0], pair[1]
