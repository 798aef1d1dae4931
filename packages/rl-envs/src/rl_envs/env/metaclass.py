"""The type of all environments, which gives each constructor its `policy` argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rl_envs.env.row_arguments import METHODS, explain_arguments


class EnvType(type):
    """Metaclass of environments: every constructor takes `policy=` and wires the policy."""

    wire: Callable[[Any, Any], Any]
    """Wires an environment to a policy; `rl_envs.transformed.wire_policy` sets it."""

    wrap: Callable[[Any, Any], Any]
    """Puts a transform around an environment; `rl_envs.transformed.transformed_env` sets it."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        """Make a class whose methods on numpy rows name the arguments that they fail on."""
        named = {key: explain_arguments(namespace[key]) for key in METHODS if key in namespace}
        return super().__new__(mcs, name, bases, namespace | named)

    @property
    def __signature__(cls) -> inspect.Signature:
        """The arguments of the constructor, and `policy`: what `help` shows."""
        constructor: Callable[..., None] = getattr(cls, "__init__")  # noqa: B009 - for mypy
        taken = inspect.signature(constructor)
        arguments = list(taken.parameters.values())[1:]  # without self
        policy = inspect.Parameter("policy", inspect.Parameter.KEYWORD_ONLY, default=None)
        at = next((n for n, one in enumerate(arguments) if one.kind is one.VAR_KEYWORD), None)
        arguments.insert(len(arguments) if at is None else at, policy)
        return taken.replace(parameters=arguments, return_annotation=inspect.Signature.empty)

    def __call__(cls, *args: Any, policy: Any = None, **kwargs: Any) -> Any:
        """Make an environment."""
        env = super().__call__(*args, **kwargs)
        return env if policy is None else EnvType.wire(env, policy)
