"""Policies: observations to actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensordict import TensorDictBase
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
    set_interaction_type,
)
from tensordict.nn.probabilistic import interaction_type
from torch import Tensor, nn
from torch.distributions import Distribution

from rl_policies.distributions.delta import Delta
from rl_policies.keys import ACTION, OBSERVATION, listed
from rl_policies.modules.action_spec import ActionForm, check_safe, form_of
from rl_policies.modules.call_notes import require_module
from rl_policies.modules.policy_sequence import PolicySequence
from rl_policies.modules.probabilistic import DistributionKeys, SamplingModule
from rl_specs import TensorSpec
from rl_tensordict import NestedKey, TensorStep, note_call, note_errors, outputs_of


class Actor(TensorStep, TensorDictModule):  # type: ignore[misc]
    """A network that computes actions, without chance.

    Args:
        module: takes the tensors of `in_keys`, returns those of `out_keys`.
        in_keys: what it reads; `["observation"]` by default.
        out_keys: what it writes, the action first; `["action"]` by default.
        spec: spec of the action, or a `Composite` that holds it; dtype and last size of each
            action are checked against it.
        safe: project actions into the spec, which waits for the device.

    Raises:
        ValueError: `safe` without a spec.
        KeyError: the spec holds other keys only.

    Example:
        >>> import torch
        >>> from rl_specs import Bounded
        >>> actor = Actor(nn.Linear(3, 2), spec=Bounded(-1, 1, shape=(2,)), safe=True)
        >>> actor.step(torch.full((5, 3), 1e3))[0].abs().max() <= 1
        tensor(True)
    """

    @note_errors
    def __init__(
        self,
        module: nn.Module,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        spec: TensorSpec | None = None,
        safe: bool = False,
    ) -> None:
        super().__init__(module, listed(in_keys, OBSERVATION), listed(out_keys, ACTION))
        self.spec = spec
        self.safe = safe
        self._form: ActionForm | None = form_of(spec, self.out_keys[0])
        check_safe(safe, self._form)

    def step(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Compute actions.

        Args:
            tensors: one for each of `in_keys`.

        Returns:
            One for each of `out_keys`.

        Raises:
            TypeError: the action has another dtype than the spec.
            ValueError: the action has another shape than the spec.
        """
        try:
            return self._fitted(self.module(*tensors))
        except Exception as error:
            note_call(error, f"{type(self).__name__}.step", tensors, self.in_keys)
            raise

    def _call_module(self, tensors: Sequence[Tensor], **kwargs: Any) -> tuple[Tensor, ...]:
        # what tensordict's own forward calls
        return self._fitted(super()._call_module(tensors, **kwargs))

    def _fitted(self, outputs: Any) -> tuple[Tensor, ...]:
        """Hold the action to its spec."""
        action, *others = outputs_of(outputs, self.out_keys_source)
        if self._form is not None:
            action = self._form.fitted(action, self.safe)
        return action, *others


