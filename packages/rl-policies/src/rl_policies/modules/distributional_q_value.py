"""Policies that take the action whose distribution of returns has the highest mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl_policies.keys import ACTION_VALUE
from rl_policies.modules.q_value import GreedySequence, QValueModule, network_of
from rl_specs import TensorSpec
from rl_tensordict import NestedKey, note_errors
from rl_tensordict.arguments import check_type


class DistributionalQValueModule(QValueModule):
    """The last part of a `DistributionalQValueActor`: reads log-probabilities, writes the action.

    Written are the action, the log-probabilities again, and the mean return of the action.

    Args:
        action_space: `"one_hot"` or `"categorical"`; may be left out if there is a spec.
        support: the returns `[atoms]` that have these probabilities.
        settings: what `QValueModule` takes besides.

    Raises:
        TypeError: the support is no tensor.
        ValueError: the support is no row of numbers; and what `QValueModule` refuses.

    Example:
        >>> import torch
        >>> module = DistributionalQValueModule("one_hot", torch.tensor([0.0, 10.0]))
        >>> log_probs = torch.tensor([[[0.9, 0.2], [0.1, 0.8]]]).log()  # [1, atoms, actions]
        >>> action, _, mean = module.step(log_probs)
        >>> action, mean
        (tensor([[0, 1]]), tensor([[8.]]))
    """

    support: Tensor

    @note_errors
    def __init__(self, action_space: str | None, support: Tensor, **settings: Any) -> None:
        super().__init__(action_space, **settings)
        check_type("support", support, Tensor, "a tensor of returns [atoms]")
        if support.ndim != 1 or not len(support):
            msg = f"support: expected returns [atoms], got {list(support.shape)}."
            raise ValueError(msg)
        self.register_buffer("support", support)

    def _call_module(self, tensors: Sequence[Tensor], **_: Any) -> tuple[Tensor, ...]:
        log_probs, *masks = tensors
        atoms = len(self.support)
        if log_probs.ndim < 2 or log_probs.shape[-2] != atoms:
            msg = (
                f"{self.in_keys[0]!r}: expected log-probabilities [*B, {atoms}, n], one for each "
                f"atom of the support and each action, got {list(log_probs.shape)}."
            )
            raise ValueError(msg)
        means = (log_probs.exp() * self.support[:, None]).sum(-2)
        action, _means, chosen = super()._call_module((means, *masks))
        return action, log_probs, chosen


class DistributionalQValueActor(GreedySequence):
    """A network of distributions of returns, and the action whose mean is highest (C51).

    Args:
        module: a network that returns `[*B, atoms, n]` for the tensors of `in_keys`; or a
            tensordict module that writes `action_value_key`.
        support: the returns `[atoms]`, evenly spaced, as `torch.linspace(-10, 10, 51)`.
        in_keys: what the network reads; `["observation"]` by default.
        spec: spec of the action, or a `Composite` that holds it.
        safe: keep to the mask of the spec as well; see `QValueModule`.
        action_space: `"one_hot"` or `"categorical"`; may be left out if there is a spec.
        action_value_key: where the log-probabilities go.
        action_mask_key: bool `[*B, n]`, True where a choice is allowed; None if all are.
        make_log_softmax: apply log-softmax to what the network returns; log-probabilities stay
            as they are.

    Raises:
        ValueError: the module does not write the values; and what the module of the choice refuses.
        TypeError: the support is no tensor.

    Example:
        >>> import torch
        >>> from rl_specs import OneHot
        >>> net = nn.Sequential(nn.Linear(3, 51 * 4), nn.Unflatten(-1, (51, 4)))
        >>> actor = DistributionalQValueActor(net, torch.linspace(-1, 1, 51), spec=OneHot(4))
        >>> action, log_probs, mean = actor.step(torch.zeros(5, 3))
        >>> action.shape, log_probs.shape, mean.shape
        (torch.Size([5, 4]), torch.Size([5, 51, 4]), torch.Size([5, 1]))
    """

    @note_errors
    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        module: nn.Module,
        support: Tensor,
        in_keys: Sequence[NestedKey] | None = None,
        spec: TensorSpec | None = None,
        safe: bool = False,
        *,
        action_space: str | None = None,
        action_value_key: NestedKey = ACTION_VALUE,
        action_mask_key: NestedKey | None = None,
        make_log_softmax: bool = True,
    ) -> None:
        key = action_value_key
        network = network_of(module, in_keys, key)
        choice = DistributionalQValueModule(
            action_space,
            support,
            action_value_key=key,
            action_mask_key=action_mask_key,
            spec=spec,
            safe=safe,
        )
        normal = [TensorDictModule(nn.LogSoftmax(-2), [key], [key])] if make_log_softmax else []
        super().__init__(network, *normal, choice)

    @property
    def support(self) -> Tensor:
        """The returns `[atoms]` that have the probabilities."""
        support: Tensor = self.module[-1].support
        return support
