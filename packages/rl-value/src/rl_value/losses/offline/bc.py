"""Behavioural cloning."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_layout import keys, set_recurrent_mode
from rl_tensordict import NestedKey, UnfitValue, UnknownName, as_tuple, find, require
from rl_tensordict.arguments import check_choice
from rl_value.actions import distribution_of, log_probability
from rl_value.estimators.bootstrapping.next_values import roles_of
from rl_value.losses.bootstrapped.action_space import bounds_of, refuse_outside, spec_of
from rl_value.losses.bootstrapped.policy import chosen
from rl_value.losses.loss import LossModule, refuse_moved, stored_weight
from rl_value.losses.regression import DISTANCES, distance
from rl_value.masked_means import kept, reduce
from rl_value.networks import require_network
from rl_value.single_rows import warn_of_single_rows


class BCLoss(LossModule):
    """The distance of an actor from stored actions (behavioural cloning).

    It is -log π(a|s) of an actor with chance, and the distance of its action from the stored one
    otherwise, added up over the dimensions of the action. Written is ``loss_bc``.

    Args:
        actor_network: has ``get_dist``, or writes ``"action"``. Where it has a spec with bounds,
            stored actions are held to them.
        loss_function: ``"l1"``, ``"l2"`` or ``"smooth_l1"``, for the action; by default the
            log-probability of an actor that has ``get_dist``, else ``"l2"``.
        use_prioritized_weights: weigh steps by ``"priority_weight"``: ``"auto"`` if it is stored.
        settings: what `LossModule` takes besides.

    Raises:
        ValueError: there is no such distance.
        TypeError: the actor is no tensordict module, or an argument belongs elsewhere.

    Example:
        >>> import torch
        >>> from rl_layout.synthetic import trajectories
        >>> from tensordict.nn import TensorDictModule
        >>> actor = TensorDictModule(torch.nn.Linear(2, 1), ["observation"], ["action"])
        >>> batch = trajectories([3, 4])
        >>> batch["action"] = torch.rand(7, 1)
        >>> BCLoss(actor)(batch)["loss_bc"].shape
        torch.Size([])
    """

    def __init__(
        self,
        actor_network: TensorDictModuleBase,
        *,
        loss_function: str | None = None,
        use_prioritized_weights: bool | str = "auto",
        reduction: Any = None,
        loss_mask_key: NestedKey | None = "auto",
        check_finite: bool | None = None,
        **moved: Any,
    ) -> None:
        refuse_moved(moved)
        super().__init__(
            reduction=reduction,
            loss_mask_key=loss_mask_key,
            check_finite=check_finite,
            priority_weight=keys.PRIORITY_WEIGHT,
        )
        require_network("actor_network", actor_network)
        if loss_function is None and not hasattr(actor_network, "get_dist"):
            loss_function = "l2"
        if loss_function is not None:
            check_choice("loss_function", loss_function, [*DISTANCES])
        self.actor_network = actor_network
        self.loss_function = loss_function
        self.actor_method = "get_dist" if loss_function is None else "forward"
        check_choice("use_prioritized_weights", use_prioritized_weights, [True, False, "auto"])
        self.use_prioritized_weights = use_prioritized_weights
        self.bounds = bounds_of(spec_of(None, actor_network, self.entries["action"]))
        self._has_states = bool(roles_of(actor_network).states)

    @property
    def in_keys(self) -> list[NestedKey]:
        """What `forward` reads: observations and action."""
        return list(dict.fromkeys([self.entries["action"], *self.actor_network.in_keys]))

    @property
    def optional_keys(self) -> list[NestedKey]:
        """Optional inputs that may be passed as keywords: markers and weights."""
        return [*super().optional_keys, self.entries["priority_weight"]]

    @property
    def outputs(self) -> list[NestedKey]:
        """The name of the loss."""
        return ["loss_bc"]

    def forward(
        self, tensordict: TensorDictBase | None = None, *tensors: Tensor, **named: Tensor
    ) -> TensorDictBase:
        """Compute the loss of a batch.

        Args:
            tensordict: a TED batch ``[*B, T]``; rewards and next observations are not read.
            tensors: in its place tensors in the order of `in_keys`.
            named: tensors by name, as ``next_reward`` for ``("next", "reward")``.

        Returns:
            ``loss_bc``, a scalar; with ``reduction="none"`` ``[*B, T, 1]``.

        Raises:
            KeyError: an entry is missing.
            ValueError: a shape does not fit, an action is outside of its spec, or the loss is not
                finite, see `check_finite`.
        """
        if tensors or named or not isinstance(tensordict, TensorDictBase):
            made: TensorDictBase = self.by_names((tensordict, *tensors), named)
            return made
        action = self.entries["action"]
        for key in self.in_keys:
            if as_tuple(key)[-1] != keys.IS_INIT and find(tensordict, as_tuple(key)) is None:
                msg = f"{key!r} is missing. BCLoss reads {self.in_keys}."
                raise UnknownName(msg)
        if self._has_states:
            warn_of_single_rows(tensordict)
        counted = self.counted(tensordict)
        if self.bounds is not None and self.check_finite is not False:
            refuse_outside(tensordict, action, self.bounds, counted)
        with set_recurrent_mode(True):
            seen = self._seen(tensordict, self.actor_network, more=[action])
            cost = self._cost(seen)
        key = self.entries["priority_weight"]
        weight = stored_weight(tensordict, key, self.use_prioritized_weights)
        loss = reduce(kept(cost, counted), counted, self.reduction, weight)
        return self._collected({"loss_bc": loss}, tensordict)

    def _explain(self, batch: TensorDictBase) -> list[str]:
        cost = "-log π(a|s)" if self.loss_function is None else f"{self.loss_function} of actions"
        return [f"cost: {cost}, differentiated by autograd"]

    def _cost(self, seen: TensorDictBase) -> Tensor:
        """The cost of each step, ``[*B, T, 1]``."""
        action = self.entries["action"]
        if self.loss_function is None:
            dist = distribution_of(self.actor_network, seen)
            return -log_probability(dist, seen, action).unsqueeze(-1)
        made, taken = chosen(self.actor_network, seen, action), require(seen, action)
        if made.shape != taken.shape:
            msg = f"{action!r}: expected {list(made.shape)}, as the actor gives it, got "
            raise UnfitValue(msg + f"{list(taken.shape)}.")
        return distance(made, taken.to(made.dtype), self.loss_function).sum(-1, keepdim=True)
