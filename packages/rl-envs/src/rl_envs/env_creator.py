"""A function that makes environments which share running statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy, deepcopy
from typing import Any, Self

from rl_envs.env.env import EnvBase
from rl_envs.transformed.transformed_env import TransformedEnv
from rl_tensordict.arguments import check_calls, check_flags
from rl_transforms import VecNorm

LANES = 64  # environments that count at the same time


class EnvCreator:
    """Makes environments, in any process, whose `VecNorm` transforms share their statistics.

    Without such a transform it is the function alone, which `SerialEnv`, `ParallelEnv` and
    collectors take as it is, a lambda too. Where there may be some, one environment is made and
    closed at once, to share theirs.

    Args:
        create_env_fn: makes an environment.
        create_env_kwargs: arguments for every call.
        share_memory: share the statistics; otherwise each environment has its own.
        kwargs: more arguments for every call.

    Raises:
        TypeError: an argument is given twice, or `create_env_fn` cannot be called.

    Example:
        >>> from rl_envs.testing import CountingEnv
        >>> make = EnvCreator(lambda: TransformedEnv(CountingEnv(), VecNorm()))
        >>> one, other = make(), make()
        >>> _ = one.rollout(4)
        >>> one.transform[0].statistics()[0] == other.transform[0].statistics()[0]
        True
    """

    def __init__(
        self,
        create_env_fn: Callable[..., EnvBase],
        create_env_kwargs: Mapping[str, Any] | None = None,
        share_memory: bool = True,
        **kwargs: Any,
    ) -> None:
        check_calls(create_env_fn=create_env_fn)
        check_flags(share_memory=share_memory)
        given = dict(create_env_kwargs or {})
        if twice := given.keys() & kwargs.keys():
            msg = f"{sorted(twice)} in create_env_kwargs and as an argument too: give it once."
            raise TypeError(msg)
        self.create_env_fn, self.create_env_kwargs = create_env_fn, given | kwargs
        self._norms: list[VecNorm] = []
        if share_memory:
            with create_env_fn(**self.create_env_kwargs) as env:
                self._norms = [one.share_memory(LANES) for one in _norms_of(env)]

    def __call__(self, **kwargs: Any) -> EnvBase:
        """Make an environment.

        Args:
            kwargs: arguments in the place of those for every call.

        Raises:
            ValueError: it has another number of `VecNorm` than the first.
        """
        env = self.create_env_fn(**self.create_env_kwargs | kwargs)
        if not self._norms:
            return env
        found = _norms_of(env)
        if len(found) != len(self._norms) or not isinstance(env, TransformedEnv):
            msg = f"expected {len(self._norms)} VecNorm, as in the first environment: got "
            raise ValueError(f"{msg}{len(found)}. Make another EnvCreator.")
        shared = {id(one): norm for one, norm in zip(found, self._norms, strict=True)}
        members = (deepcopy(shared[id(one)]) if id(one) in shared else one for one in env.transform)
        made: EnvBase = TransformedEnv(env.base_env, *members)
        return made

    def make_variant(self, **kwargs: Any) -> Self:
        """Make a function with other arguments, whose environments share the same statistics."""
        variant = copy(self)
        variant.create_env_kwargs = self.create_env_kwargs | kwargs
        return variant


def _norms_of(env: EnvBase) -> list[VecNorm]:
    members = env.transform if isinstance(env, TransformedEnv) else ()
    return [one for one in members if isinstance(one, VecNorm)]
