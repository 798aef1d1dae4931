"""An environment whose rows lie in another batch size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from rl_envs.env.arguments import sizes_of
from rl_envs.env.env import EnvBase
from rl_envs.env.specs import SPECS
from rl_layout import keys
from rl_specs import Composite
from rl_tensordict.arguments import check_type


class ResizedEnv(EnvBase):
    """An environment with another batch size.

    The rows of a batch-locked environment are laid out anew, in the order of `reshape`. One that is
    not locked, whose state is in its data, gets that many rows: what `_reset` is given has the
    batch size.

    Args:
        env: any environment.
        batch_size: the sizes `[*B]`. Of a batch-locked environment as many rows as it has.
        reset_func: `(given, root) -> root`, called after each reset with the tensordict that the
            reset was given, or None, and the root `[*B]`; rows that continue are kept after it.
        env_kwarg: also give it this environment, as `env=`.

    Attributes:
        env: the environment inside.

    Raises:
        TypeError: it is no environment, or these are no sizes.
        ValueError: a batch-locked environment has more or fewer rows, or one that is not locked
            has rows already; or, at a reset, `reset_func` returned another batch size.

    Example:
        >>> from rl_envs import SerialEnv
        >>> from rl_envs.testing import CountingEnv
        >>> ResizedEnv(SerialEnv(6, CountingEnv), (2, 3)).rollout(4).shape
        torch.Size([2, 3, 4])
        >>> ResizedEnv(CountingEnv(), (1,)).rollout(4).shape
        torch.Size([1, 4])
        >>> def begin(given, root):
        ...     return root.set("observation", root["observation"] + torch.arange(3.0).view(3, 1))
        >>> ResizedEnv(SerialEnv(3, CountingEnv), (3,), reset_func=begin).reset()["observation"]
        tensor([[0.],
                [1.],
                [2.]])
    """

    def __init__(
        self,
        env: EnvBase,
        batch_size: Any,
        *,
        reset_func: Callable[..., TensorDictBase] | None = None,
        env_kwarg: bool = False,
    ) -> None:
        check_type("env", env, EnvBase, "an environment")
        if reset_func is not None:
            check_type("reset_func", reset_func, Callable, "a function of two tensordicts")
        sizes = sizes_of(batch_size)
        self._grows = not env.batch_locked
        self._reset_func, self._env_kwarg = reset_func, env_kwarg
        if self._grows and env.batch_size:
            msg = (
                f"an environment that is not batch-locked gets rows where it has none: this "
                f"{type(env).__name__} has batch size {tuple(env.batch_size)}."
            )
            raise ValueError(msg)
        if not self._grows and sizes.numel() != env.batch_size.numel():
            msg = (
                f"{tuple(sizes)} has {sizes.numel()} rows, and this {type(env).__name__} of batch "
                f"size {tuple(env.batch_size)} has {env.batch_size.numel()}: give as many, or make "
                f"more environments, as by SerialEnv."
            )
            raise ValueError(msg)
        super().__init__(device=env.device, batch_size=sizes)
        self.env, self.check_values, self.flags_agree = env, env.check_values, env.flags_agree
        self.waits_for_device, self.mask_keys = env.waits_for_device, env.mask_keys
        for name in SPECS:
            setattr(self, name, self._resized(getattr(env, name)))

    @property
    def _inside(self) -> Sequence[EnvBase]:
        return (self.env,)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the environment inside.

        Args:
            seed: a whole number, 0 or more.
            static_seed: seed all its environments alike.

        Returns:
            A seed for the next one.
        """
        return self.env.set_seed(seed, static_seed)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        root, change = self._resized_reset(tensordict, kwargs), self._reset_func
        if change is None:
            return root
        made = change(tensordict, root, **({"env": self} if self._env_kwarg else {}))
        check_type("reset_func returned", made, TensorDictBase, "a root as a tensordict")
        if made.batch_size != self.batch_size:
            msg = (
                f"reset_func returned a root of batch size {tuple(made.batch_size)}: expected "
                f"{tuple(self.batch_size)}, that of this {type(self).__name__}."
            )
            raise ValueError(msg)
        return made

    def _resized_reset(
        self, tensordict: TensorDictBase | None, kwargs: dict[str, Any]
    ) -> TensorDictBase:
        if self._grows:  # rows that go on are kept by the caller
            self.env.is_started = True
            return self.env.raw_reset(TensorDict({}, self.batch_size), **kwargs)
        inner = None if tensordict is None else tensordict.reshape(self.env.batch_size)
        return self.env.reset(inner, **kwargs).reshape(self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self._grows:
            return self.env.raw_step(tensordict)
        step = self.env.step(tensordict.reshape(self.env.batch_size))
        after: TensorDictBase = step.get(keys.NEXT)
        return after.reshape(self.batch_size)

    def _resized(self, spec: Composite) -> Composite:
        found = spec.expand(self.batch_size) if self._grows else spec.reshape(self.batch_size)
        assert isinstance(found, Composite)  # as it was
        return found

    def _to(self, device: torch.device) -> None:
        self.env = self.env.to(device)

    def _get_state(self) -> dict[str, Any]:
        return {"env": self.env.state_dict()}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self.env.load_state_dict(state["env"])

    def _close(self) -> None:
        self.env.close()
