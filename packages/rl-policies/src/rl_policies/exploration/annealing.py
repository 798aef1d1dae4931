"""Base of the exploration modules: the interaction type and a linearly annealed amount."""

from __future__ import annotations

from typing import Any, overload

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, dispatch
from tensordict.nn.probabilistic import interaction_type
from torch import Tensor

from rl_policies.modules.action_spec import form_of
from rl_specs import TensorSpec
from rl_tensordict import NestedKey, TensorStep, leaves, write_step


class ExplorationModule(TensorStep):
    """Perturbs the actions of a policy by an amount that is annealed linearly.

        amount = max(end, init - frames (init - end) / annealing_num_steps)

    It acts if the interaction type is RANDOM, as collectors set it, or else
    `default_interaction_type`. Outputs are new tensors. The amount, named `amount`, and the number
    of frames are buffers, and so part of `state_dict`. Subclasses implement `_explored`.
    """

    annealing_num_steps: Tensor
    frames: Tensor

    def __init__(  # noqa: PLR0913 - shared by three modules
        self,
        spec: TensorSpec,
        amount: str,
        init: float,
        end: float,
        annealing_num_steps: int,
        action_key: NestedKey,
        default_interaction_type: InteractionType | str = InteractionType.RANDOM,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        form = form_of(spec, action_key)
        if form is None:
            msg = "spec is missing: random actions are drawn from it"
            raise TypeError(msg)
        if not 0 <= end <= init:
            got = f"{amount}_init={init}, {amount}_end={end}"
            msg = f"expected 0 <= {amount}_end <= {amount}_init: got {got}"
            raise ValueError(msg)
        if annealing_num_steps < 1:
            msg = f"annealing_num_steps must be at least 1: got {annealing_num_steps}"
            raise ValueError(msg)
        self.in_keys: list[NestedKey] = [action_key]
        self.out_keys: list[NestedKey] = [action_key]
        self.spec = spec
        self.default_interaction_type = InteractionType(default_interaction_type)
        self._form = form
        self._amount = amount
        self._has_looked = False  # at the entries of the first call
        for name, value in ((f"{amount}_init", init), (f"{amount}_end", end), (amount, init)):
            self.register_buffer(name, torch.tensor(float(value), device=device))
        self.register_buffer(
            "annealing_num_steps", torch.tensor(annealing_num_steps, device=device)
        )
        self.register_buffer("frames", torch.tensor(0, device=device))

    # `step` is the name of the schedule in the field too: one method takes actions or frames
    @overload  # type: ignore[override]
    def step(self, action: int = 1, /) -> None: ...
    @overload
    def step(self, action: Tensor, /, *others: Tensor) -> tuple[Tensor, ...]: ...

    def step(self, action: Any = 1, /, *others: Tensor) -> Any:
        """Explore, given tensors; lower the amount, given a number of frames.

        Args:
            action: the actions that the policy chose, `[*B, *E]`; or how many frames have passed,
                an integer.
            others: one for each of the other `in_keys`.

        Returns:
            Given tensors, one for each of `out_keys`; None, given frames.

        Raises:
            TypeError: the action has another dtype than the spec, or frames are no integer.
            ValueError: the action has another shape than the spec, another input does not fit it,
                or frames are negative.
        """
        if isinstance(action, Tensor):
            return self._explored(self._form.cast(action), *others)
        if isinstance(action, bool) or not isinstance(action, int):
            msg = f"expected actions, a tensor, or frames, an integer: got {type(action).__name__}"
            raise TypeError(msg)
        if action < 0:
            msg = f"frames must not be negative: got {action}"
            raise ValueError(msg)
        # computed from the count: in float32 the share of one frame may round away
        self.frames += action
        left = (1 - self.frames.double() / self.annealing_num_steps).clamp(min=0)
        init, end = (getattr(self, f"{self._amount}_{at}").double() for at in ("init", "end"))
        getattr(self, self._amount).copy_(end + (init - end) * left)
        return None

    @dispatch(auto_batch_size=False)  # type: ignore[untyped-decorator]
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Read actions from a tensordict, and write those to take.

        Args:
            tensordict: holds what `in_keys` name.

        Returns:
            The same tensordict.

        Raises:
            KeyError: an input is missing.
            ValueError: the action has another shape than the spec, or another input does not fit.
            TypeError: the action has another dtype than the spec.
        """
        if not self._has_looked and not torch.compiler.is_compiling():
            self.check_entries(dict(leaves(tensordict)))
            self._has_looked = True
        return write_step(self, tensordict)

    def _acts(self) -> bool:
        """Whether actions are perturbed; they pass through otherwise."""
        kind = interaction_type() or self.default_interaction_type
        return kind is InteractionType.RANDOM

    def _explored(self, action: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """The outputs of `step` for actions in the dtype of the spec, and other tensors."""
        raise NotImplementedError
