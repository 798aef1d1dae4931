"""The estimator of returns corrected for another policy's actions."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_layout import refuse_shared_states, set_recurrent_mode
from rl_tensordict import NestedKey
from rl_tensordict.arguments import check_flags
from rl_value.actions import (
    distribution_of,
    log_probability,
    log_probability_key,
    stored_log_probability,
)
from rl_value.arguments import check_bounds, check_fraction
from rl_value.counted_steps import readable, waiting_members
from rl_value.estimators.estimator import ValueEstimator
from rl_value.estimators.transitions import Transitions, ValuedTransitions, finished, standardised
from rl_value.networks import held_out, require_network
from rl_value.returns import vtrace
from rl_value.scan.linear_scan import general_scan


class VTrace(ValueEstimator):
    """Estimates V-trace targets and the advantages of a policy gradient.

    (Espeholt et al., arXiv:1802.01561; see `rl_value.vtrace`.)

    Args:
        gamma: discount in [0, 1].
        actor_network: has ``get_dist``; gives the probability of the stored action now, in one
            call of all rows.
        value_network: writes the values; None reads stored ones.
        lmbda: how far corrections reach, in [0, 1].
        rho_thresh: bound of the weight of a step.
        c_thresh: bound of what is carried from later steps.
        average_adv: standardise the advantages of the steps that count.
        settings: what `ValueEstimator` takes besides.

    Raises:
        ValueError: a factor is outside [0, 1], a bound below 0, the batch has n-step rows, or two
            modules that differ carry their recurrent states under one key.
        KeyError: the action or its stored log-probability is missing.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModule
        >>> from tensordict.nn import ProbabilisticTensorDictSequential as Sequential
        >>> value = TensorDictModule(lambda x: x[:, 1:], ["observation"], ["state_value"])
        >>> even = TensorDictModule(lambda x: torch.zeros(len(x), 3), ["observation"], ["logits"])
        >>> chance = ProbabilisticTensorDictModule(
        ...     ["logits"], ["action"], distribution_class=torch.distributions.Categorical
        ... )
        >>> batch = trajectories([3])
        >>> batch["action"] = batch["action"].squeeze(-1)
        >>> batch["sample_log_prob"] = torch.full((3,), 1 / 3).log()
        >>> estimator = VTrace(
        ...     gamma=0.5, actor_network=Sequential(even, chance), value_network=value
        ... )
        >>> estimator(batch)["value_target"].flatten().tolist()
        [2.75, 3.5, 3.0]
    """

    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        *,
        gamma: float,
        actor_network: TensorDictModuleBase,
        value_network: TensorDictModuleBase | None,
        lmbda: float = 1.0,
        rho_thresh: float = 1.0,
        c_thresh: float = 1.0,
        average_adv: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(gamma=gamma, value_network=value_network, **settings)
        check_fraction("lmbda", lmbda)
        check_bounds(rho_thresh=rho_thresh, c_thresh=c_thresh)
        check_flags(average_adv=average_adv)
        require_network("actor_network", actor_network, "get_dist")
        refuse_shared_states({"actor_network": actor_network, "value_network": value_network})
        self.actor_network = actor_network
        self.lmbda = lmbda
        self.rho_thresh = rho_thresh
        self.c_thresh = c_thresh
        self.average_adv = average_adv
        self.action_key: NestedKey = "action"

    @property
    def in_keys(self) -> list[NestedKey]:
        """What `forward` reads at least: what the networks observe, action, reward and flags."""
        acts = [self.entries["sample_log_prob"], self.action_key, *self.actor_network.in_keys]
        return list(dict.fromkeys([*super().in_keys, *acts]))

    @property
    def optional_keys(self) -> list[NestedKey]:
        """Optional inputs that may be passed as keywords, and the log-probability of the action."""
        return [*super().optional_keys, log_probability_key(self.action_key)]

    def explain_scan(self, steps: Transitions) -> str:
        """Say which scan computes the corrections of steps, and why."""
        return f"{general_scan(steps.reward)}: a factor for each step"

    def estimate(self, valued: ValuedTransitions) -> tuple[Tensor, Tensor]:
        """Compute advantages and targets of steps, ``[M, *G, C]`` each."""
        if valued.steps.ahead is not None:
            msg = "V-trace weighs single actions, and these are n-step rows. Use TDLambdaEstimator."
            raise ValueError(msg)
        advantage, target = vtrace(
            valued.reward,
            valued.value,
            valued.next_value,
            self._log_ratio(valued),
            valued.steps.terminated,
            valued.cut,
            gamma=valued.gamma,
            lmbda=valued.steps.factor("lmbda", self.lmbda),
            rho_thresh=self.rho_thresh,
            c_thresh=self.c_thresh,
            time_dim=0,
        )
        advantage, target = finished(valued, advantage, target)
        if self.average_adv:
            advantage = standardised(advantage, valued.left_out)
        return advantage, target

    def _log_ratio(self, valued: ValuedTransitions) -> Tensor:
        """Compute log π - log μ of each step's action, in the shape of the reward."""
        batch: TensorDictBase = valued.steps.batch
        entry = self.entries["sample_log_prob"]
        actor = self.actor_network
        batch = readable(batch, actor, more=[*actor.out_keys, self.action_key])
        with set_recurrent_mode(True), held_out(actor):
            dist = distribution_of(actor, batch)
        now = log_probability(dist, batch, self.action_key)
        stored = stored_log_probability(dist, batch, self.action_key, entry)
        if now.shape != stored.shape:
            msg = (
                f"{entry!r}: expected {list(now.shape)}, as the actor "
                f"gives it, got {list(stored.shape)}. Store the log-probability of each action."
            )
            raise ValueError(msg)
        apart = now - stored  # [*B, T, *G], or with a last dimension of 1
        waits = waiting_members(batch, self.entries["terminated"])
        if waits is not None and waits.shape == apart.shape:  # an action that was not taken
            apart = apart.masked_fill(waits, 0)
        ratio = valued.steps.segments.gather(apart)
        wide = ratio if ratio.ndim == valued.reward.ndim else ratio.unsqueeze(-1)
        shape = valued.reward.shape
        return torch.broadcast_to(wide.to(valued.reward.dtype), shape)
