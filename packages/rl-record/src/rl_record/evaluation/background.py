"""Evaluations in a process of their own, while training continues."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from rl_envs import EnvBase
from rl_record.evaluation.evaluation import Evaluation
from rl_record.evaluation.evaluator import Evaluator
from rl_record.loggers.logger import Logger
from rl_tensordict.arguments import check_type
from rl_workers import Portable, StartMethod, WorkerDied, WorkerPool, WorkerTimeout

FOREVER_S = 1e6  # seconds: longer than any evaluation


class BackgroundEvaluator:
    """Evaluates in a process of its own, while training continues.

    What is raised there is raised by the call that fetches the evaluation. A process that has ended
    is replaced for the next one.

    Args:
        env: makes the environment, in that process.
        policy: acts; its parameters and buffers are sent with each evaluation.
        num_episodes: episodes of each row.
        logger: is given the numbers when they are fetched.
        settings: what `Evaluator` takes besides.

    Raises:
        TypeError: `env` is an environment, which cannot travel, or `policy` is no module.

    Example:
        >>> from rl_envs.testing import EpisodeStepEnv
        >>> from tensordict.nn import TensorDictModule
        >>> class Right(nn.Module):
        ...     def forward(self, observation):
        ...         return observation.new_tensor([0, 1]).bool()
        >>> policy = TensorDictModule(Right(), ["observation"], ["action"])
        >>> evaluator = BackgroundEvaluator(EpisodeStepEnv, policy, 2, start_method="fork")
        >>> evaluator.trigger_eval()
        >>> evaluator.wait().returns.tolist()
        [6.0, 3.0]
        >>> evaluator.close()
    """

    def __init__(
        self,
        env: Callable[[], EnvBase],
        policy: nn.Module,
        num_episodes: int = 10,
        *,
        logger: Logger | None = None,
        start_method: StartMethod | None = None,
        **settings: Any,
    ) -> None:
        given: object = env
        if isinstance(given, EnvBase):
            msg = "env: expected a function that makes the environment in the other process."
            raise TypeError(msg)
        check_type("policy", policy, nn.Module, "a module, whose weights are sent")
        self.policy, self.logger = policy, logger
        self.name = settings.get("name", "eval")
        self._step: int | None = None
        make = partial(_RemoteEvaluator, Portable(env), Portable(policy), num_episodes, settings)
        self._pool = WorkerPool([make], start_method=start_method, name="evaluator")

    def trigger_eval(self, step: int | None = None) -> None:
        """Begin an evaluation of the policy as it is now; one that runs is waited for first.

        Args:
            step: step of the log entry, if there is a logger.
        """
        if self._pool.pending[0] is not None:
            self.wait()
        state = {
            key: value.detach().cpu() if isinstance(value, Tensor) else value
            for key, value in self.policy.state_dict().items()
        }
        self._step = step
        try:
            self._pool.begin(0, "evaluate", state)
        except WorkerDied:  # since the last evaluation
            self._pool.restart(0)
            self._pool.begin(0, "evaluate", state)

    def poll(self) -> Evaluation | None:
        """What the evaluation found, if it has ended; None while it runs."""
        return self.wait(timeout_s=0.0)

    def wait(self, timeout_s: float | None = None) -> Evaluation | None:
        """Wait for what the evaluation found.

        Args:
            timeout_s: seconds to wait at most; None for as long as it takes.

        Returns:
            The evaluation; None if none was begun, or it takes longer.

        Raises:
            WorkerDied: the process has ended.
            Exception: what playing raised.
        """
        if self._pool.pending[0] is None:
            return None
        try:
            self._pool.wait(timeout_s=FOREVER_S if timeout_s is None else timeout_s)
        except WorkerTimeout:
            return None
        try:
            found: Evaluation = self._pool.receive(0)
        except WorkerDied:
            self._pool.restart(0)  # which forgets the call
            raise
        if self.logger is not None:
            self.logger.log_metrics(found.metrics(self.name), self._step)
        return found

    def close(self) -> None:
        """End the process."""
        self._pool.close()


class _RemoteEvaluator:
    """What the process holds: an evaluator, and the policy whose weights it is sent."""

    def __init__(
        self, env: Portable, policy: Portable, num_episodes: int, settings: Mapping[str, Any]
    ) -> None:
        self.policy: Any = policy.function
        self.evaluator = Evaluator(env(), self.policy, num_episodes, **settings)

    def evaluate(self, state: Mapping[str, Any]) -> Evaluation:
        """Evaluate these weights."""
        self.policy.load_state_dict(state)
        return self.evaluator.evaluate()
