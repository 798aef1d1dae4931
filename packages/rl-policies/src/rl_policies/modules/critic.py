"""Critics: observations, or observations and actions, to values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl_policies.keys import ACTION, OBSERVATION, STATE_ACTION_VALUE, STATE_VALUE, listed
from rl_policies.networks.ensemble import Ensemble
from rl_tensordict import NestedKey, TensorStep, as_tuple, note_call, note_errors, outputs_of
from rl_tensordict.types import StepCall


class ValueOperator(TensorStep, TensorDictModule):  # type: ignore[misc]
    """A network that estimates values, `[*B, 1]`.

    Args:
        module: takes the tensors of `in_keys`, returns the value.
        in_keys: what it reads; `["observation"]` by default.
        out_keys: where the value goes; by default `["state_action_value"]` where an action is
            among the inputs, else `["state_value"]`.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> critic = ValueOperator(nn.Linear(3, 1))
        >>> critic(TensorDict({"observation": torch.zeros(5, 3)}, [5]))["state_value"].shape
        torch.Size([5, 1])
        >>> from rl_policies import MLP
        >>> ValueOperator(MLP(out_features=1), in_keys=["observation", "action"]).out_keys
        ['state_action_value']
    """

    @note_errors
    def __init__(
        self,
        module: nn.Module,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
    ) -> None:
        read = listed(in_keys, OBSERVATION)
        acts = any(as_tuple(key)[-1] == ACTION for key in read)
        name = STATE_ACTION_VALUE if acts else STATE_VALUE
        super().__init__(module, read, listed(out_keys, name))

    def ensemble(self, num: int) -> ValueOperator:
        """Make critics of this architecture and these keys, computed at once.

        Args:
            num: how many critics.

        Returns:
            A critic whose values are `[*B, num, 1]`, with parameters drawn anew, see `Ensemble`.

        Raises:
            ValueError: `num` is below 1, or the network cannot be drawn anew.

        Example:
            >>> import torch
            >>> ValueOperator(nn.Linear(3, 1)).ensemble(2).step(torch.zeros(5, 3))[0].shape
            torch.Size([5, 2, 1])
        """
        return ValueOperator(Ensemble.from_module(self.module, num), self.in_keys, self.out_keys)

    def step(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Compute values.

        Args:
            tensors: one for each of `in_keys`.

        Returns:
            One for each of `out_keys`, `[*B, 1]`.
        """
        try:
            return outputs_of(self.module(*tensors), self.out_keys)
        except Exception as error:
            note_call(error, f"{type(self).__name__}.step", tensors, self.in_keys)
            raise

    def step_calls(self) -> list[StepCall]:
        """List the call of the network, for a loop or an estimator that calls it many times.

        Returns:
            The network with the keys of its inputs and of its outputs.
        """
        if type(self).step is not ValueOperator.step:
            return super().step_calls()
        return [(self.module, list(self.in_keys), list(self.out_keys))]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Read the inputs from a tensordict, and write the values to it.

        Args:
            args: a tensordict, which is returned; or tensors in the order of `in_keys`.
            kwargs: what tensordict's modules take.

        Returns:
            The tensordict, or the values where tensors were given.

        Raises:
            KeyError: an input is missing.
            ValueError: a value has no dimension besides those of the batch.
        """
        out = super().forward(*args, **kwargs)
        if isinstance(out, TensorDictBase):
            for key in self.out_keys:
                value = out.get(key, None)
                if value is not None and value.ndim <= out.batch_dims:
                    msg = (
                        f"{key!r} must end in a dimension of size 1: got shape "
                        f"{tuple(value.shape)} for a batch {tuple(out.batch_size)}. "
                        "Do not squeeze the output of the network."
                    )
                    raise ValueError(msg)
        return out
