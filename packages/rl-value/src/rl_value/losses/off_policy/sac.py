"""Soft actor-critic."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_value.losses.bootstrapped.action_space import automatic_entropy
from rl_value.losses.bootstrapped.critics import check_values
from rl_value.losses.bootstrapped.policy import drawn
from rl_value.losses.bootstrapped.targets import Targets
from rl_value.losses.bootstrapped.temperature import Temperature, entropy_target
from rl_value.losses.off_policy.soft_actor_critics import SoftActorCriticsLoss
from rl_value.masked_means import kept, reduce

ADVICE = "pass action_spec=, or an actor that has a spec"


class SACLoss(SoftActorCriticsLoss):
    """Actor, critics and temperature that weigh return and entropy (soft actor-critic).

        target    r + γ (minᵢ Q'ᵢ(s', a') - α log π(a' | s')),    a' ~ π(· | s')
        critics   Σᵢ d(Qᵢ(s, a), target)
        actor     α log π(ã | s) - minᵢ Qᵢ(s, ã),                 ã ~ π(· | s)
        α         -log α (log π(ã | s) + target entropy)

    Written are ``loss_actor``, ``loss_qvalue`` and ``loss_alpha``, to be added up, and ``alpha``
    and ``entropy``; into the batch ``"td_error"``, the largest squared error of the critics in
    each step ``[*B, T, 1]``. The actor's loss has no gradient in the critics, theirs none in the
    actor. Weights of priorities weigh the critics' loss.
    (Haarnoja et al., arXiv:1812.05905.)

    Args:
        actor_network: has ``get_dist``, whose samples have gradients.
        qvalue_network: writes ``"state_action_value"`` ``[*B, 1]``, or ``[*B, num, 1]`` where it
            is an ensemble; or a list of critics of one architecture.
        num_qvalue_nets: how many critics to make of one that is given, with parameters drawn
            anew; 2 by default.
        loss_function: ``"l1"``, ``"l2"`` or ``"smooth_l1"``.
        alpha_init: the first α.
        min_alpha: least α.
        max_alpha: greatest α.
        action_spec: spec of the action, or a composite that holds it; by default the actor's.
            Stored actions outside of its bounds are refused.
        fixed_alpha: do not learn α.
        target_entropy: a number; ``"auto"`` is minus the number of dimensions of an action.
        delay_actor: choose next actions by a copy of the actor that `SoftUpdate` moves.
        delay_qvalue: value next states by a copy of the critics that `SoftUpdate` moves.
        settings: what `BootstrappedLoss` takes besides.

    Raises:
        ValueError: a setting is out of range, the target entropy is not known, critics differ in
            shape, or a recurrent part of theirs reads the action.
        TypeError: a network is no tensordict module, or an argument belongs elsewhere.

    Example:
        >>> import torch
        >>> from rl_layout.synthetic import trajectories
        >>> from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModule
        >>> from tensordict.nn import ProbabilisticTensorDictSequential as Sequential
        >>> from tensordict.nn import NormalParamExtractor
        >>> from torch.distributions import Independent, Normal
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), NormalParamExtractor())
        >>> actor = Sequential(
        ...     TensorDictModule(net, ["observation"], ["loc", "scale"]),
        ...     ProbabilisticTensorDictModule(
        ...         ["loc", "scale"],
        ...         ["action"],
        ...         distribution_class=lambda loc, scale: Independent(Normal(loc, scale), 1),
        ...     ),
        ... )
        >>> class Critic(torch.nn.Linear):
        ...     def forward(self, observation, action):
        ...         return super().forward(torch.cat([observation, action], -1))
        >>> critic = TensorDictModule(
        ...     Critic(3, 1), ["observation", "action"], ["state_action_value"]
        ... )
        >>> batch = trajectories([3, 4])
        >>> batch["action"] = torch.randn(7, 1)
        >>> loss = SACLoss(actor, critic, target_entropy=-1.0)
        >>> sorted(loss(batch).keys())
        ['alpha', 'entropy', 'loss_actor', 'loss_alpha', 'loss_qvalue']
        >>> batch["td_error"].shape
        torch.Size([7, 1])
    """

    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        actor_network: TensorDictModuleBase,
        qvalue_network: Any,
        *,
        alpha_init: float = 1.0,
        min_alpha: float | None = None,
        max_alpha: float | None = None,
        fixed_alpha: bool = False,
        target_entropy: float | str = "auto",
        **settings: Any,
    ) -> None:
        super().__init__(actor_network, qvalue_network, **settings)
        wanted = entropy_target(target_entropy, automatic_entropy(self.spec), ADVICE)
        self.temperature = Temperature(alpha_init, (min_alpha, max_alpha), fixed_alpha, wanted)
        self._value_next_states(self._state_value)

    def _state_value(self, rows: TensorDictBase) -> Tensor:
        """The soft value of states."""
        action, log_prob = drawn(self._next_actor, rows)
        values = self._judged(self._next_critics, rows, action)
        check_values(values, self.entries["state_action_value"], log_prob)
        return self._of_next(values) - self.temperature.alpha * log_prob

    def _of_next(self, values: Tensor) -> Tensor:
        """One value of those of all critics ``[*B, num, 1]``, for targets."""
        return values.amin(-2)

    def _of_actor(self, values: Tensor) -> Tensor:
        """One value of those of all critics ``[*B, num, 1]``, for the actor."""
        return values.amin(-2)

    def _terms(
        self, batch: TensorDictBase, seen: TensorDictBase, targets: Targets, counted: Tensor | None
    ) -> dict[str, Tensor]:
        self._check_actions(batch, counted)
        values = targets.judged
        values = self._judged(self.qvalue_network, seen) if values is None else values
        loss = self._critic_loss(batch, values, targets, counted)
        actor, *others = self._actor_terms(seen, counted).items()
        return dict([actor, ("loss_qvalue", loss), *others])

    def _actor_terms(self, seen: TensorDictBase, counted: Tensor | None) -> dict[str, Tensor]:
        """The losses of the actor and of the temperature."""
        action, log_prob = drawn(self.actor_network, seen)
        values = self._of_actor(self._judged_for_actor(seen, action))
        log_prob, alpha = kept(log_prob, counted), self.temperature.alpha
        cost, surplus = alpha * log_prob - kept(values, counted), self.temperature.surplus(log_prob)
        return {
            "loss_actor": self._reduce(cost, counted),
            "loss_alpha": self._reduce(surplus, counted),
            "alpha": alpha,
            "entropy": -reduce(log_prob.detach(), counted),
        }
