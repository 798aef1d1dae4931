"""Twin delayed deterministic policy gradients."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_tensordict import NestedKey, as_tensor
from rl_tensordict.arguments import check_number
from rl_value.arguments import check_bounds, check_weights
from rl_value.losses.bootstrapped.actor_critics import ActorCriticsLoss
from rl_value.losses.bootstrapped.critics import check_values
from rl_value.losses.bootstrapped.policy import chosen, smoothed
from rl_value.losses.bootstrapped.targets import Targets
from rl_value.masked_means import kept, reduce


class TD3Loss(ActorCriticsLoss):
    """A deterministic actor, and critics whose targets have noise in their actions (TD3).

        target    r + γ minᵢ Q'ᵢ(s', a'),    a' = clip(π'(s') + clip(ε, ±noise_clip), bounds)
        critics   Σᵢ d(Qᵢ(s, a), target)
        actor     -Q₁(s, π(s))

    ε is normal noise of the deviation `policy_noise`, in units of the action. Written are
    ``loss_actor`` and ``loss_qvalue``, to be added up, or each given to an optimizer of its own,
    the actor's less often; and ``pred_value`` and ``target_value``, means; into the batch
    ``"td_error"``, the largest squared error of the critics in each step ``[*B, T, 1]``. The
    actor's loss has no gradient in the critics. (Fujimoto et al., arXiv:1802.09477.)

    Args:
        actor_network: writes ``"action"``; of one with chance, what it takes without it.
        qvalue_network: writes ``"state_action_value"`` ``[*B, 1]``, or ``[*B, num, 1]`` where it
            is an ensemble; or a list of critics of one architecture.
        action_spec: spec of the action, or a composite that holds it; by default the actor's.
        bounds: the least and the greatest action, in the place of a spec.
        policy_noise: standard deviation of the noise of next actions.
        noise_clip: the most that noise moves an action.
        delay_actor: choose next actions by a copy of the actor that `SoftUpdate` moves.
        settings: what `ActorCriticsLoss` takes besides: ``num_qvalue_nets`` (2),
            ``loss_function``, ``delay_qvalue``, ``reduction`` and so on.

    Raises:
        ValueError: a setting is out of range, there are no bounds, critics differ in shape, or a
            recurrent part of theirs reads the action.
        TypeError: a network is no tensordict module, or an argument belongs elsewhere.

    Example:
        >>> import torch
        >>> from rl_layout.synthetic import trajectories
        >>> from tensordict.nn import TensorDictModule
        >>> actor = TensorDictModule(torch.nn.Linear(2, 1), ["observation"], ["action"])
        >>> class Critic(torch.nn.Linear):
        ...     def forward(self, observation, action):
        ...         return super().forward(torch.cat([observation, action], -1))
        >>> critic = TensorDictModule(
        ...     Critic(3, 1), ["observation", "action"], ["state_action_value"]
        ... )
        >>> batch = trajectories([3, 4])
        >>> batch["action"] = torch.rand(7, 1)
        >>> TD3Loss(actor, critic, bounds=(-1.0, 1.0))(batch)["loss_qvalue"].shape
        torch.Size([])
    """

    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        actor_network: TensorDictModuleBase,
        qvalue_network: Any,
        *,
        action_spec: Any = None,
        bounds: tuple[float | Tensor, float | Tensor] | None = None,
        policy_noise: float = 0.2,
        noise_clip: float = 0.5,
        delay_actor: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(
            actor_network,
            qvalue_network,
            action_spec=action_spec,
            delay_actor=delay_actor,
            **settings,
        )
        check_weights(policy_noise=policy_noise)
        check_number("noise_clip", noise_clip)
        check_bounds(noise_clip=noise_clip)  # an infinite one leaves the noise as it is
        if bounds is not None:
            if action_spec is not None:
                msg = "action_spec and bounds say the same in two ways: pass one of them."
                raise ValueError(msg)
            low, high = (as_tensor(one) for one in bounds)
            self.bounds = low, high
        if self.bounds is None:
            msg = "the noise of next actions needs bounds: pass action_spec=, with least and "
            msg += "greatest actions, or bounds=(low, high)."
            raise ValueError(msg)
        self.policy_noise, self.noise_clip = policy_noise, noise_clip
        self._value_next_states(self._state_value)

    @property
    def outputs(self) -> list[NestedKey]:
        """What `forward` gives when it is called by arguments."""
        return ["loss_actor", "loss_qvalue", "pred_value", "target_value"]

    def _state_value(self, rows: TensorDictBase) -> Tensor:
        """The least value of states, by actions with noise."""
        action = chosen(self._next_actor, rows, self.entries["action"])
        action = smoothed(action, self.policy_noise, self.noise_clip, self.bounds)
        values = self._judged(self._next_critics, rows, action)
        check_values(values, self.entries["state_action_value"], action[..., :1])
        return values.amin(-2)

    def _terms(
        self, batch: TensorDictBase, seen: TensorDictBase, targets: Targets, counted: Tensor | None
    ) -> dict[str, Tensor]:
        self._check_actions(batch, counted)
        values = self._judged(self.qvalue_network, seen)
        loss = self._critic_loss(batch, values, targets, counted)
        return {
            **self._actor_terms(seen, counted),
            "loss_qvalue": loss,
            "pred_value": reduce(values.detach().mean(-2), counted),
            "target_value": reduce(targets.value, counted),
        }

    def _actor_terms(self, seen: TensorDictBase, counted: Tensor | None) -> dict[str, Tensor]:
        """The loss of the actor."""
        action = chosen(self.actor_network, seen, self.entries["action"])
        values = self._judged_for_actor(seen, action)[..., 0, :]
        return {"loss_actor": -self._reduce(kept(values, counted), counted)}
