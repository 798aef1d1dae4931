"""Random actions in the place of those of a policy."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from tensordict.nn import InteractionType
from torch import Tensor

from rl_policies.distributions.one_hot import OneHotCategorical
from rl_policies.exploration.annealing import ExplorationModule
from rl_policies.keys import ACTION
from rl_policies.modules.choice_mask import check_mask
from rl_specs import Categorical, OneHot, TensorSpec
from rl_tensordict import NestedKey, as_key, as_tuple, note_errors
from rl_tensordict.types import KeyPath


class EGreedyModule(ExplorationModule):
    """Replaces actions by random ones, each row with probability ε.

        ε ← max(eps_end, ε - frames (eps_init - eps_end) / annealing_num_steps)

    It acts where the interaction type is RANDOM, as collectors set it, and by
    `default_interaction_type` where none is set. Put it after the policy in a
    `TensorDictSequential`; it writes a new action and leaves the old tensor as it was. Random
    numbers come from the generator of torch. ε is a buffer, and so part of `state_dict`.

    Args:
        spec: spec of the action, or a `Composite` that holds it.
        eps_init: ε at the start, 0 to 1.
        eps_end: ε at the end, at most `eps_init`.
        annealing_num_steps: how many frames it takes to get there.
        action_key: what is read and written.
        action_mask_key: bool `[*B, n]`, True where a choice is allowed; random actions keep to it,
            and to the mask of the spec. Without it they are any of the spec, also where the policy
            reads a mask: a bool entry `[*B, n]` next to the action that has "mask" in its name is
            warned of once.
        default_interaction_type: what counts where no interaction type is set.
        device: where the buffers lie.

    Raises:
        ValueError: ε is outside 0 to 1 or would rise, the annealing takes no step, or a mask is
            wanted for a spec that has no choices.
        TypeError: `spec` is no spec.
        KeyError: the spec holds other keys only.

    Example:
        >>> explore = EGreedyModule(Categorical(4), eps_init=1.0, annealing_num_steps=10)
        >>> actions = torch.full((200,), 9)
        >>> explore.step(actions)[0].unique()
        tensor([0, 1, 2, 3])
        >>> explore.step(5)
        >>> explore.eps
        tensor(0.5500)
    """

    eps: Tensor
    eps_init: Tensor
    eps_end: Tensor

    @note_errors
    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        spec: TensorSpec,
        eps_init: float = 1.0,
        eps_end: float = 0.1,
        annealing_num_steps: int = 1000,
        *,
        action_key: NestedKey = ACTION,
        action_mask_key: NestedKey | None = None,
        default_interaction_type: InteractionType | str = InteractionType.RANDOM,
        device: torch.device | str | None = None,
    ) -> None:
        if not 0 <= eps_end <= eps_init <= 1:
            got = f"eps_init={eps_init}, eps_end={eps_end}"
            msg = f"expected 0 <= eps_end <= eps_init <= 1: got {got}"
            raise ValueError(msg)
        rest = action_key, default_interaction_type, device
        super().__init__(spec, "eps", eps_init, eps_end, annealing_num_steps, *rest)
        if action_mask_key is not None:
            kind = type(self._form.leaf)
            if kind not in (OneHot, Categorical):
                msg = f"a mask needs a OneHot or a Categorical spec: got {kind.__name__}"
                raise ValueError(msg)
            self.in_keys.append(action_mask_key)

    def check_entries(self, entries: Mapping[KeyPath, Any]) -> None:
        """Warn once of a mask of choices that random actions do not keep to.

        Args:
            entries: tensors `[*B, ...]` by key.
        """
        if self._has_looked:
            return
        form = self._form
        choices = form.count if form.groups is None else sum(form.groups)
        if len(self.in_keys) > 1 or choices is None:
            return
        group = as_tuple(self.in_keys[0])[:-1]
        for key, value in entries.items():
            is_mask = key[:-1] == group and "mask" in key[-1] and isinstance(value, Tensor)
            if is_mask and value.dtype == torch.bool and value.shape[-1:] == (choices,):
                named = as_key(key)
                advice = f"pass action_mask_key={named!r}"
                if form.groups is not None:
                    advice = "it keeps to masks of OneHot and Categorical specs alone"
                warnings.warn(
                    f"{named!r} looks like a mask of {choices} choices, and EGreedyModule draws "
                    f"random actions of all that its spec allows: {advice}.",
                    UserWarning,
                    stacklevel=2,
                )
        self._has_looked = True  # not where the warning is an error

    def _explored(self, action: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        if not self._acts():
            return (action,)
        dims = self._form.event_dims
        rows = action.shape[: action.ndim - dims]
        random = self._allowed(rows, action, *others) if others else self._random(rows, action)
        chosen = torch.rand(rows, device=action.device) < self.eps
        return (torch.where(chosen.reshape((*rows, *(1,) * dims)), random.to(action), action),)

    def _random(self, rows: torch.Size, action: Tensor) -> Tensor:
        """Draw from the spec as many actions as there are."""
        leaf = self._form.over(action.shape)
        # a spec of one column draws numbers without it
        drawn: Tensor = leaf.rand(action.shape[: action.ndim - leaf.ndim]).reshape(action.shape)
        return drawn

    def _allowed(self, rows: torch.Size, action: Tensor, mask: Tensor) -> Tensor:
        """Draw among the allowed choices, each with the same chance."""
        leaf = self._form.over(action.shape)
        assert isinstance(leaf, OneHot | Categorical)  # others are refused when this is made
        count = leaf.n if self._form.count is not None or isinstance(leaf, OneHot) else None
        check_mask(mask, (*rows, *(mask.shape[-1:] if count is None else (count,))))
        if leaf.mask is not None:
            mask = mask & leaf.mask.to(mask.device)
        if not bool(mask.any(-1).all()):
            msg = (
                "the mask, with that of the spec, must allow a choice in every row: got "
                f"{int((~mask.any(-1)).sum())} empty rows"
            )
            raise ValueError(msg)
        mask = mask.expand(*rows, mask.shape[-1])
        drawn = OneHotCategorical(probs=mask.float()).sample()
        return drawn if isinstance(leaf, OneHot) else drawn.argmax(-1)
