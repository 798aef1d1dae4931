"""A policy of random actions."""

from __future__ import annotations

from tensordict import TensorDictBase
from torch import Tensor

from rl_envs.env.spec_leaves import leaves_of
from rl_layout import keys
from rl_specs import Composite, StackedComposite, TensorSpec
from rl_tensordict.arguments import check_type


class RandomPolicy:
    """Writes actions drawn from a spec, whatever the observation is.

    Args:
        action_spec: `[*B, ...]`, of one action, or a `Composite` of several.
        action_key: key of the action where the spec is of one.

    Attributes:
        in_keys: nothing.
        out_keys: keys of the actions.

    Example:
        >>> from rl_envs.testing import CountingEnv
        >>> env = CountingEnv()
        >>> env.rollout(3, RandomPolicy(env.action_spec))["action"].shape
        torch.Size([3, 2])
    """

    def __init__(self, action_spec: TensorSpec, action_key: keys.NestedKey = "action") -> None:
        self.action_spec = action_spec
        self._specs = {keys.as_tuple(action_key): action_spec}
        names = [action_key]
        if isinstance(action_spec, Composite):
            self._specs = dict(leaves_of(action_spec))
            names = [*action_spec.keys(True, True)]
        self.in_keys: list[keys.NestedKey] = []
        self.out_keys = [keys.as_key(keys.as_tuple(key)) for key in names]

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the actions.

        Args:
            tensordict: a root `[*B]`, or any number of them `[N, *B]`. The actions are added to it.

        Returns:
            The tensordict.
        """
        check_type("tensordict", tensordict, TensorDictBase, "a tensordict")
        for key, spec in self._specs.items():
            drawn, group = self._drawn(spec, tensordict), None
            if isinstance(spec, StackedComposite):  # its group holds observations too
                group = tensordict.get(key, None)
            tensordict.set(key, drawn if group is None else group.copy().update(drawn))
        return tensordict

    @staticmethod
    def _drawn(spec: TensorSpec, tensordict: TensorDictBase) -> Tensor:
        sizes, rows = tensordict.batch_size, spec.shape
        common = max(n for n in range(len(sizes) + 1) if sizes[len(sizes) - n :] == rows[:n])
        drawn: Tensor = spec.rand(sizes[: len(sizes) - common])
        return drawn

    def __repr__(self) -> str:
        return f"RandomPolicy({self.out_keys})"