class ProbabilisticActor(PolicySequence, ProbabilisticTensorDictSequential):  # type: ignore[misc]
    """A network, and a distribution of actions whose parameters it computes.

    It is a sequence: everything that the network writes is written, then the action, then with
    `return_log_prob` the log-probability. What is taken from the distribution follows
    `set_interaction_type`: collectors set RANDOM; without it `default_interaction_type` counts.

    Args:
        module: a tensordict module that writes the parameters.
        in_keys: keys of the parameters; the last part of each is the name of an argument of the
            distribution. A dict gives other names: argument to key.
        out_keys: key of the action; `["action"]` by default.
        spec: spec of the action, or a `Composite` that holds it. Actions are checked against it,
            and one-hot distributions draw in its dtype.
        distribution_class: makes the distribution; by default the parameter is the action.
        distribution_kwargs: further arguments of it. `low` and `high` of a `TanhNormal` or a
            `TruncatedNormal` default to the bounds of the spec if these are finite, and must be
            given where environments have different ones; bounds outside of the spec are refused
            unless `safe` is set.
        return_log_prob: write the log-probability of the action, `[*B]`.
        log_prob_key: where to; `"sample_log_prob"` by default.
        default_interaction_type: what is done where no interaction type is set.
        safe: project actions into the spec, which waits for the device. The log-probability is
            that of the projected action.
        **kwargs: what tensordict's `ProbabilisticTensorDictModule` takes besides.

    Raises:
        TypeError: `module` is no tensordict module, or the distribution does not take the
            parameters or cannot draw what the spec describes.
        ValueError: the module writes none of the parameters, bounds are outside the spec's and
            `safe` is not set, or `safe` is set without a spec.
        KeyError: the spec holds other keys only.

    Example:
        >>> import torch
        >>> from rl_specs import OneHot
        >>> from rl_policies import OneHotCategorical
        >>> net = TensorDictModule(nn.Linear(3, 4), in_keys=["observation"], out_keys=["logits"])
        >>> actor = ProbabilisticActor(
        ...     net,
        ...     in_keys=["logits"],
        ...     spec=OneHot(4),
        ...     distribution_class=OneHotCategorical,
        ...     return_log_prob=True,
        ... )
        >>> logits, action, log_prob = actor.step(torch.zeros(5, 3))
        >>> action.shape, action.dtype, log_prob.shape
        (torch.Size([5, 4]), torch.bool, torch.Size([5]))
    """

    @note_errors
    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        module: TensorDictModuleBase,
        in_keys: DistributionKeys,
        out_keys: DistributionKeys | None = None,
        *,
        spec: TensorSpec | None = None,
        distribution_class: Any = Delta,
        distribution_kwargs: Any = None,
        return_log_prob: bool = False,
        log_prob_key: NestedKey | None = None,
        default_interaction_type: InteractionType | str = InteractionType.DETERMINISTIC,
        safe: bool = False,
        **kwargs: Any,
    ) -> None:
        sampling = SamplingModule(
            in_keys,
            out_keys,
            spec=spec,
            distribution_class=distribution_class,
            distribution_kwargs=distribution_kwargs,
            return_log_prob=return_log_prob,
            log_prob_key=log_prob_key,
            default_interaction_type=default_interaction_type,
            safe=safe,
            **kwargs,
        )
        _check_network(module, sampling.in_keys)
        super().__init__(module, sampling)

    @property
    def spec(self) -> TensorSpec | None:
        """The spec of the action, as it was given."""
        spec: TensorSpec | None = self.module[-1].spec
        return spec

    def behind(self, common: TensorDictModuleBase) -> ProbabilisticActor:
        """Make a policy that runs another module first.

        Args:
            common: writes the inputs of this policy.

        Returns:
            The policy. Both modules are shared with it.

        Example:
            >>> from rl_policies import OneHotCategorical
            >>> net = TensorDictModule(nn.Linear(3, 4), in_keys=["hidden"], out_keys=["logits"])
            >>> actor = ProbabilisticActor(net, ["logits"], distribution_class=OneHotCategorical)
            >>> common = TensorDictModule(nn.Identity(), in_keys=["pixels"], out_keys=["hidden"])
            >>> actor.behind(common).in_keys
            ['pixels']
        """
        network, sampling = self.module
        actor = type(self).__new__(type(self))
        # __init__ would build a second sampling module from its arguments
        network = TensorDictSequential(common, network)
        ProbabilisticTensorDictSequential.__init__(actor, network, sampling)
        return actor

    @note_errors
    def get_dist(
        self,
        tensordict: TensorDictBase,
        tensordict_out: TensorDictBase | None = None,
        **kwargs: Any,
    ) -> Distribution:
        """Run the network, and make the distribution of the actions.

        Args:
            tensordict: holds the inputs; what the network computes is added to it.
            tensordict_out: where that is written instead.
            **kwargs: passed on to the network.

        Returns:
            The distribution.

        Raises:
            KeyError: an input is missing.
        """
        if tensordict_out is None and not kwargs and self.runs_parts():
            sampling = self.module[-1]
            # parts that draw do as the last one does
            kind = interaction_type()
            with set_interaction_type(sampling.default_interaction_type if kind is None else kind):
                written = self.write_parts(tensordict, last=-1)
            dist: Distribution = sampling.get_dist(written)
        else:
            dist = super().get_dist(tensordict, tensordict_out, **kwargs)
        return dist


def _check_network(module: Any, in_keys: list[NestedKey]) -> None:
    require_module("module", module, f"['observation'], out_keys={in_keys}")
    if not set(in_keys) & set(module.out_keys):
        msg = f"the module writes {module.out_keys}, the distribution reads {in_keys}: name a key"
        raise ValueError(msg)
