"""What a collector may be given as environments, made into one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rl_envs import EnvBase, SerialEnv, TransformedEnv
from rl_envs.env.foreign import require_env
from rl_layout import keys
from rl_transforms import StepCounter

EnvSource = EnvBase | Callable[..., EnvBase] | Sequence[EnvBase | Callable[..., EnvBase]]


def make_env(create_env_fn: EnvSource | str, kwargs: Mapping[str, Any] | None = None) -> EnvBase:
    """Make the environment that a collector plays; the id of one is refused."""
    given = dict(kwargs or {})
    if isinstance(create_env_fn, EnvBase):
        return create_env_fn
    if isinstance(create_env_fn, Sequence) and not isinstance(create_env_fn, str):
        if not create_env_fn:
            msg = "create_env_fn is empty: give an environment, or a function that makes one."
            raise ValueError(msg)
        makers = [_maker(one, given) for one in create_env_fn]
        return makers[0]() if len(makers) == 1 else SerialEnv(len(makers), makers)
    return _maker(create_env_fn, given)()


def limit_trajectories(env: EnvBase, max_frames_per_traj: int | None) -> EnvBase:
    """Truncate trajectories after some steps."""
    if max_frames_per_traj in (None, -1):
        return env
    if max_frames_per_traj < 1:
        msg = f"max_frames_per_traj must be at least 1: got {max_frames_per_traj}."
        raise ValueError(msg)
    counters = [
        key for key in env.observation_spec.keys(True, True) if keys.as_tuple(key)[-1] == STEPS
    ]
    if counters:
        msg = (
            f"the environment counts its steps in {counters}: give its StepCounter max_steps="
            f"{max_frames_per_traj} and leave out max_frames_per_traj."
        )
        raise ValueError(msg)
    return TransformedEnv(env, StepCounter(max_steps=max_frames_per_traj))


STEPS = "step_count"


def _maker(create: Any, kwargs: dict[str, Any]) -> Callable[[], EnvBase]:
    def make() -> EnvBase:
        env = create if isinstance(create, EnvBase) else create(**kwargs)
        require_env(env, EnvBase, "create_env_fn must make an environment of rl_envs")
        return env

    if not isinstance(create, EnvBase) and not callable(create):
        require_env(create, EnvBase, "create_env_fn must be an environment or a function of one")
    return make
