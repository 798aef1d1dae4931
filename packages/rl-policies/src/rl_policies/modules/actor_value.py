"""A policy and a critic that share a network."""

from __future__ import annotations

from tensordict.nn import (
    ProbabilisticTensorDictSequential,
    TensorDictModuleBase,
    TensorDictSequential,
)

from rl_policies.modules.actor import ProbabilisticActor
from rl_policies.modules.call_notes import require_module
from rl_policies.modules.policy_sequence import PolicySequence
from rl_tensordict import note_errors


class SharedSequential(PolicySequence, TensorDictSequential):  # type: ignore[misc]
    """Tensordict modules one after another, that step on plain tensors."""


class ActorValueOperator(SharedSequential):
    """A network that a policy and a critic share, and both of them.

        observation --> common --> hidden --> policy --> action
                                   hidden --> value  --> state_value

    Called as it is, it writes everything, and computes `hidden` once. A loss takes the two parts,
    which hold the same parameters as this.

    Args:
        common_operator: writes what both read.
        policy_operator: reads it, and writes the action; an actor of any kind.
        value_operator: reads it, and writes the value.

    Raises:
        TypeError: one of them is no tensordict module.
        ValueError: policy or critic reads nothing that `common_operator` writes.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from rl_policies import Actor, ValueOperator
        >>> from tensordict.nn import TensorDictModule
        >>> both = ActorValueOperator(
        ...     TensorDictModule(nn.Linear(3, 4), ["observation"], ["hidden"]),
        ...     Actor(nn.Linear(4, 2), ["hidden"]),
        ...     ValueOperator(nn.Linear(4, 1), ["hidden"]),
        ... )
        >>> both.out_keys, both.get_value_operator().out_keys
        (['hidden', 'action', 'state_value'], ['hidden', 'state_value'])
        >>> both.get_policy_operator().step(torch.zeros(5, 3))[-1].shape
        torch.Size([5, 2])
    """

    @note_errors
    def __init__(
        self,
        common_operator: TensorDictModuleBase,
        policy_operator: TensorDictModuleBase,
        value_operator: TensorDictModuleBase,
    ) -> None:
        heads = {"policy_operator": policy_operator, "value_operator": value_operator}
        for name, module in {"common_operator": common_operator, **heads}.items():
            require_module(name, module)
        for name, head in heads.items():
            if not set(head.in_keys) & set(common_operator.out_keys):
                msg = (
                    f"{name} reads {head.in_keys}, and nothing of what common_operator writes: "
                    f"{common_operator.out_keys}. Name a key."
                )
                raise ValueError(msg)
        super().__init__(common_operator, policy_operator, value_operator)

    def get_policy_operator(self) -> TensorDictSequential:
        """Put the shared network before the policy.

        Returns:
            What maps observations to actions: a `ProbabilisticActor` where the policy is one, so
            that a loss can ask for its distribution. The parameters are shared.
        """
        common, policy, _ = self.module
        if isinstance(policy, ProbabilisticActor):
            return policy.behind(common)
        if isinstance(policy, ProbabilisticTensorDictSequential):
            return ProbabilisticTensorDictSequential(common, *policy.module)
        return SharedSequential(common, policy)

    def get_value_operator(self) -> SharedSequential:
        """Put the shared network before the critic.

        Returns:
            What maps observations to values. The parameters are shared.
        """
        common, _, value = self.module
        return SharedSequential(common, value)

    def get_policy_head(self) -> TensorDictModuleBase:
        """The policy alone, which reads what the shared network writes."""
        return self.module[1]

    def get_value_head(self) -> TensorDictModuleBase:
        """The critic alone, which reads what the shared network writes."""
        return self.module[2]
