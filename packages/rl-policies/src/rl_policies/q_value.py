"""Policies that take the action of the highest value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import Tensor, nn

from rl_layout.keys import NestedKey
from rl_policies.action_spec import form_of
from rl_policies.keys import ACTION, ACTION_VALUE, CHOSEN_ACTION_VALUE, OBSERVATION, listed
from rl_policies.plan import PlannedStep
from rl_policies.tensor_step import TensorStep
from rl_specs import Categorical, OneHot, TensorSpec

ActionSpace = Literal["one_hot", "categorical"]


class GreedyChoice(nn.Module):
    """The choice of the highest value, and that value, on plain tensors.

    The first of equal choices is taken. The mask decides what may be chosen, and changes no value.

    Args:
        action_space: `"one_hot"` or `"categorical"`.
        dtype: dtype of the actions.

    Example:
        >>> GreedyChoice("categorical")(torch.tensor([[0.0, 2.0, 1.0]]))
        (tensor([1]), tensor([[2.]]))
        >>> GreedyChoice("one_hot")(
        ...     torch.tensor([[0.0, 2.0, 1.0]]), torch.tensor([[True, False, True]])
        ... )
        (tensor([[0, 0, 1]]), tensor([[1.]]))
    """

    def __init__(self, action_space: ActionSpace, dtype: torch.dtype = torch.int64) -> None:
        super().__init__()
        self.action_space = action_space
        self.dtype = dtype

    def forward(self, values: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Choose.

        Args:
            values: floats `[*B, n]`.
            mask: bool, broadcasts to `[*B, n]`, True where a choice is allowed.

        Returns:
            The actions, `[*B, n]` one-hot or `[*B]` categorical; and their values, `[*B, 1]`.

        Raises:
            TypeError: the mask is not bool.
        """
        scores = values
        if mask is not None:
            if mask.dtype != torch.bool:
                msg = f"the mask must be bool, True where a choice is allowed: got {mask.dtype}"
                raise TypeError(msg)
            scores = values.masked_fill(~mask, -torch.inf)
        index = scores.argmax(-1, keepdim=True)
        chosen = values.gather(-1, index)
        if self.action_space == "categorical":
            return index.squeeze(-1).to(self.dtype), chosen
        action = torch.zeros(values.shape, dtype=self.dtype, device=values.device)
        return action.scatter_(-1, index, 1), chosen


