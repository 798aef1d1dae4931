"""Actions that an observation forbids."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout.keys import DONE
from rl_specs import Categorical, Composite, MultiCategorical, MultiOneHot, OneHot, TensorSpec
from rl_tensordict import NestedKey
from rl_transforms.entries import required
from rl_transforms.transform import Transform, spec_of

Choices = Categorical | OneHot  # their kinds of several choices among them


class ActionMask(Transform):
    """Lets random actions obey a mask that the environment shows, and refuses forbidden ones.

    The mask has the shape of the action in its one-hot form ``[*B, n]`` (several choices side by
    side), True or not 0 where a choice is allowed. `TransformedEnv.rand_action`, `rand_step` and
    random rollouts read it from the root that they act on; nothing is kept, so any root will do. A
    policy reads the same key: ``ProbabilisticActor(..., in_keys={"mask": "action_mask", ...})``
    with a `MaskedCategorical`. Whatever chose it, a forbidden action does not reach the
    environment.

    A row that is not done must be allowed something. Inside a serial or parallel environment,
    which draws the actions, the mask belongs outside.

    Args:
        action_key: the action, one of some choices.
        mask_key: the mask, an observation.

    Raises:
        TypeError: a key is none.

    Example:
        >>> from tensordict import TensorDict
        >>> masked = ActionMask()
        >>> specs = Composite(action=Categorical(3, (2,)), shape=(2,))
        >>> mask = torch.tensor([[False, True, False], [True, False, False]])
        >>> masked.rand(TensorDict({"action_mask": mask}, [2]), specs)
        tensor([1, 0])
    """

    places = frozenset({"environment"})

    def __init__(
        self, action_key: NestedKey = "action", mask_key: NestedKey = "action_mask"
    ) -> None:
        super().__init__([mask_key], in_keys_inv=[action_key])
        self.action_key, self.mask_key = action_key, mask_key
        self._mask_spec: TensorSpec | None = None
        self._action_spec: Choices | None = None

    def rand(self, root: TensorDictBase, spec: Composite) -> Tensor:
        """Draw an action that the mask of a root allows, all with the same chance.

        Args:
            root: ``[*B]`` with the mask, or any number of them.
            spec: of all actions, `action_key` among them.

        Returns:
            The action.

        Raises:
            KeyError: there is no mask, or no such action.
            ValueError: a row allows nothing, or the action is no choice.
        """
        mask, leaf = self._mask(root), self._checked(spec)
        self._refuse_nothing(mask, None, leaf)
        # dimensions that the root has beyond the spec: one mask of the spec for each
        lead = mask.shape[: mask.ndim - leaf.to_one_hot_spec().ndim]
        masked = leaf.expand(*lead, *leaf.shape).clone()
        masked.update_mask(mask)
        drawn: Tensor = masked.rand()
        return drawn

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Leave rows as they are: what was done was allowed."""
        return batch

    def inv(self, batch: TensorDictBase) -> TensorDictBase:
        """Raise for forbidden actions on their way into the environment.

        Args:
            batch: a step's root ``[*B]``, with action and mask.

        Returns:
            The root itself.

        Raises:
            KeyError: action or mask is missing.
            ValueError: an action is forbidden; the message names the rows.
        """
        mask = self._mask(batch)
        forbidden = self._forbidden(required(self, batch, self.action_key), mask)
        if bool(forbidden.any()):
            rows = [tuple(row) for row in forbidden.nonzero().tolist()]
            where = f" in rows {rows[:10]}" if forbidden.ndim else ""
            msg = (
                f"ActionMask: {self.mask_key!r} forbids the action{where}: let the policy read "
                f"the mask, or draw with env.rand_action(root)."
            )
            raise ValueError(msg)
        return batch

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Raise for a mask that allows nothing.

        Args:
            root: ``[*B]``, after the reset.
            mask: bool ``[*B]``, the rows that were reset; None if all were.

        Returns:
            The root itself.

        Raises:
            KeyError: the mask is missing.
            ValueError: a row allows nothing and is not done.
        """
        self._refuse_nothing(self._mask(root), root.get(DONE, None), self._action_spec)
        return root

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Raise for a mask that allows nothing where the episode continues, as `reset` does."""
        self._refuse_nothing(self._mask(after), after.get(DONE, None), self._action_spec)
        return after

    def transform_observation_spec(self, spec: Composite) -> Composite:
        """Learn the form of the mask; the spec itself stays as it is.

        Raises:
            KeyError: there is no such observation.
        """
        self._mask_spec = spec_of("ActionMask", spec, self.mask_key, "observation")
        return spec

    def transform_action_spec(self, spec: Composite) -> Composite:
        """Learn the form of the action; the spec itself stays as it is.

        Raises:
            KeyError: there is no such action.
            ValueError: it is not one of some choices, or the mask has not its one-hot form.
        """
        self._action_spec = leaf = self._checked(spec)
        hot = leaf.to_one_hot_spec().shape
        if self._mask_spec is not None and self._mask_spec.shape != hot:
            msg = (
                f"ActionMask: {self.mask_key!r} must have the shape of {self.action_key!r} in its "
                f"one-hot form, {list(hot)}: got {list(self._mask_spec.shape)}."
            )
            raise ValueError(msg)
        return spec

    def _checked(self, spec: Composite) -> Choices:
        leaf = spec_of("ActionMask", spec, self.action_key, "action")
        if not isinstance(leaf, Choices):
            msg = (
                f"ActionMask: {self.action_key!r} must be one of some choices, Categorical, OneHot "
                f"or several of them: got {type(leaf).__name__}."
            )
            raise ValueError(msg)
        return leaf

    def _mask(self, batch: TensorDictBase) -> Tensor:
        mask = required(self, batch, self.mask_key)
        return mask if mask.dtype == torch.bool else mask != 0

    def _forbidden(self, action: Tensor, mask: Tensor) -> Tensor:
        """Which rows ``[*B]`` hold a forbidden action."""
        if isinstance(self._action_spec, MultiCategorical):
            action = self._action_spec.to_one_hot(action, safe=False)
        # one-hot [*B, n]: forbidden where an entry is set and its mask is not
        if action.shape == mask.shape:
            return (action.bool() & ~mask).any(-1)
        # a number [*B] of a choice: the entry of the mask at that number
        return ~mask.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)

    def _refuse_nothing(self, mask: Tensor, done: Tensor | None, leaf: Choices | None) -> None:
        # [*B, n1 + n2 + ...] -> one mask for each choice
        parts = [mask] if leaf is None else mask.split(_counts(leaf), -1)
        empty = torch.stack([~part.any(-1) for part in parts]).any(0)
        if done is not None:
            over = done.squeeze(-1)
            empty &= ~over.reshape((*over.shape, *[1] * (empty.ndim - over.ndim)))
        if bool(empty.any()):
            rows = [tuple(row) for row in empty.nonzero().tolist()]
            where = f" in rows {rows[:10]}" if empty.ndim else ""
            msg = (
                f"ActionMask: {self.mask_key!r} allows no choice at all{where}: an episode without "
                "a legal action must be done."
            )
            raise ValueError(msg)


def _counts(leaf: Choices) -> list[int]:
    """How many entries of the mask belong to each choice."""
    if isinstance(leaf, MultiOneHot):
        return list(leaf.nvec)
    if isinstance(leaf, MultiCategorical):
        columns = leaf.nvec if leaf.nvec.ndim < 2 else leaf.nvec.reshape(-1, leaf.shape[-1])[0]
        return [int(count) for count in columns.reshape(-1)]
    return [leaf.n]
