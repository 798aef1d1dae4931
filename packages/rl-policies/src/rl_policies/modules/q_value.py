"""Policies that take the action of the highest value."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any, Literal

import torch
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import Tensor, nn

from rl_layout import recurrent_mode
from rl_policies.distributions.nan_check import can_look
from rl_policies.keys import ACTION, ACTION_VALUE, CHOSEN_ACTION_VALUE, OBSERVATION, listed
from rl_policies.modules.action_spec import check_safe, form_of
from rl_policies.modules.choice_mask import check_mask
from rl_policies.modules.policy_sequence import PolicySequence
from rl_specs import Categorical, MultiCategorical, MultiOneHot, OneHot, TensorSpec
from rl_tensordict import NestedKey, TensorStep, note_call, note_errors

ActionSpace = Literal["one_hot", "categorical", "multi_one_hot", "multi_categorical"]
SPACES: dict[type, ActionSpace] = {
    OneHot: "one_hot",
    Categorical: "categorical",
    MultiOneHot: "multi_one_hot",
    MultiCategorical: "multi_categorical",
}


class GreedyChoice(nn.Module):
    """Greedy action and its value, on plain tensors."""

    # Ties go to the first choice. The mask restricts the choices and changes no value. With several
    # groups, the best choice of each is taken, and the value is their sum.

    def __init__(
        self,
        action_space: ActionSpace,
        dtype: torch.dtype = torch.int64,
        groups: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        self.action_space = action_space
        self.dtype = dtype
        self.groups = groups

    def forward(self, values: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Choose: actions, one-hot `[*B, n]` or indices `[*B]` or `[*B, K]`; values `[*B, 1]`."""
        scores = values
        if mask is not None:
            check_mask(mask, values.shape)
            mask = mask.expand(values.shape)
            scores = values.masked_fill(~mask, -torch.inf)
        index = self._best(scores, mask)
        places = index if self.groups is None else index + self._firsts(index)
        chosen = values.gather(-1, places)
        if self.groups is not None:
            chosen = chosen.sum(-1, keepdim=True)
        if mask is not None:
            chosen = self._of_allowed(chosen, mask)
        _refuse_nan(chosen, scores)
        if self.action_space == "categorical":
            return index.squeeze(-1).to(self.dtype), chosen
        if self.action_space == "multi_categorical":
            return index.to(self.dtype), chosen
        action = torch.zeros(values.shape, dtype=self.dtype, device=values.device)
        return action.scatter_(-1, places, 1), chosen

    def _best(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """The best allowed choice of each group, `[*B, K]`."""
        if self.groups is None:
            return _best_of(scores, mask)
        sizes = self.groups
        masks = [None] * len(sizes) if mask is None else mask.split(sizes, -1)
        parts = zip(scores.split(sizes, -1), masks, strict=True)
        return torch.cat([_best_of(part, allowed) for part, allowed in parts], -1)

    def _of_allowed(self, chosen: Tensor, mask: Tensor) -> Tensor:
        """The values of choices; NaN in a batch to learn from where a mask allows none."""
        # the last state of an episode may allow nothing, and its value is not used
        if recurrent_mode() is not True:
            return chosen
        masks = [mask] if self.groups is None else mask.split(self.groups, -1)
        empty = ~torch.stack([one.any(-1, keepdim=True) for one in masks]).all(0)
        return chosen.masked_fill(empty, torch.nan)

    def _firsts(self, like: Tensor) -> Tensor:
        """First index of each group, `[K]`."""
        assert self.groups is not None
        sizes = torch.tensor((0, *self.groups[:-1]), device=like.device)
        return sizes.cumsum(0)


def _refuse_nan(chosen: Tensor, scores: Tensor) -> None:
    """Raise for NaN among scores ``[*B, n]``, of which argmax chooses one that is NaN."""
    if not can_look(chosen):
        return
    total = chosen if chosen.numel() == 1 else chosen.sum()
    if isnan(total.item()) and bool(scores.isnan().any()):  # it may be inf - inf as well
        wrong = scores.isnan().any(-1)
        msg = (
            f"action values are NaN in {int(wrong.sum())} of {wrong.numel()} rows, where none is "
            "the highest. Look at the weights of the network, and at its inputs."
        )
        raise ValueError(msg)


def _best_of(scores: Tensor, mask: Tensor | None) -> Tensor:
    """The best choice `[*B, 1]`; an allowed one even if all allowed values are -inf."""
    best = scores.argmax(-1, keepdim=True)
    if mask is None:
        return best
    # argmax over -inf alone may pick a forbidden choice: take the first allowed one instead
    first = mask.to(torch.uint8).argmax(-1, keepdim=True)
    best = torch.where(mask.gather(-1, best), best, first)
    may_look = not torch.compiler.is_compiling() and recurrent_mode() is not True
    if may_look and not bool(mask.gather(-1, best).all()):
        empty = int((~mask.any(-1)).sum())
        msg = f"the mask must allow a choice in every row: {empty} of {best.numel()} are empty."
        raise ValueError(msg)
    return best


class QValueModule(TensorStep, TensorDictModule):  # type: ignore[misc]
    """The last part of a `QValueActor`: reads values, writes the action that is worth most.

    Args:
        action_space: `"one_hot"` or `"categorical"`; may be left out if there is a spec, and is
            not enough for several choices at once.
        action_value_key: what it reads; `"action_value"` where None.
        action_mask_key: bool `[*B, n]`, True where a choice is allowed; None if all are.
        out_keys: the action, the values again, the value of the action.
        spec: spec of the action, or a `Composite` that holds it; gives the dtype.
        safe: keep to the mask of the spec as well: the best choice that it allows is taken.

    Raises:
        ValueError: neither action space nor spec is given, they contradict each other, there
            are not three keys, or `safe` is set without a spec.
        TypeError: the spec is of no such kind.
        KeyError: the spec holds other keys only.

    Example:
        >>> module = QValueModule("one_hot")
        >>> module.step(torch.tensor([[0.0, 2.0]]))
        (tensor([[0, 1]]), tensor([[0., 2.]]), tensor([[2.]]))
    """

    @note_errors
    def __init__(
        self,
        action_space: str | None = None,
        action_value_key: NestedKey | None = ACTION_VALUE,
        action_mask_key: NestedKey | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        *,
        spec: TensorSpec | None = None,
        safe: bool = False,
    ) -> None:
        action_value_key = ACTION_VALUE if action_value_key is None else action_value_key
        written = list(out_keys or (ACTION, action_value_key, CHOSEN_ACTION_VALUE))
        if len(written) != 3:
            msg = f"out_keys must name action, values and value of the action: got {written}"
            raise ValueError(msg)
        form = form_of(spec, written[0])
        space = _space(action_space, None if form is None else form.leaf)
        dtype, groups = (torch.int64, None) if form is None else (form.dtype, form.groups)
        choice = GreedyChoice(space, dtype, groups)
        check_safe(safe, form)
        masks = [] if action_mask_key is None else [action_mask_key]
        super().__init__(choice, [action_value_key, *masks], written)
        self.spec = spec
        self.safe = safe
        self._form = form
        self.action_mask_key = action_mask_key

    @property
    def action_space(self) -> ActionSpace:
        """How an action is written: `"one_hot"`, `"categorical"`, or several of either at once."""
        space: ActionSpace = self.module.action_space
        return space

    def step(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Choose.

        Args:
            tensors: floats `[*B, n]`, and the mask if there is a key for it.

        Returns:
            The actions, `[*B, n]` one-hot, `[*B]` categorical or `[*B, K]` for K numbers at once;
            the values as they came; the values of the actions, `[*B, 1]`.

        Raises:
            ValueError: there are not as many values as the spec has choices; or values on the CPU
                are NaN, unless code is compiled or the mode is recurrent, as in losses. A mask of
            another shape, or one that allows nothing in a row; in losses the value of such a row
            is NaN, which the last state of an episode may be.
            TypeError: the mask is not bool.
        """
        try:
            return self._call_module(tensors)
        except Exception as error:
            note_call(error, f"{type(self).__name__}.step", tensors, self.in_keys)
            raise

    def _call_module(self, tensors: Sequence[Tensor], **_: Any) -> tuple[Tensor, ...]:
        if self._form is not None:
            self._form.check_scores(tensors[0].shape[-1])
        values, *masks = tensors
        own = self._own_mask(values) if self.safe else None
        if own is not None:
            for mask in masks:
                check_mask(mask, values.shape)
            masks = [own & mask for mask in masks] or [own]
        action, chosen = self.module(values, *masks)
        return action, values, chosen

    def _own_mask(self, values: Tensor) -> Tensor | None:
        """The mask of the spec, for values `[*B, n]`; None if all is allowed."""
        assert self._form is not None
        tail = self._form.tail if self.action_space.startswith("multi") else values.shape[-1:]
        tail = torch.Size([]) if self.action_space == "categorical" else tail
        leaf = self._form.over(values.shape[:-1] + tail)
        mask: Tensor | None = leaf.mask  # type: ignore[attr-defined]
        return None if mask is None else mask.to(values.device).expand(values.shape)


class GreedySequence(PolicySequence, TensorDictSequential):  # type: ignore[misc]
    """A network of action values, and last the module that chooses by them."""

    @property
    def spec(self) -> TensorSpec | None:
        """The spec of the action, as it was given."""
        spec: TensorSpec | None = self.module[-1].spec
        return spec

    @property
    def action_space(self) -> ActionSpace:
        """How an action is written: `"one_hot"`, `"categorical"`, or several of either at once."""
        space: ActionSpace = self.module[-1].action_space
        return space


class QValueActor(GreedySequence):
    """A network of action values, and the action that is worth most.

    Written are the action, `[*B, n]` one-hot or `[*B]` categorical; `"action_value"`, `[*B, n]`;
    and `"chosen_action_value"`, `[*B, 1]`. Explore by an `EGreedyModule` after it.

    With a `MultiOneHot` or `MultiCategorical` spec the network returns the values of all groups
    side by side, the best of each is chosen, and the value of the action is their sum.

    Args:
        module: a network that returns `[*B, n]` for the tensors of `in_keys`; or a tensordict
            module that writes `action_value_key`.
        in_keys: what the network reads; `["observation"]` by default.
        spec: spec of the action, or a `Composite` that holds it.
        action_space: `"one_hot"` or `"categorical"`; may be left out if there is a spec.
        action_value_key: where the values go; `"action_value"` where None.
        action_key: where the action goes.
        chosen_action_value_key: where the value of the action goes.
        action_mask_key: bool `[*B, n]`, True where a choice is allowed; None if all are.
        safe: keep to the mask of the spec as well; see `QValueModule`.

    Raises:
        ValueError: neither action space nor spec is given, they contradict each other, the
            module does not write the values, or `safe` is set without a spec.
        TypeError: the spec is of no kind of choices.
        KeyError: the spec holds other keys only.

    Example:
        >>> actor = QValueActor(nn.Linear(3, 4), spec=Categorical(4))
        >>> action, values, chosen = actor.step(torch.zeros(5, 3))
        >>> action.shape, values.shape, chosen.shape
        (torch.Size([5]), torch.Size([5, 4]), torch.Size([5, 1]))
    """

    @note_errors
    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        module: nn.Module,
        *,
        in_keys: Sequence[NestedKey] | None = None,
        spec: TensorSpec | None = None,
        action_space: str | None = None,
        action_value_key: NestedKey | None = ACTION_VALUE,
        action_key: NestedKey = ACTION,
        chosen_action_value_key: NestedKey = CHOSEN_ACTION_VALUE,
        action_mask_key: NestedKey | None = None,
        safe: bool = False,
    ) -> None:
        action_value_key = ACTION_VALUE if action_value_key is None else action_value_key
        out_keys = [action_key, action_value_key, chosen_action_value_key]
        choice = QValueModule(
            action_space, action_value_key, action_mask_key, out_keys, spec=spec, safe=safe
        )
        super().__init__(network_of(module, in_keys, action_value_key), choice)

    @property
    def action_mask_key(self) -> NestedKey | None:
        """Where the mask of allowed choices is; None if all are."""
        key: NestedKey | None = self.module[-1].action_mask_key
        return key


def network_of(
    module: nn.Module, in_keys: Sequence[NestedKey] | None, key: NestedKey
) -> TensorDictModuleBase:
    """A network as a tensordict module that writes action values under a key."""
    if not isinstance(module, TensorDictModuleBase):
        return TensorDictModule(module, listed(in_keys, OBSERVATION), [key])
    if key not in module.out_keys:
        msg = f"the module must write {key!r}: it writes {module.out_keys}"
        raise ValueError(msg)
    return module


def _space(action_space: str | None, leaf: TensorSpec | None) -> ActionSpace:
    """Resolve the encoding of actions from the argument and the spec."""
    named_space = None if action_space is None else action_space.replace("-", "_")
    if named_space not in (None, *SPACES.values()):
        msg = f"action_space must be one of {list(SPACES.values())}: got {action_space!r}"
        raise ValueError(msg)
    if leaf is None and named_space not in ("one_hot", "categorical"):
        msg = "how are actions written? Pass spec, or action_space='one_hot' or 'categorical'."
        raise ValueError(msg)
    if leaf is None:
        return "one_hot" if named_space == "one_hot" else "categorical"
    space = SPACES.get(type(leaf))
    if space is None:
        kinds = ", ".join(kind.__name__ for kind in SPACES)
        msg = f"the spec of the action must be one of {kinds}: got {type(leaf).__name__}"
        raise TypeError(msg)
    if named_space not in (None, space):
        msg = f"action_space={action_space!r} contradicts the spec, which is {space!r}"
        raise ValueError(msg)
    return space