class QValueModule(TensorStep, TensorDictModule):  # type: ignore[misc]
    """The last part of a `QValueActor`: reads values, writes the action that is worth most.

    Args:
        action_space: `"one_hot"` or `"categorical"`; may be left out where there is a spec.
        action_value_key: what it reads.
        action_mask_key: bool `[*B, n]`, True where a choice is allowed; None where all are.
        out_keys: the action, the values again, the value of the action.
        spec: spec of the action, or a `Composite` that holds it; gives the dtype.

    Raises:
        ValueError: neither action space nor spec is given, they contradict each other, or there
            are not three keys.
        TypeError: the spec is of no such kind.
        KeyError: the spec holds other keys only.

    Example:
        >>> module = QValueModule("one_hot")
        >>> module.step(torch.tensor([[0.0, 2.0]]))
        (tensor([[0, 1]]), tensor([[0., 2.]]), tensor([[2.]]))
    """

    def __init__(
        self,
        action_space: str | None = None,
        action_value_key: NestedKey = ACTION_VALUE,
        action_mask_key: NestedKey | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        *,
        spec: TensorSpec | None = None,
    ) -> None:
        written = list(out_keys or (ACTION, action_value_key, CHOSEN_ACTION_VALUE))
        if len(written) != 3:
            msg = f"out_keys must name action, values and value of the action: got {written}"
            raise ValueError(msg)
        form = form_of(spec, written[0])
        space = _space(action_space, None if form is None else form.leaf)
        choice = GreedyChoice(space, torch.int64 if form is None else form.dtype)
        masks = [] if action_mask_key is None else [action_mask_key]
        super().__init__(choice, [action_value_key, *masks], written)
        self.spec = spec
        self._form = form

    @property
    def action_space(self) -> ActionSpace:
        """How an action is written: `"one_hot"` or `"categorical"`."""
        space: ActionSpace = self.module.action_space
        return space

    def step(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Choose.

        Args:
            tensors: floats `[*B, n]`, and the mask where there is a key for it.

        Returns:
            The actions, `[*B, n]` one-hot or `[*B]` categorical; the values as they came; the
            values of the actions, `[*B, 1]`.

        Raises:
            ValueError: there are not as many values as the spec has choices.
            TypeError: the mask is not bool.
        """
        return self._call_module(tensors)

    def _call_module(self, tensors: Sequence[Tensor], **_: Any) -> tuple[Tensor, ...]:
        if self._form is not None:
            self._form.check_scores(tensors[0].shape[-1])
        action, chosen = self.module(*tensors)
        return action, tensors[0], chosen


class QValueActor(PlannedStep, TensorDictSequential):  # type: ignore[misc]
    """A network of action values, and the action that is worth most.

    Written are the action, `[*B, n]` one-hot or `[*B]` categorical; `"action_value"`, `[*B, n]`;
    and `"chosen_action_value"`, `[*B, 1]`. Explore by an `EGreedyModule` behind it.

    Args:
        module: a network that returns `[*B, n]` for the tensors of `in_keys`; or a tensordict
            module that writes `action_value_key`.
        in_keys: what the network reads; `["observation"]` by default.
        spec: spec of the action, or a `Composite` that holds it.
        action_space: `"one_hot"` or `"categorical"`; may be left out where there is a spec.
        action_value_key: where the values go.
        action_key: where the action goes.
        chosen_action_value_key: where the value of the action goes.
        action_mask_key: bool `[*B, n]`, True where a choice is allowed; None where all are.

    Raises:
        ValueError: neither action space nor spec is given, they contradict each other, or the
            module does not write the values.
        TypeError: the spec is neither `OneHot` nor `Categorical`.
        KeyError: the spec holds other keys only.

    Example:
        >>> actor = QValueActor(nn.Linear(3, 4), spec=Categorical(4))
        >>> action, values, chosen = actor.step(torch.zeros(5, 3))
        >>> action.shape, values.shape, chosen.shape
        (torch.Size([5]), torch.Size([5, 4]), torch.Size([5, 1]))
    """

    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        module: nn.Module,
        *,
        in_keys: Sequence[NestedKey] | None = None,
        spec: TensorSpec | None = None,
        action_space: str | None = None,
        action_value_key: NestedKey = ACTION_VALUE,
        action_key: NestedKey = ACTION,
        chosen_action_value_key: NestedKey = CHOSEN_ACTION_VALUE,
        action_mask_key: NestedKey | None = None,
    ) -> None:
        out_keys = [action_key, action_value_key, chosen_action_value_key]
        choice = QValueModule(action_space, action_value_key, action_mask_key, out_keys, spec=spec)
        if not isinstance(module, TensorDictModuleBase):
            module = TensorDictModule(module, listed(in_keys, OBSERVATION), [action_value_key])
        elif action_value_key not in module.out_keys:
            msg = f"the module must write {action_value_key!r}: it writes {module.out_keys}"
            raise ValueError(msg)
        super().__init__(module, choice)

    @property
    def spec(self) -> TensorSpec | None:
        """The spec of the action, as it was given."""
        spec: TensorSpec | None = self.module[-1].spec
        return spec

    @property
    def action_space(self) -> ActionSpace:
        """How an action is written: `"one_hot"` or `"categorical"`."""
        space: ActionSpace = self.module[-1].action_space
        return space


def _space(action_space: str | None, leaf: TensorSpec | None) -> ActionSpace:
    """Tell how actions are written, from what was said and from the spec."""
    said = None if action_space is None else action_space.replace("-", "_")
    if said not in (None, "one_hot", "categorical"):
        msg = f"action_space must be 'one_hot' or 'categorical': got {action_space!r}"
        raise ValueError(msg)
    if leaf is None and said is None:
        msg = "how are actions written? Pass spec, or action_space='one_hot' or 'categorical'."
        raise ValueError(msg)
    if leaf is None:
        return "one_hot" if said == "one_hot" else "categorical"
    if type(leaf) not in (OneHot, Categorical):
        msg = f"the spec of the action must be OneHot or Categorical: got {type(leaf).__name__}"
        raise TypeError(msg)
    found: ActionSpace = "one_hot" if isinstance(leaf, OneHot) else "categorical"
    if said not in (None, found):
        msg = f"action_space={action_space!r} contradicts the spec, which is {found!r}"
        raise ValueError(msg)
    return found
