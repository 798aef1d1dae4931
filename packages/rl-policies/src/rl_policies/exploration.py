"""Exploration on top of a policy."""

from __future__ import annotations

from typing import Any, overload

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, dispatch
from tensordict.nn.probabilistic import interaction_type
from torch import Tensor

from rl_layout.keys import NestedKey
from rl_policies.action_spec import form_of
from rl_policies.distributions.one_hot import OneHotCategorical
from rl_policies.keys import ACTION
from rl_policies.tensor_step import TensorStep, write_step
from rl_specs import Categorical, OneHot, TensorSpec


class EGreedyModule(TensorStep):
    """Replaces actions by random ones, each row with probability ε.

        ε ← max(eps_end, ε - frames (eps_init - eps_end) / annealing_num_steps)

    It acts where the interaction type is RANDOM, as collectors set it, and by
    `default_interaction_type` where none is set. Put it behind the policy in a
    `TensorDictSequential`; it writes a new action and leaves the old tensor as it was. Random
    numbers come from the generator of torch. ε is a buffer, and so part of `state_dict`.

    Args:
        spec: spec of the action, or a `Composite` that holds it.
        eps_init: ε at the start, 0 to 1.
        eps_end: ε at the end, at most `eps_init`.
        annealing_num_steps: how many frames it takes to get there.
        action_key: what is read and written.
        action_mask_key: bool `[*B, n]`, True where a choice is allowed; random actions keep to it.
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
    annealing_num_steps: Tensor

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
        super().__init__()
        form = form_of(spec, action_key)
        if form is None:
            msg = "spec is missing: random actions are drawn from it"
            raise TypeError(msg)
        _check_schedule(eps_init, eps_end, annealing_num_steps)
        if action_mask_key is not None and type(form.leaf) not in (OneHot, Categorical):
            msg = f"a mask needs a OneHot or a Categorical spec: got {type(form.leaf).__name__}"
            raise ValueError(msg)
        self.in_keys = [action_key, *([] if action_mask_key is None else [action_mask_key])]
        self.out_keys = [action_key]
        self.spec = spec
        self._form = form
        self.default_interaction_type = InteractionType(default_interaction_type)
        self.register_buffer("eps_init", torch.tensor(float(eps_init), device=device))
        self.register_buffer("eps_end", torch.tensor(float(eps_end), device=device))
        self.register_buffer("eps", torch.tensor(float(eps_init), device=device))
        self.register_buffer(
            "annealing_num_steps", torch.tensor(annealing_num_steps, device=device)
        )

    # the schedule's own verb is `step` in the field, so it takes both
    @overload  # type: ignore[override]
    def step(self, action: int = 1, /) -> None: ...
    @overload
    def step(self, action: Tensor, /, *mask: Tensor) -> tuple[Tensor, ...]: ...

    def step(self, action: Any = 1, /, *mask: Tensor) -> Any:
        """Explore, given tensors; lower ε, given a number of frames.

        The first is what every module of this package offers, the second is this one's schedule.

        Args:
            action: the actions that the policy chose, `[*B, n]` or `[*B]`; or how many frames
                have passed, an integer.
            mask: allowed choices, bool `[*B, n]`, where there is a key for them.

        Returns:
            The actions to take, in a tuple, given tensors; None, given frames.

        Raises:
            TypeError: the action has another dtype than the spec, or frames are no integer.
            ValueError: the action has another shape than the spec, a row has no allowed choice,
                or frames are negative.
        """
        if isinstance(action, Tensor):
            return (self._explored(action, *mask),)
        if isinstance(action, bool) or not isinstance(action, int):
            msg = f"expected actions, a tensor, or frames, an integer: got {type(action).__name__}"
            raise TypeError(msg)
        if action < 0:
            msg = f"frames must not be negative: got {action}"
            raise ValueError(msg)
        slope = (self.eps_init - self.eps_end) / self.annealing_num_steps
        self.eps.copy_(torch.maximum(self.eps_end, self.eps - action * slope))
        return None

    @dispatch(auto_batch_size=False)  # type: ignore[untyped-decorator]
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Read actions from a tensordict, and write those to take.

        Args:
            tensordict: holds the actions, and the mask where there is a key for it.

        Returns:
            The same tensordict.

        Raises:
            KeyError: the action or the mask is missing.
            ValueError: the action has another shape than the spec.
            TypeError: the action has another dtype than the spec.
        """
        return write_step(self, tensordict)

    def _explored(self, action: Tensor, mask: Tensor | None = None) -> Tensor:
        self._form.check(action)
        kind = interaction_type() or self.default_interaction_type
        if kind is not InteractionType.RANDOM:
            return action
        dims = self._form.event_dims
        rows = action.shape[: action.ndim - dims]
        random = self._random(rows, action) if mask is None else self._allowed(rows, mask)
        chosen = torch.rand(rows, device=action.device) < self.eps
        return torch.where(chosen.reshape((*rows, *(1,) * dims)), random.to(action), action)

    def _random(self, rows: torch.Size, action: Tensor) -> Tensor:
        """Draw from the spec as many actions as there are."""
        leaf = self._form.leaf
        lead = action.ndim - leaf.ndim
        if lead < 0 or action.shape[lead:] != leaf.shape:
            # a spec of several environments, met by another batch: one element stands for all
            leaf = leaf[(0,) * (leaf.ndim - self._form.event_dims)]
            lead = len(rows)
        # a spec of one column draws numbers without it
        drawn: Tensor = leaf.rand(action.shape[:lead]).reshape(action.shape)
        return drawn

    def _allowed(self, rows: torch.Size, mask: Tensor) -> Tensor:
        """Draw among the allowed choices, each with the same chance."""
        if mask.dtype != torch.bool or not bool(mask.any(-1).all()):
            msg = (
                f"the mask must be bool and allow a choice in every row: got {mask.dtype} with "
                f"{int((~mask.bool().any(-1)).sum())} empty rows"
            )
            raise ValueError(msg)
        mask = mask.expand(*rows, mask.shape[-1])
        drawn = OneHotCategorical(probs=mask.float()).sample()
        return drawn if isinstance(self._form.leaf, OneHot) else drawn.argmax(-1)


def _check_schedule(eps_init: float, eps_end: float, annealing_num_steps: int) -> None:
    if not 0 <= eps_end <= eps_init <= 1:
        msg = f"expected 0 <= eps_end <= eps_init <= 1: got eps_init={eps_init}, eps_end={eps_end}"
        raise ValueError(msg)
    if annealing_num_steps < 1:
        msg = f"annealing_num_steps must be at least 1: got {annealing_num_steps}"
        raise ValueError(msg)
