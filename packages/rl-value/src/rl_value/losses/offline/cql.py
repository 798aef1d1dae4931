"""Conservative Q-learning."""

from __future__ import annotations

import math
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from rl_tensordict import NestedKey, copied, require
from rl_tensordict.arguments import check_flags, check_number, check_whole
from rl_value.actions import of_action
from rl_value.arguments import check_weights
from rl_value.losses.bootstrapped.action_space import uniform_actions
from rl_value.losses.bootstrapped.policy import drawn
from rl_value.losses.bootstrapped.targets import Targets
from rl_value.losses.dqn import DQNLoss, mask_key_of, stored_index
from rl_value.losses.off_policy.sac import SACLoss
from rl_value.masked_means import kept, reduce
from rl_value.networks import noted


class CQLLoss(SACLoss):
    """Soft actor-critic whose critics are held down where no action is stored (CQL).

        loss_cql   Σᵢ w (t log Σ_b exp(Qᵢ(s, b) / t) - Qᵢ(s, a)),    t temperature, w min_q_weight

    The sum over all actions b is estimated from `num_random` uniform actions and as many of the
    actor, each divided by its density. Everything else is as in `SACLoss`; ``loss_cql`` is to be
    added up too, and with `with_lagrange` ``loss_alpha_prime``, which learns a factor of
    ``loss_cql`` so that it stays near `lagrange_thresh`. (Kumar et al., arXiv:2006.04779.)

    Args:
        actor_network: has ``get_dist``, whose samples have gradients.
        qvalue_network: as `SACLoss` takes it.
        temperature: t.
        min_q_weight: w.
        max_q_backup: targets are the largest of the values of 10 next actions.
        deterministic_backup: targets have no entropy in them.
        num_random: actions of each kind for each step.
        with_lagrange: learn a factor of ``loss_cql``.
        lagrange_thresh: the value at which the factor holds it.
        settings: what `SACLoss` takes besides; the spec of the action has finite bounds.

    Raises:
        ValueError: as `SACLoss`, and if there are no bounds of actions.
        TypeError: a network is no tensordict module, or an argument belongs elsewhere.

    Example:
        >>> from rl_value import CQLLoss, SACLoss
        >>> issubclass(CQLLoss, SACLoss)
        True
    """

    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        actor_network: TensorDictModuleBase,
        qvalue_network: Any,
        *,
        temperature: float = 1.0,
        min_q_weight: float = 1.0,
        max_q_backup: bool = False,
        deterministic_backup: bool = True,
        num_random: int = 10,
        with_lagrange: bool = False,
        lagrange_thresh: float = 0.0,
        **settings: Any,
    ) -> None:
        super().__init__(actor_network, qvalue_network, **settings)
        check_weights(temperature=temperature, min_q_weight=min_q_weight)
        check_number("lagrange_thresh", lagrange_thresh)
        if temperature == 0 or math.isinf(lagrange_thresh):
            msg = "expected a temperature above 0 and a finite lagrange_thresh: got "
            raise ValueError(msg + f"{temperature} and {lagrange_thresh}.")
        check_flags(max_q_backup=max_q_backup, with_lagrange=with_lagrange)
        check_flags(deterministic_backup=deterministic_backup)
        check_whole("num_random", num_random, 1)
        if self.bounds is None:
            msg = "random actions need bounds: pass action_spec=, with least and greatest actions."
            raise ValueError(msg)
        self.softness, self.min_q_weight = temperature, min_q_weight
        self.max_q_backup, self.deterministic_backup = max_q_backup, deterministic_backup
        self.num_random = num_random
        self.with_lagrange, self.lagrange_thresh = with_lagrange, lagrange_thresh
        self.log_alpha_prime = nn.Parameter(torch.zeros((), device=None)) if with_lagrange else None

    @property
    def outputs(self) -> list[NestedKey]:
        """What `forward` gives when it is called by arguments."""
        learned: list[NestedKey] = ["loss_alpha_prime", "alpha_prime"]
        return [*super().outputs, "loss_cql", *(learned if self.with_lagrange else [])]

    def _state_value(self, rows: TensorDictBase) -> Tensor:
        """The value of states, by default without entropy."""
        if self.max_q_backup:
            action, _ = drawn(self._next_actor, rows, (10,))
            values = self._judged_many(self._next_critics, rows, action)
            return values.amax(0).amin(-2)
        if not self.deterministic_backup:
            return super()._state_value(rows)
        action, _ = drawn(self._next_actor, rows)
        return self._of_next(self._judged(self._next_critics, rows, action))

    def _terms(
        self, batch: TensorDictBase, seen: TensorDictBase, targets: Targets, counted: Tensor | None
    ) -> dict[str, Tensor]:
        found = super()._terms(batch, seen, targets, counted)
        with torch.no_grad():
            own, own_density = drawn(self.actor_network, seen, (self.num_random,))
            assert self.bounds is not None  # looked at when it was made
            even, density = uniform_actions(self.bounds, own[0], self.num_random)
        many = self._judged_many(self.qvalue_network, seen, torch.cat([even, own]))
        even_density = density.expand_as(own_density)
        log_density = torch.cat([even_density, own_density]).unsqueeze(-2)  # [2 K, *B, 1, 1]
        t, number = self.softness, len(many)
        whole = (many / t - log_density).logsumexp(0) - math.log(number)
        gap = (t * whole - self._judged(self.qvalue_network, seen)).sum(-2)
        gap = self.min_q_weight * self._reduce(kept(gap, counted), counted)
        return found | self._conservative(gap)

    def _conservative(self, gap: Tensor) -> dict[str, Tensor]:
        """The conservative loss, and that of its factor."""
        if self.log_alpha_prime is None:
            return {"loss_cql": gap}
        factor = self.log_alpha_prime.exp().clamp(0.0, 1e6)
        over = gap - self.lagrange_thresh
        return {
            "loss_cql": factor.detach() * over,
            "loss_alpha_prime": -factor * over.detach().mean(),
            "alpha_prime": factor.detach(),
        }

    def _judged_many(self, critics: Any, rows: TensorDictBase, action: Tensor) -> Tensor:
        """What critics say of several actions for each step, ``[num, *B, critics, 1]``."""
        wide = rows.expand(len(action), *rows.batch_size)
        return self._judged(critics, wide, action)


