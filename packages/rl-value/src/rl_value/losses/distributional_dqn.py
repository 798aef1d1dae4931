"""Deep Q-learning of whole distributions of returns."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_tensordict import NestedKey, copied, require
from rl_value.actions import of_action
from rl_value.arguments import check_fraction
from rl_value.estimators.transitions import Transitions, UnrolledValues
from rl_value.losses.bootstrapped.targets import Targets
from rl_value.losses.dqn import DQNLoss, stored_index
from rl_value.losses.loss import LossModule, ValueEstimators
from rl_value.masked_means import kept, reduce
from rl_value.networks import noted


class DistributionalDQNLoss(DQNLoss):
    """The cross-entropy of return distributions and their bootstrapped targets (C51).

    The network writes log-probabilities of returns zᵢ for each action. The target moves the
    distribution of the next greedy action to r + γ zᵢ, to r alone where the step terminated, and
    shares each atom's weight between its neighbours on the support. Greedy is the action of the
    highest mean. Written is ``loss``, and into the batch ``"td_error"``, the cross-entropy of
    each step ``[*B, T, 1]``. (Bellemare et al., arXiv:1707.06887.)

    Args:
        value_network: writes ``"action_value"``, log-probabilities ``[*B, T, atoms, n]``.
        gamma: discount in [0, 1]; on n-step rows γ ** steps counts.
        support: the returns zᵢ ``[atoms]``, evenly spaced; by default the network's `support`.
        settings: what `DQNLoss` takes besides; there is no `loss_function`.

    Raises:
        ValueError: the discount is outside [0, 1], or no support is known, or is not even.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> from tensordict.nn import TensorDictModule
        >>> shape = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 10), torch.nn.Unflatten(-1, (5, 2)), torch.nn.LogSoftmax(-2)
        ... )
        >>> net = TensorDictModule(shape, ["observation"], ["action_value"])
        >>> loss = DistributionalDQNLoss(
        ...     net, gamma=0.9, support=torch.linspace(-1, 1, 5), action_space="categorical"
        ... )
        >>> batch = trajectories([3, 4])
        >>> batch["action"] = (batch["action"] % 2).squeeze(-1)
        >>> loss(batch)["loss"].shape
        torch.Size([])
    """

    support: Tensor

    def __init__(
        self,
        value_network: TensorDictModuleBase,
        *,
        gamma: float,
        support: Tensor | None = None,
        **settings: Any,
    ) -> None:
        check_fraction("gamma", gamma)
        super().__init__(value_network, **settings)
        self.gamma = gamma
        found = getattr(value_network, "support", None) if support is None else support
        if not isinstance(found, Tensor) or not _is_even(found):
            msg = (
                "support: expected returns [atoms], floats evenly spaced from the least on, two at "
                "least. Pass support=torch.linspace()."
            )
            raise ValueError(msg)
        self.register_buffer("support", found)
        LossModule.make_value_estimator(self, gamma=gamma)

    def make_value_estimator(
        self, value_type: ValueEstimators | str | None = None, **settings: Any
    ) -> LossModule:
        """Refused: distributions have a target of their own.

        Raises:
            NotImplementedError: always.
        """
        msg = "a distribution has a target of its own: pass gamma= to DistributionalDQNLoss."
        raise NotImplementedError(msg)

    def _terms(
        self, batch: TensorDictBase, seen: TensorDictBase, targets: Targets, counted: Tensor | None
    ) -> dict[str, Tensor]:
        """The cross-entropy of the distribution of the action that was taken."""
        target = targets.value
        out = noted(self.value_network, copied(seen))
        log_probs = require(out, self.entries["action_value"])
        self._check_shape(log_probs, batch.batch_size)
        key, alone = self.entries["action"], log_probs[..., 0, :]
        index = stored_index(seen, key, alone, self.action_space, counted)
        chosen = _of_action(log_probs, index, key)
        held = chosen.masked_fill(target == 0, 0)  # where nothing should be, -inf is right
        error = -(kept(target, counted) * kept(held, counted)).sum(-1, keepdim=True)
        error = kept(error, counted)
        batch.set(self.entries["priority"], error.detach())
        return {"loss": reduce(error, counted, self.reduction, self._weight(batch, error))}

    def _unrolled(self, steps: Transitions) -> tuple[Tensor, UnrolledValues]:
        """The distribution that each step's action should have ``[M, atoms]``."""
        key = self.entries["action_value"]
        found = self._unroll(self._next_network, steps, key)
        self._check_shape(found.following, steps.reward.shape[:1])
        if steps.reward.shape[1:] != (1,):
            got = list(steps.reward.shape[1:])
            msg = f"{self.entries['reward']!r}: expected [1] after the batch, got {got}. "
            msg += "A distribution is one of a single return."
            raise ValueError(msg)
        probs = found.following.exp()
        chooser = probs
        if self.double_dqn:
            chooser = self._unroll(self.value_network, steps, key).following.exp()
        means, allowed = (chooser * self.support[:, None]).sum(-2), self._allowed_next(steps)
        if allowed is not None:
            means = means.masked_fill(~allowed, -torch.inf)
        ahead = _of_action(probs, means.argmax(-1, keepdim=True), self.entries["action"])
        if allowed is not None:
            ahead = ahead.masked_fill(~allowed.any(-1, keepdim=True), torch.nan)
        ahead = ahead.masked_fill(steps.terminated, 1 / len(self.support))
        gamma = steps.per_step(self.gamma)
        alive = (~steps.terminated).to(ahead.dtype)
        moved = steps.reward + gamma * alive * self.support  # [M, atoms]
        moved = moved.to(ahead.dtype)
        target = project(moved, ahead, self.support.to(ahead.dtype))
        if found.missing is not None:  # steps without a next state teach nothing
            target = target.masked_fill(found.missing, 0)
        return target, found

    def _check_shape(self, log_probs: Tensor, batch_size: torch.Size) -> None:
        expected = (*batch_size, len(self.support))
        if log_probs.ndim != len(expected) + 1 or log_probs.shape[:-1] != expected:
            msg = (
                f"{self.entries['action_value']!r}: expected log-probabilities "
                f"{[*expected, 'n']}, one for each atom of the support and each action, "
                f"got {list(log_probs.shape)}."
            )
            raise ValueError(msg)


def _is_even(support: Tensor) -> bool:
    """Whether numbers grow by equal steps."""
    if support.ndim != 1 or len(support) < 2 or not support.is_floating_point():
        return False
    step = support.diff()
    return bool((step > 0).all()) and torch.allclose(step, step.mean(), rtol=1e-3)


def project(moved: Tensor, weights: Tensor, support: Tensor) -> Tensor:
    """Share the weight of each atom between its neighbours on the support."""
    last = len(support) - 1
    step = (support[-1] - support[0]) / last
    place = ((moved.clamp(support[0], support[-1]) - support[0]) / step).clamp(0, last)
    below = place.nan_to_num(0).floor().clamp(max=last - 1)  # what is no number stays in its row
    share = place - below
    found = torch.zeros_like(weights)
    found.scatter_add_(-1, below.long(), weights * (1 - share))
    return found.scatter_add_(-1, below.long() + 1, weights * share)


def _of_action(values: Tensor, index: Tensor, key: NestedKey) -> Tensor:
    """Values ``[*B, atoms, n]`` of one action each, ``[*B, atoms]``."""
    wide = index.unsqueeze(-2).expand(*values.shape[:-1], 1)
    return of_action(values, wide, key).squeeze(-1)
