"""Adds the transforms that the recurrent parts of a policy need to an environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from rl_envs.env.env import EnvBase
from rl_envs.env.metaclass import EnvType
from rl_envs.env.spec_leaves import leaves_of
from rl_envs.transformed.transformed_env import TransformedEnv
from rl_layout import keys, refuse_shared_states
from rl_transforms import ExcludeTransform, InitTracker, SelectTransform, TensorDictPrimer


def wire_policy(env: EnvBase, policy: Any) -> EnvBase:
    """Give an environment what the recurrent parts of a policy need.

    Every module with `make_tensordict_primer()` needs its states at each reset, and a mark at the
    first step of each trajectory. What the specs of the environment show already is left alone, so
    a second call does nothing, and what environments inside a serial or parallel one provide
    counts. `InitTracker` goes ahead of transforms that select keys, primers to the end.

    Args:
        env: any environment. A `TransformedEnv` is changed in place.
        policy: any policy.

    Returns:
        The environment; a new `TransformedEnv` around it where something was missing.

    Raises:
        ValueError: two different modules carry their states under one key, or the environment
            shows some of the states of a module and lacks others.

    Example:
        >>> from rl_specs import Unbounded
        >>> from rl_envs.testing import CountingEnv
        >>> class Memory(nn.Module):
        ...     def make_tensordict_primer(self):
        ...         return TensorDictPrimer(hidden=Unbounded((3,)), expand_specs=True)
        >>> env = wire_policy(CountingEnv(), Memory())
        >>> env is wire_policy(env, Memory()), sorted(env.reset().keys())[2:4]
        (True, ['is_init', 'observation'])
    """
    modules = list(recurrent_modules(policy))
    if not modules:
        return env
    refuse_shared_states({"policy": policy})
    if not _shows(env, (keys.IS_INIT,)) or any(
        not _shows(env, key) for module in modules for key in _marks(module)
    ):
        env = _marked(env)
    for module in modules:
        primer = _lacking(env, module.make_tensordict_primer())
        if primer is not None:
            env = _transformed(env).append_transform(primer)
    return env


def recurrent_modules(policy: Any) -> Iterator[Any]:
    """Find the parts of a policy that carry a state from step to step."""
    # asked of the class: an instance of a wrapper hands on unknown names to the module inside
    for module in policy.modules() if isinstance(policy, nn.Module) else [policy]:
        if callable(getattr(type(module), "make_tensordict_primer", None)):
            yield module


def _marks(module: Any) -> list[tuple[str, ...]]:
    named = [keys.as_tuple(key) for key in getattr(module, "in_keys", ())]
    return [key for key in named if key[-1] == keys.IS_INIT]


def _shows(env: EnvBase, key: tuple[str, ...]) -> bool:
    return any(key == leaf for leaf, _ in leaves_of(env.observation_spec, env.state_spec))


def _transformed(env: EnvBase) -> TransformedEnv:
    wrapped: TransformedEnv = env if isinstance(env, TransformedEnv) else TransformedEnv(env)
    return wrapped


def _marked(env: EnvBase) -> TransformedEnv:
    wrapped = _transformed(env)
    selecting = (
        place
        for place, one in enumerate(wrapped.transforms)
        if isinstance(one, SelectTransform | ExcludeTransform)
    )
    return wrapped.insert_transform(next(selecting, len(wrapped.transforms)), InitTracker())


def _lacking(env: EnvBase, primer: TensorDictPrimer) -> TensorDictPrimer | None:
    """The primer of the entries that the specs do not show yet, or None."""
    named = leaves_of(primer.primers)
    missing = {key: leaf for key, leaf in named if not _shows(env, key)}
    if not missing:
        return None
    if len(missing) < len(named):
        msg = (
            f"the environment shows some of the states that {type(primer).__name__} primes, and "
            f"lacks {[keys.as_key(key) for key in missing]}: prime all of them, or none."
        )
        raise ValueError(msg)
    if primer.primers.shape != env.batch_size:
        primer.expand_specs = True
    return primer


# EnvType makes the environments that wire_policy returns, so it cannot import this module
EnvType.wire = staticmethod(wire_policy)