class DiscreteCQLLoss(DQNLoss):
    """Q-learning whose values are held down where no action is stored.

        loss_cql   w (log Σ_b exp Q(s, b) - Q(s, a))

    The sum is over the actions that the mask of the network allows. Everything else is as in
    `DQNLoss`, whose ``loss`` is called ``loss_qvalue`` here; both are to
    be added up. (Kumar et al., arXiv:2006.04779.)

    Args:
        value_network: writes ``"action_value"`` ``[*B, T, n]``.
        min_q_weight: w.
        settings: what `DQNLoss` takes besides.

    Raises:
        ValueError: as `DQNLoss`.
        TypeError: an argument belongs elsewhere.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> from tensordict.nn import TensorDictModule
        >>> net = TensorDictModule(torch.nn.Linear(2, 3), ["observation"], ["action_value"])
        >>> batch = trajectories([3, 4])
        >>> batch["action"] = batch["action"].squeeze(-1) % 3
        >>> sorted(DiscreteCQLLoss(net, action_space="categorical")(batch).keys())
        ['loss_cql', 'loss_qvalue']
    """

    def __init__(
        self, value_network: TensorDictModuleBase, *, min_q_weight: float = 1.0, **settings: Any
    ) -> None:
        check_weights(min_q_weight=min_q_weight)
        super().__init__(value_network, **settings)
        self.min_q_weight = min_q_weight

    @property
    def outputs(self) -> list[NestedKey]:
        """What `forward` gives when it is called by arguments."""
        return ["loss_qvalue", "loss_cql"]

    def _terms(
        self, batch: TensorDictBase, seen: TensorDictBase, targets: Targets, counted: Tensor | None
    ) -> dict[str, Tensor]:
        values = require(noted(self.value_network, copied(seen)), self.entries["action_value"])
        action = self.entries["action"]
        index = stored_index(seen, action, values, self.action_space, counted)
        chosen = of_action(values, index, action)
        key = mask_key_of(self.value_network)
        if key is not None:
            values = values.masked_fill(~require(seen, key), -torch.inf)
        gap = values.logsumexp(-1, keepdim=True) - chosen
        held = reduce(kept(gap, counted), counted, self.reduction, self._weight(batch, gap))
        loss = self._regression(batch, chosen, targets, counted)
        return {"loss_qvalue": loss, "loss_cql": self.min_q_weight * held}
