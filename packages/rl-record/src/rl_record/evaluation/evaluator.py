"""Plays episodes with a policy and says how good it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, set_interaction_type
from torch import Tensor, nn

from rl_envs import EnvBase, SerialEnv, TransformedEnv, wire_policy
from rl_layout import keys
from rl_record.evaluation.episode_tally import EpisodeTally
from rl_record.evaluation.evaluation import Evaluation
from rl_record.loggers.logger import Logger
from rl_tensordict import NestedKey, draw_seed, find
from rl_tensordict.arguments import check_type, check_whole
from rl_transforms import VecNorm


class Evaluator:
    """Plays a fixed number of episodes for each row of an environment.

    The number is fixed beforehand, so that short episodes do not bias the mean. Neither the random
    numbers of torch nor the modes of the policy's modules are different afterwards. The environment
    is for the evaluator alone: one that a collector plays would be moved under its feet. Running
    statistics must be fixed; a function that makes the environment anew for each evaluation takes
    those of that moment, ``lambda: TransformedEnv(make(), norm.to_observation_norm())``.

    Args:
        env: an environment, or a function that makes one for each evaluation.
        policy: acts; a module is put into evaluation mode meanwhile, and may be on another device.
        num_episodes: episodes of each row of the environment's batch.
        max_steps: steps of each row after which an evaluation is cut; episodes that run then are
            counted as unfinished.
        deterministic: take the most likely action, else draw actions.
        seed: of the environment and of drawn actions, the same for each evaluation; None to go on
            with other episodes.
        reward_key: what is added up.
        logger: is given the numbers of each evaluation.
        name: what the names of these begin with.

    Raises:
        TypeError: `env` is neither an environment nor callable, or `num_episodes` no integer.
        ValueError: a number is below 1, or statistics of the environment are running.

    Example:
        >>> from rl_envs.testing import EpisodeStepEnv
        >>> env = EpisodeStepEnv([(3, "terminated"), (1, "truncated")], batch_size=[2])
        >>> found = Evaluator(env, env.rand_step, num_episodes=2).evaluate()
        >>> found.returns.tolist(), found.lengths.tolist()
        ([6.0, 6.0, 1.0, 1.0], [3, 3, 1, 1])
    """

    def __init__(  # noqa: PLR0913 - independent options of one measurement
        self,
        env: Any,  # EnvBase, or what makes one
        policy: Any,
        num_episodes: int = 10,
        *,
        max_steps: int = 100_000,
        deterministic: bool = True,
        seed: int | None = 0,
        reward_key: NestedKey = "reward",
        logger: Logger | None = None,
        name: str = "eval",
    ) -> None:
        check_whole("num_episodes", num_episodes, 1)
        check_whole("max_steps", max_steps, 1)
        if not isinstance(env, EnvBase) and not callable(env):
            msg = f"env: expected an environment or a function that makes one, got {env!r}."
            raise TypeError(msg)
        self.env, self.policy = env, policy
        self.num_episodes, self.max_steps = num_episodes, max_steps
        self.deterministic, self.seed = deterministic, seed
        self._seeds: torch.Generator | None = None  # for evaluations without a seed
        self.reward_key, self.logger, self.name = reward_key, logger, name
        if isinstance(env, EnvBase):
            _refuse_running_statistics(env)

    def evaluate(self, step: int | None = None) -> Evaluation:
        """Play the episodes.

        Args:
            step: step of the log entry, if there is a logger.

        Returns:
            Returns and lengths.

        Raises:
            KeyError: the environment has no such reward.
            ValueError: statistics of the environment are running.
        """
        if isinstance(self.env, EnvBase):
            found = self._evaluated(self.env)
        else:
            with self._made() as made:  # which is closed, whatever happens
                _refuse_running_statistics(made)
                found = self._evaluated(made)
        if self.logger is not None:
            self.logger.log_metrics(found.metrics(self.name), step)
        return found

    def _made(self) -> EnvBase:
        make: Any = self.env
        made: EnvBase = make()
        check_type("env", made, EnvBase, "a function that makes an environment")
        return made

    def _evaluated(self, env: EnvBase) -> Evaluation:
        env = wire_policy(env, self.policy)
        kind = InteractionType.DETERMINISTIC if self.deterministic else InteractionType.RANDOM
        with _evaluation_mode(self.policy), torch.random.fork_rng(), set_interaction_type(kind):
            if self.seed is None:
                torch.manual_seed(self._next_seed())
            else:
                torch.manual_seed(self.seed)
                env.set_seed(self.seed)
            return self._played(env)

    def _next_seed(self) -> int:
        """The seed of what torch draws in one evaluation, other than in those before."""
        # not torch's own generator, whose state is restored after an evaluation
        if self._seeds is None:
            first = draw_seed()
            self._seeds = torch.Generator("cpu").manual_seed(first)
        return draw_seed(generator=self._seeds)

    def _played(self, env: EnvBase) -> Evaluation:
        tally = EpisodeTally(env.batch_size.numel(), self.num_episodes)
        root: TensorDictBase | None = None
        played = 0
        while played < self.max_steps and not tally.is_complete:
            size = min(128, self.max_steps - played)
            begins = root is None
            batch = env.rollout(
                size,
                self.policy,
                auto_reset=begins,
                tensordict=root,
                break_when_any_done=False,
                auto_cast_to_device=True,
            )
            tally.add(*self._columns(env, batch))
            root = env.next_root(batch[..., -1])
            played += batch.shape[-1]
        return tally.result()

    def _columns(self, env: EnvBase, batch: TensorDictBase) -> tuple[Any, Any, Any]:
        """Rewards, ends and real steps as arrays ``[E, T]``."""
        reward = find(batch, keys.next_key(self.reward_key))
        if reward is None:
            msg = f"the environment gives no reward {self.reward_key!r}: it has {env.reward_keys}. "
            raise KeyError(msg + "Name one by reward_key=.")
        if reward.shape != (*batch.batch_size, 1):
            msg = f"{self.reward_key!r}: expected one number a step, {[*batch.batch_size, 1]}, got "
            msg += f"{list(reward.shape)}. Add members up, or evaluate a team's reward."
            raise ValueError(msg)
        real = find(batch, keys.MASK)
        if real is None:
            real = torch.ones(batch.batch_size, dtype=torch.bool, device=reward.device)
        wide = (-1, batch.shape[-1])
        columns: list[Tensor] = [
            reward.squeeze(-1).double(),
            batch[keys.NEXT_DONE].squeeze(-1),
            real,
        ]
        rows, ends, steps = (column.reshape(wide).cpu().numpy() for column in columns)
        return rows, ends, steps


@contextmanager
def _evaluation_mode(policy: Any) -> Iterator[None]:
    """Put the modules of a policy into evaluation mode, and each back into its own."""
    modules = list(policy.modules()) if isinstance(policy, nn.Module) else []
    modes = [module.training for module in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


def _refuse_running_statistics(env: EnvBase) -> None:
    """Raise where playing would move the statistics that training normalises by."""
    transforms = env.transforms if isinstance(env, TransformedEnv) else ()
    inner = env.base_env if isinstance(env, TransformedEnv) else env
    for member in inner.envs if isinstance(inner, SerialEnv) else ():
        _refuse_running_statistics(member)
    if any(isinstance(one, VecNorm) and not one.frozen for one in transforms):
        msg = "the environment has a VecNorm, whose statistics an evaluation would move. Pass a "
        msg += "function that makes an environment with norm.to_observation_norm(), or freeze() it."
        raise ValueError(msg)
