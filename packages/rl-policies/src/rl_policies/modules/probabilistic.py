"""Parameters to a distribution, and to a sample of it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import (
    CompositeDistribution,
    InteractionType,
    ProbabilisticTensorDictModule,
)
from tensordict.nn.probabilistic import interaction_type
from torch import Tensor
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Distribution

from rl_policies.distributions.delta import Delta
from rl_policies.distributions.fast_sampling import Draw, can_draw, direct_draw
from rl_policies.distributions.independent_normal import IndependentNormal
from rl_policies.distributions.masked_categorical import MaskedOneHotCategorical
from rl_policies.distributions.nan_check import refuse_nan_actions, refuse_nan_density
from rl_policies.distributions.one_hot import OneHotCategorical
from rl_policies.distributions.ordinal import OneHotOrdinal
from rl_policies.distributions.tanh_normal import TanhNormal
from rl_policies.distributions.truncated_normal import TruncatedNormal
from rl_policies.keys import ACTION, SAMPLE_LOG_PROB
from rl_policies.modules.action_spec import ActionForm, check_safe, form_of
from rl_specs import OneHot, TensorSpec
from rl_tensordict import NestedKey, TensorStep, as_tuple, note_call, note_errors, require

BETWEEN_BOUNDS = (TanhNormal, TruncatedNormal)
ONE_HOT = (OneHotCategorical, MaskedOneHotCategorical, OneHotOrdinal)
DistributionKeys = NestedKey | Sequence[NestedKey] | dict[str, NestedKey]


class SamplingModule(TensorStep, ProbabilisticTensorDictModule):  # type: ignore[misc]
    """The last part of a `ProbabilisticActor`: reads parameters, writes a sample.

    What is written follows `set_interaction_type`: a sample under RANDOM, otherwise the mode, the
    mean, the median or the distribution's deterministic sample.

    Args:
        in_keys: keys of the parameters; the last part of each is the name of an argument of the
            distribution. A dict gives other names: argument to key.
        out_keys: key of the sample; `["action"]` by default.
        spec: spec of the sample, or a `Composite` that holds it. Samples are checked against it,
            and one-hot distributions draw in its dtype.
        distribution_class: makes the distribution.
        distribution_kwargs: further arguments of it. `low` and `high` of a `TanhNormal` or a
            `TruncatedNormal` default to the bounds of the spec if these are finite, and must be
            given where environments have different ones.
        return_log_prob: write the log-probability too, `[*B]`.
        log_prob_key: where to; `"sample_log_prob"` by default.
        default_interaction_type: what is done where no interaction type is set.
        safe: project samples into the spec, which waits for the device. The log-probability is
            that of the projected sample.
        **kwargs: what tensordict's `ProbabilisticTensorDictModule` takes besides.

    Raises:
        TypeError: the distribution has no argument of that name, or cannot draw what the spec
            describes.
        ValueError: its bounds are outside the spec's and `safe` is not set, the spec has different
            ones for environments and none were given, or `safe` is set and there is no spec.
        KeyError: the spec holds other keys only.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> module = SamplingModule(["logits"], distribution_class=OneHotCategorical)
        >>> module(TensorDict({"logits": torch.tensor([[0.0, 1.0]])}, [1]))["action"]
        tensor([[0, 1]])
    """

    # shape and dtype of the last parameters that were checked; loops draw from such ones again
    _checked: tuple[torch.Size, torch.dtype] | None = None

    @note_errors
    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
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
        composite = distribution_class is CompositeDistribution
        if not composite:
            out_keys = ACTION if out_keys is None else out_keys
            if "log_prob_keys" not in kwargs:
                log_prob_key = log_prob_key or SAMPLE_LOG_PROB
        super().__init__(
            in_keys,
            out_keys,
            distribution_class=distribution_class,
            distribution_kwargs=distribution_kwargs,
            return_log_prob=return_log_prob,
            log_prob_key=log_prob_key,
            default_interaction_type=default_interaction_type,
            **kwargs,
        )
        self.in_keys: list[NestedKey] = list(self.in_keys)
        self._composite = composite
        self._simple = not composite and kwargs.get("generator") is None
        self._names = [as_tuple(key)[-1] for key in self.dist_keys]
        self.spec = spec
        self._form: ActionForm | None = None
        # the shape of a Categorical sample does not show the number of choices
        self._has_scores = _is_categorical(distribution_class)
        if not composite:
            _check_names(distribution_class, self._names)
            self._form = form_of(spec, self.dist_sample_keys[0])
        if self._form is not None:
            self._has_scores = self._has_scores and self._form.groups is None
            self.distribution_kwargs: Any = _arguments_of_spec(
                distribution_class, distribution_kwargs or {}, self._form, safe
            )
        check_safe(safe, self._form)
        self.safe = safe
        self._draw: Draw | None = None
        # the fast draw cannot cast samples to the dtype of the spec
        casts = self._has_scores and self._form is not None and self._form.dtype != torch.int64
        if self._simple and self.num_samples is None and not (safe or casts):
            self._draw = direct_draw(distribution_class, self._names, self.distribution_kwargs)

    @property
    def out_keys(self) -> list[NestedKey]:
        """The key of the sample, and with `return_log_prob` that of its log-probability."""
        if self._composite:
            return list(super().out_keys)
        return [*self._out_keys, self._log_prob_key] if self.return_log_prob else [*self._out_keys]

    def distribution(self, *parameters: Tensor) -> Distribution:
        """Make the distribution.

        Args:
            parameters: one for each of `in_keys`.

        Returns:
            The distribution.
        """
        try:
            named = dict(zip(self._names, parameters, strict=True))
            dist: Distribution = self.distribution_class(**named, **self.distribution_kwargs)
        except Exception as error:
            note_call(error, f"the distribution of {type(self).__name__}", parameters, self.in_keys)
            raise
        return dist

    @note_errors
    def get_dist(self, tensordict: TensorDictBase) -> Distribution:
        """Make the distribution from the parameters in a tensordict.

        Args:
            tensordict: holds the parameters.

        Returns:
            The distribution.

        Raises:
            KeyError: a parameter is missing.
        """
        if self._composite:
            dist: Distribution = super().get_dist(tensordict)
            return dist
        return self.distribution(*[require(tensordict, key) for key in self.in_keys])

    build_dist_from_params = get_dist

    @note_errors
    def log_prob(self, tensordict: TensorDictBase, *, dist: Distribution | None = None) -> Any:
        """Compute the log-probability of the sample in a tensordict.

        Args:
            tensordict: holds the sample, and the parameters where no `dist` is given.
            dist: the distribution.

        Returns:
            Floats `[*B]`.

        Raises:
            KeyError: the sample or a parameter is missing.
        """
        if self._composite:
            return super().log_prob(tensordict, dist=dist)
        dist = self.get_dist(tensordict) if dist is None else dist
        return dist.log_prob(require(tensordict, self.dist_sample_keys[0]))

    def step(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Draw from the distribution of some parameters.

        Args:
            tensors: one for each of `in_keys`.

        Returns:
            The sample, and with `return_log_prob` its log-probability.

        Raises:
            TypeError: the sample has another dtype than the spec; or the module makes a composite
                distribution, several samples or uses a generator of its own, which need a
                tensordict.
            ValueError: the sample has another shape than the spec.
            RuntimeError: the sample is NaN, or the density of one that was drawn; it is looked for
                on a CPU, without gradients.
            NotImplementedError: what the interaction type asks for does not exist.

        Example:
            >>> import torch
            >>> module = SamplingModule(["loc", "scale"], distribution_class=IndependentNormal)
            >>> module.step(torch.zeros(3, 2), torch.ones(3, 2))[0].shape
            torch.Size([3, 2])
        """
        kind = interaction_type() or self.default_interaction_type
        if kind is InteractionType.RANDOM and self._draw is not None:
            drawn = self._draw_directly(self._draw, tensors)
            if drawn is not None:
                return drawn
        if not self.takes_tensors():
            msg = (
                "composite distributions, num_samples and generators need a tensordict: "
                "call the module instead of step"
            )
            raise TypeError(msg)
        dist = self.distribution(*tensors)
        sample = self._sample_of(dist, kind)
        if self._form is not None:
            if self._has_scores:
                self._form.check_scores(dist.param_shape[-1])  # type: ignore[attr-defined]
            sample = self._form.fitted(sample, self.safe)
        is_acting = not torch.is_grad_enabled()
        if is_acting:
            refuse_nan_actions(sample)
        if not self.return_log_prob:
            return (sample,)
        log_prob = dist.log_prob(sample)
        # that of a mode may be NaN for a scale of 0, and nothing needs it
        if is_acting and kind is InteractionType.RANDOM and sample.is_floating_point():
            refuse_nan_density(log_prob)
        return sample, log_prob

    def _sample_of(self, dist: Distribution, kind: InteractionType) -> Tensor:
        """What an interaction type takes of a distribution."""
        if kind is InteractionType.RANDOM:
            return dist.rsample() if dist.has_rsample else dist.sample()
        if kind is InteractionType.MEAN and isinstance(dist, TorchCategorical):
            msg = f"numbers of choices of a {type(dist).__name__} have no mean: set MODE"
            raise NotImplementedError(msg)
        point: Tensor = self._dist_sample(dist, interaction_type=kind)
        return point

    def _draw_directly(self, draw: Draw, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """The outputs of `step`, drawn without a distribution object; None if one is needed."""
        if self._fits(tensors):
            pair = draw(*tensors)
            return pair if self.return_log_prob else pair[:1]
        if not can_draw(*tensors):
            return None
        if len(tensors) != len(self._names):
            msg = f"step takes one tensor for each of {self.in_keys}: got {len(tensors)}"
            raise TypeError(msg)
        pair = draw(*tensors)
        if self._form is not None:
            self._form.check(pair[0])
            if self._has_scores:
                self._form.check_scores(tensors[0].shape[-1])
        if not torch.compiler.is_dynamo_compiling():
            self._checked = (tensors[0].shape, tensors[0].dtype)
        return pair if self.return_log_prob else pair[:1]

    def _fits(self, tensors: tuple[Tensor, ...]) -> bool:
        """Whether parameters have the form of the last ones that were checked."""
        checked = self._checked
        if checked is None or torch.is_grad_enabled() or len(tensors) != len(self._names):
            return False
        if torch.compiler.is_dynamo_compiling():
            return False
        shape, dtype = checked
        for tensor in tensors:  # noqa: SIM110 - twice as fast as all()
            if tensor.dtype is not dtype or tensor.shape != shape:
                return False
        return True

    def takes_tensors(self) -> bool:
        """Tell whether `step` can draw.

        Returns:
            False for composite distributions, several samples and generators, which need a
            tensordict.
        """
        return self._simple and self.num_samples is None


def _is_categorical(distribution_class: Any) -> bool:
    return isinstance(distribution_class, type) and issubclass(distribution_class, TorchCategorical)


def _check_names(distribution_class: Any, names: list[str]) -> None:
    """Raise for parameter names that the distribution does not take."""
    try:
        parameters = inspect.signature(distribution_class).parameters
    except (TypeError, ValueError):
        return
    if any(argument.kind is argument.VAR_KEYWORD for argument in parameters.values()):
        return
    unknown = [name for name in names if name not in parameters]
    if unknown:
        title = getattr(distribution_class, "__name__", distribution_class)
        msg = (
            f"{title} has no argument {unknown}: it takes {list(parameters)}. Name the out_keys of "
            "the network so, or give in_keys as {argument: key}."
        )
        raise TypeError(msg)


def _arguments_of_spec(distribution_class: Any, kwargs: Any, form: ActionForm, safe: bool) -> Any:
    """Check that a distribution fits its spec; return its arguments with dtype or bounds."""
    title, leaf = getattr(distribution_class, "__name__", distribution_class), form.leaf
    if distribution_class in ONE_HOT:
        if type(leaf) is not OneHot:
            msg = f"{title} needs a OneHot spec: got {type(leaf).__name__}"
            raise TypeError(msg)
        return {"dtype": form.dtype, **kwargs}
    normal = (IndependentNormal, *BETWEEN_BOUNDS)
    if distribution_class in normal and not form.dtype.is_floating_point:
        msg = f"{title} draws floating-point numbers: got a spec of {form.dtype}"
        raise TypeError(msg)
    box = form.box() if distribution_class in BETWEEN_BOUNDS else None
    if box is None:
        return kwargs
    if form.bounds_differ() and not {"low", "high"} <= kwargs.keys():
        msg = (
            f"the bounds of {form.key!r} differ from environment to environment, {box[0].tolist()} "
            f"to {box[1].tolist()}, and a {title} has one pair: pass distribution_kwargs={{'low': "
            "..., 'high': ...}, what all of them allow, or tensors that broadcast against actions."
        )
        raise ValueError(msg)
    kwargs = {**form.bounds(), **kwargs}
    low, high = kwargs.get("low", -1.0), kwargs.get("high", 1.0)
    if not safe and bool((box[0] > low).any() or (box[1] < high).any()):
        msg = (
            f"{title} draws from {low} to {high}, outside of the spec. Pass "
            "distribution_kwargs={'low': spec.space.low, 'high': spec.space.high}."
        )
        raise ValueError(msg)
    return kwargs
