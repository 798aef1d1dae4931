"""Soft actor-critic without target networks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from rl_tensordict import as_tuple, build, nest, require
from rl_tensordict.arguments import check_flags
from rl_value.estimators.bootstrapping.next_alone import next_inputs
from rl_value.estimators.bootstrapping.next_values import blank, roles_of, with_overwritten
from rl_value.estimators.transitions import Transitions, UnrolledValues
from rl_value.losses.bootstrapped.critics import check_values
from rl_value.losses.bootstrapped.policy import drawn
from rl_value.losses.bootstrapped.targets import DEFAULT_CALLS, Targets, returns_of
from rl_value.losses.off_policy.sac import SACLoss


class CrossQLoss(SACLoss):
    """Soft actor-critic whose critics have batch norms and no copies (CrossQ).

        Q(s, a), Q(s', a')    from one call on both, so that batch norms see both
        target                r + γ (minᵢ Qᵢ(s', a') - α log π(a' | s')), a constant

    The actor's loss reads the critics in evaluation mode. Everything else is as in `SACLoss`.
    Where targets are stored, as `targets` writes them, batch norms see the rows of the batch
    alone. (Bhatt et al., arXiv:1902.05605.)

    Args:
        actor_network: has ``get_dist``, whose samples have gradients.
        qvalue_network: as `SACLoss` takes it, with ``nn.BatchNorm1d`` among its layers.
        settings: what `SACLoss` takes besides; there is no `delay_qvalue`.

    Raises:
        ValueError: as `SACLoss`, and for networks that read markers or keep a state.
        TypeError: a network is no tensordict module, or an argument belongs elsewhere.

    Example:
        >>> from rl_value import CrossQLoss, SACLoss
        >>> issubclass(CrossQLoss, SACLoss)
        True
    """

    def __init__(
        self, actor_network: TensorDictModuleBase, qvalue_network: Any, **settings: Any
    ) -> None:
        delay_qvalue = settings.pop("delay_qvalue", False)
        check_flags(delay_qvalue=delay_qvalue)
        if delay_qvalue:
            msg = "CrossQLoss has no copies of its critics: leave delay_qvalue out, or use SACLoss."
            raise ValueError(msg)
        super().__init__(actor_network, qvalue_network, delay_qvalue=False, **settings)
        for network in self._networks():
            if not roles_of(network).is_row_wise:
                msg = (
                    "CrossQLoss reads rows and their next observations in one call, and takes no "
                    f"networks that keep a state or read markers: {type(network).__name__} reads "
                    f"{list(network.in_keys)}. Use SACLoss."
                )
                raise ValueError(msg)

    def _targets(self, batch: TensorDictBase) -> Targets:
        if self.value_estimator.calls != DEFAULT_CALLS:
            msg = "CrossQLoss makes one call of its own: it takes no shifted, chunks, missing_next "
            raise NotImplementedError(msg + "or single_call.")
        judged, learns = [], torch.is_grad_enabled()

        def unroll(steps: Transitions) -> tuple[Tensor, UnrolledValues]:
            values, found = self._both(steps, learns)
            judged.append(values)
            return returns_of(self.value_estimator, steps, found)

        found = self._source.of(batch, unroll)
        return found._replace(judged=judged[0])

    def _both(self, steps: Transitions, learns: bool) -> tuple[Tensor, UnrolledValues]:
        """What critics say of steps ``[*B, T, num, 1]``, and the values of their next states."""
        inputs, outside, steps = next_inputs(self._roles, steps)
        count = len(steps.terminated)
        following = build(nest(inputs), torch.Size([count]))
        action, log_prob = drawn(self._next_actor, following)
        key = as_tuple(self.entries["action"])
        joined = {}
        for name in map(as_tuple, self.qvalue_network.in_keys):
            here = steps.segments.gather(require(steps.batch, name))
            joined[name] = torch.cat([here, (action if name == key else inputs[name]).to(here)])
        with torch.enable_grad() if learns else nullcontext():
            rows = build(nest(joined), torch.Size([2 * count]))
            values = self._judged(self.qvalue_network, rows)
            now = steps.scatter(values[:count])
        ahead = values[count:].detach()
        check_values(ahead, self.entries["state_action_value"], log_prob)
        value = self._of_next(ahead) - self.temperature.alpha * log_prob
        if (unread := steps.unread) is not None:
            value = blank(value, unread & outside)
        found = UnrolledValues(value, value, steps.missing, None, None)
        return now, with_overwritten(self._roles, steps, found)

    def _judged_for_actor(self, seen: TensorDictBase, action: Tensor) -> Tensor:
        with _evaluation(self.qvalue_network):
            return super()._judged_for_actor(seen, action)


@contextmanager
def _evaluation(network: nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode for a while."""
    trains = [module for module in network.modules() if module.training]
    for module in trains:
        module.training = False
    try:
        yield
    finally:
        for module in trains:
            module.training = True
