"""Fuzzed parts of rl-record that have no public name: loggers, runs, evaluators, pages, plots."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import numpy as np
import torch
from fuzz_pools import TENSORDICTS, Pool, each, steps
from tensordict import TensorDict

from rl_envs.testing import CountingEnv
from rl_record import (
    CSVLogger,
    Curve,
    Evaluation,
    Evaluator,
    JSONLLogger,
    Logger,
    PixelRenderTransform,
    Run,
    VideoRecorder,
    look,
    read_run,
)
from rl_record.plot import band, grouped, plot_runs
from rl_replay import LazyTensorStorage, ReplayBuffer, SliceSampler, TensorDictReplayBuffer

FOLDER = tempfile.mkdtemp()
NUMBERS = itertools.count()


class Drawn(CountingEnv):
    """An environment that renders."""

    def render(self) -> torch.Tensor:
        """A dark frame."""
        return torch.zeros(*self.batch_size, 4, 5, 3, dtype=torch.uint8)


class Ignored:
    """A sink that keeps nothing."""

    def write(self, events: object) -> None:
        """Take events."""

    def close(self) -> None:
        """Do nothing."""


def logger() -> JSONLLogger:
    """A logger of a run of its own."""
    return JSONLLogger(f"run-{next(NUMBERS)}", FOLDER)


def run_folder() -> Path:
    """The folder of a run with two curves."""
    name = f"run-{next(NUMBERS)}"
    with JSONLLogger(name, FOLDER) as made:
        for step in range(3):
            made.log_metrics({"return": step, "loss": 1.0 / (1 + step)}, step)
    return Path(FOLDER) / name


def run() -> Run:
    """A run with two curves."""
    return read_run(run_folder())


def curve() -> Curve:
    """Three entries."""
    return Curve(np.arange(3), np.arange(3.0), np.arange(3.0))


def evaluator() -> Evaluator:
    """One that plays two short episodes."""
    env = CountingEnv(3)
    return Evaluator(env, env.rand_step, num_episodes=2)


def buffer() -> TensorDictReplayBuffer:
    """A buffer with some rows."""
    made = TensorDictReplayBuffer(
        storage=LazyTensorStorage(9), sampler=SliceSampler(slice_len=2), batch_size=4
    )
    made.extend(steps())
    return made


def dump() -> str:
    """A folder that a buffer wrote."""
    folder = f"{FOLDER}/dump-{next(NUMBERS)}"
    buffer().dumps(folder)
    return folder


def frames() -> torch.Tensor:
    """A short video."""
    return torch.zeros(3, 3, 4, 5, dtype=torch.uint8)


def pictures() -> TensorDict:
    """Steps with frames."""
    return steps().set("pixels", torch.zeros(6, 9, 11, 3, dtype=torch.uint8))


CALLS = [
    ("JSONLLogger()", logger),
    ("CSVLogger()", lambda: CSVLogger(f"run-{next(NUMBERS)}", FOLDER)),
    ("Logger()", lambda: Logger("run", Ignored())),
    ("Run()", run),
    ("Evaluator()", evaluator),
    ("Evaluation()", lambda: Evaluation(np.ones(2), np.ones(2, int), np.zeros(2, int), 0)),
    ("VideoRecorder()", lambda: VideoRecorder(logger(), render=frames)),
    ("PixelRenderTransform()", PixelRenderTransform),
    ("Page()", lambda: look(steps())),
    ("band", lambda: band),
    ("grouped", lambda: grouped),
    ("plot_runs", lambda: plot_runs),
]

METRICS: Pool = [lambda: {"loss": 1.0}, lambda: {"loss": torch.tensor(0.5), "return": 3}]
POOLS: dict[str, Pool] = {
    "source": [*TENSORDICTS, buffer, dump, pictures, ReplayBuffer, lambda: steps().exclude("next")],
    "logger": [logger, *each(None)],
    "sink": [Ignored],
    "name": [lambda: f"run-{next(NUMBERS)}", *each("loss", "return")],
    "exp_name": [lambda: f"run-{next(NUMBERS)}"],
    "log_dir": each(FOLDER),
    "kind": each("jsonl", "csv"),
    "values": [*METRICS, lambda: torch.randn(9), lambda: {"lr": 0.1, "nested": {"a": 1}}],
    "metrics": METRICS,
    "value": [*each(1.0, 3), lambda: torch.tensor(0.5)],
    "step": each(0, 3, None, 7),
    "fps": each(30.0, 10),
    "frames": [frames],
    "settings": METRICS,
    "timeout_s": each(1.0),
    "video": [frames],
    "bins": each(4, 64),
    "state": [lambda: logger().state_dict()],
    "env": [lambda: CountingEnv(3), lambda: Drawn(3)],
    "make_env": each(lambda: CountingEnv(3)),
    "policy": [lambda: CountingEnv(3).rand_step],
    "num_episodes": each(1, 2),
    "render": [lambda: frames()[0]],
    "preproc": each(None, lambda frame: frame[::2]),
    "root": [steps, pictures],
    "after": [lambda: steps()["next"], lambda: pictures().select("pixels")],
    "mask": [lambda: torch.ones(6, dtype=torch.bool), *each(None)],
    "curves": [lambda: [curve()], lambda: [curve(), curve()]],
    "groups": [lambda: {"sac": [run()]}],
    "names": [lambda: ["return"], *each(None)],
    "paths": [lambda: [run_folder()]],
    "path": [lambda: f"{FOLDER}/page-{next(NUMBERS)}.html", run_folder],
}
SKIP = {
    "WandbLogger": "needs a service",
    "TrackioLogger": "needs a service",
    "TensorboardLogger": "an extra",
    "BackgroundEvaluator": "starts a process, which takes longer than a call may",
}
