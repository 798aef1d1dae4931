# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "rl-collect", "rl-envs", "rl-layout", "rl-policies", "rl-record", "rl-recurrent", "rl-replay",
#     "rl-specs", "rl-transforms", "rl-value", "gymnasium", "matplotlib", "tensordict", "torch",
#     "tqdm",
# ]
# ///
"""Recurrent DQN from slices of a CartPole that hides its velocities, while workers play on.

Two processes write whole trajectories into a buffer in a file. The learner draws slices,
which begin in mid-trajectory, from the state that an older network left there: so the first steps
of a slice only warm the state up, and what the network of now makes of it is written back.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import gymnasium
import torch
from matplotlib.figure import Figure
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from tqdm import tqdm

from rl_collect import MultiAsyncCollector
from rl_envs import GymEnv, SerialEnv, TransformedEnv, wire_policy
from rl_layout import keys
from rl_policies import EGreedyModule, QValueActor
from rl_record import JSONLLogger, read_run
from rl_recurrent import GRUModule
from rl_replay import LazyMemmapStorage, SliceSampler, TensorDictReplayBuffer
from rl_specs import TensorSpec, Unbounded
from rl_transforms import Transform
from rl_value import DQNLoss, SoftUpdate

UNITS = torch.tensor([0.6, 0.05])  # of cart (m) and pole (rad): a quarter of where episodes end
EPISODES, WORKERS = 20, 2  # of an evaluation; that play
AT_ONCE = (signal.SIGINT, signal.SIG_DFL)
PARTS, NUMBERS = ("loss", "explore", "optimizer"), ("steps", "best")  # of a run


@dataclass(frozen=True)
class Settings:
    """Settings of a run; a checkpoint is resumed under the settings that it began with."""

    env: str = "CartPole-v1"
    seed: int = 0
    device: str = "cpu"
    envs_per_worker: int = 2
    steps_per_batch: int = 128  # that a worker plays at a time
    updates_per_batch: int = 8
    first_steps: int = 1536  # without updates
    capacity: int = 100_000  # steps in the buffer
    slices: int = 48
    slice_steps: int = 20
    burn_in: int = 5  # steps of a slice
    hidden_size: int = 64
    learning_rate: float = 1e-3
    gamma: float = 0.98
    lmbda: float = 0.8
    tau: float = 0.01
    steps_per_evaluation: int = 2048


class Positions(Transform):
    """Shows where cart and pole are, in those units, and hides how fast they move."""

    def apply_leaf(self, value: Tensor) -> Tensor:
        """Keep two of the four numbers `[*B, 4]`."""
        return value[..., ::2] / UNITS

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """Describe them: `[*B, 2]`."""
        return Unbounded((*spec.shape[:-1], 2))


def make_env(name: str, num_envs: int) -> TransformedEnv:
    """Make environments that are played side by side."""
    return TransformedEnv(SerialEnv(num_envs, lambda: GymEnv(name)), Positions(["observation"]))


class Run:
    """A training run: whatever a checkpoint holds, and what resumes it."""

    def __init__(self, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        self.settings, size = settings, settings.hidden_size
        spec = GymEnv(settings.env).action_spec
        self.gru = GRUModule(2, size, in_key="observation", out_key="h", burn_in=settings.burn_in)
        values = TensorDictModule(nn.Linear(size, 2), ["h"], ["action_value"])
        self.network = QValueActor(TensorDictSequential(self.gru, values), spec=spec)
        self.explore = EGreedyModule(spec, 1.0, 0.02, annealing_num_steps=15_000)
        self.policy = TensorDictSequential(self.network, self.explore)
        self.acting = copy.deepcopy(self.policy)  # on the CPU, where the environments are
        self.policy.to(settings.device)
        self.loss = DQNLoss(self.network, double_dqn=True, loss_mask_key="trained")
        self.loss.make_value_estimator("td_lambda", gamma=settings.gamma, lmbda=settings.lmbda)
        self.target = SoftUpdate(self.loss, tau=settings.tau)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=settings.learning_rate)
        self.buffer = TensorDictReplayBuffer(
            storage=LazyMemmapStorage(settings.capacity, lanes=WORKERS),
            sampler=SliceSampler(slice_len=settings.slice_steps, by="step"),
            batch_size=settings.slices * settings.slice_steps,
            shared=True,
        )
        self.test_env = wire_policy(make_env(settings.env, EPISODES), self.acting[0])
        self.longest = gymnasium.spec(settings.env).max_episode_steps
        self.threshold = gymnasium.spec(settings.env).reward_threshold
        self.steps = 0  # that were played and learned from
        self.best: dict[str, Any] = {"score": float("-inf"), "weights": None}

    def workers(self, turns: Any) -> MultiAsyncCollector:
        """Make what plays in the background: a batch for every release of a semaphore."""
        name, num_envs = self.settings.env, self.settings.envs_per_worker
        collector = MultiAsyncCollector(
            [lambda: make_env(name, num_envs)] * WORKERS,
            self.acting,
            frames_per_batch=self.settings.steps_per_batch,
            trajs_per_batch=1,  # whole ones, as many as a batch completes
            replay_buffer=self.buffer,
            pre_collect_hook=lambda: turns.acquire(),
            mp_start_method="forkserver",
        )
        collector.set_seed(self.settings.seed + self.steps)
        return collector

    def train_on_batch(self) -> dict[str, Any]:
        """Update so often for each batch that is played, once there are enough. What to log."""
        settings, logged = self.settings, {}
        self.steps += settings.steps_per_batch
        self.explore.step(settings.steps_per_batch)
        for _ in range(settings.updates_per_batch * (self.steps > settings.first_steps)):
            logged = {"loss": self.update()}
        if self.steps % settings.steps_per_evaluation == 0:
            logged["eval/return"] = self.keep_score()
        return logged

    def update(self) -> Tensor:
        """Take one step of the optimiser, and write back the states that it makes."""
        batch = self.buffer.sample().to(self.settings.device)
        batch["next", "reward"] *= 1 - self.settings.gamma  # so values lie between 0 and 1
        batch["trained"] = ~self.gru.burn_in_mask(batch)
        self.optimizer.zero_grad()
        loss = self.loss(batch)["loss"]
        loss.backward()
        self.optimizer.step()
        self.target.step()
        fresh = self.gru.refreshed_states(batch).cpu()
        self.buffer.update_rows(fresh[keys.ROW], fresh.select(*self.gru.state_keys))
        return loss.detach()

    def keep_score(self) -> float:
        """Evaluate, always from the same starts, and keep the best weights."""
        weights = copy.deepcopy(self.loss.target_value_network.state_dict())
        score = self.evaluate(weights, seed=self.settings.seed + 1_000_000)
        if score > self.best["score"]:
            self.best = {"score": score, "weights": weights}
        return score

    def evaluate(self, weights: dict[str, Tensor], seed: int) -> float:
        """Play episodes with the actions that are worth most; their mean return."""
        self.acting[0].load_state_dict(weights)
        self.test_env.set_seed(seed)
        batch = self.test_env.rollout(
            self.longest, self.acting[0], break_when_any_done=False, break_when_all_done=True
        )
        done = batch["next", "done"].int()
        is_first_episode = done.cumsum(1) - done == 0
        return float((batch["next", "reward"] * is_first_episode).sum(1).mean())

    def save(self, out: Path, log: dict[str, Any]) -> None:
        """Write a checkpoint to resume from, each file whole or not at all."""
        if len(self.buffer):
            self.buffer.dumps(out / "buffer")
        state = {name: getattr(self, name).state_dict() for name in PARTS}
        state |= {name: getattr(self, name) for name in NUMBERS}
        state |= {"settings": asdict(self.settings), "log": log}
        torch.save(state, out / "checkpoint.part")
        os.replace(out / "checkpoint.part", out / "checkpoint.pt")

    def load(self, out: Path) -> dict[str, Any]:
        """Continue from a checkpoint, and return the state of its log; reading it runs no code."""
        path = out / "checkpoint.pt"
        if not path.exists():
            refuse(f"there is no checkpoint {path}: leave --resume out to begin")
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            given = dict(state["settings"])
        except Exception as error:  # whatever a file that is none makes torch raise
            refuse(f"{path} is no checkpoint of this example: {type(error).__name__}")
        for name, value in asdict(self.settings).items():
            if given.get(name) != value:
                refuse(f"{path} is of another run: {name} was {given.get(name)}, now is {value}")
        for name in PARTS:
            getattr(self, name).load_state_dict(state[name])
        for name in NUMBERS:
            setattr(self, name, state[name])
        if self.steps:
            self.buffer.loads(out / "buffer")
        return state["log"]


def train(run: Run, steps: int, logger: JSONLLogger, interrupts: list[Any]) -> None:
    """Train until the policy is nearly perfect, the steps are played, or somebody interrupts."""
    enough, begin, size = 0.99 * run.longest, run.steps, run.settings.steps_per_batch
    turns = multiprocessing.get_context("forkserver").Semaphore(2 * WORKERS)  # played ahead
    with run.workers(turns) as collector, tqdm(total=steps, initial=begin, unit="step") as bar:
        collector.start()
        try:
            while run.steps < steps and run.best["score"] < enough and not interrupts:
                while begin + collector.frames < run.steps + size:
                    if not collector.is_running:
                        collector.wait()  # raises what happened there
                    time.sleep(0.001)
                logged = run.train_on_batch()
                collector.update_policy_weights_(run.policy)
                turns.release()
                logger.log_metrics(logged, run.steps)
                if "eval/return" in logged:
                    run.save(logger.folder, logger.state_dict())
                bar.set_postfix({"best return": run.best["score"]}, refresh=False)
                bar.update(size)
        finally:
            for _ in range(2 * WORKERS):  # who waits for a turn plays it, and leaves
                turns.release()
    run.save(logger.folder, logger.state_dict())


def draw(run: Run, out: Path) -> Path:
    """Draw the returns over the steps."""
    figure, logged = Figure(figsize=(7, 4), layout="constrained"), read_run(out)
    axes = figure.subplots()
    if "eval/return" in logged:
        axes.plot(logged["eval/return"].steps, logged["eval/return"].values)
    axes.axhline(run.threshold, color="grey", linestyle=":")  # solved
    axes.set(xlabel="steps", ylabel="return", title=f"{run.settings.env} without velocities")
    figure.savefig(out / "curve.png")
    return out / "curve.png"


def refuse(message: str, error: BaseException | None = None) -> NoReturn:
    """End with one line and a status that is not 0."""
    cause = "" if error is None else f": {(str(error).splitlines() or [type(error).__name__])[0]}"
    raise SystemExit(f"dqn_recurrent_slices: {message}{cause}")


def check(settings: Settings, out: Path, *, resume: bool) -> None:
    """Raise for an environment that cannot be trained on, or a folder that cannot be written to."""
    if not resume and (out / "metrics.jsonl").exists():
        refuse(f"{out} holds a run: --resume continues it, another --out begins anew")
    try:
        torch.ones(1, device=settings.device).item()
    except (AssertionError, RuntimeError) as error:
        refuse(f"no device {settings.device!r} here", error)
    try:
        space = gymnasium.make(settings.env).observation_space
    except (gymnasium.error.Error, ImportError) as error:
        refuse(f"no environment {settings.env!r} here", error)
    if space.shape != (4,):
        refuse(f"{settings.env} is no CartPole: its observations are {space}")
    if not 0 <= settings.seed < 2**31:
        refuse(f"expected a seed of at most 31 bits, got {settings.seed}")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        refuse(f"cannot write to {out}", error)


def main() -> None:
    """Read the options, train, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default=Settings.env, help="a CartPole of Gymnasium")
    parser.add_argument("--seed", type=int, default=Settings.seed)
    parser.add_argument("--device", default=Settings.device, help="where to learn: cpu, cuda, ...")
    parser.add_argument("--steps", type=int, default=300_000, help="most steps to train")
    parser.add_argument("--out", type=Path, default=Path("runs/dqn_recurrent_slices"))
    parser.add_argument("--resume", action="store_true", help="resume the checkpoint of --out")
    options, interrupts = parser.parse_args(), []
    # Ctrl-C lets the batch under way be finished; a second one stops at once
    signal.signal(signal.SIGINT, lambda *_: interrupts.append(signal.signal(*AT_ONCE)))
    torch.set_num_threads(1)  # tensors as small as these are slower on several
    settings, out = Settings(options.env, options.seed, options.device), options.out
    check(settings, out, resume=options.resume)
    run, start = Run(settings), time.perf_counter()
    log = run.load(out) if options.resume else None
    with JSONLLogger(out.name, out.parent, resume=options.resume) as logger:
        logger.log_hparams(asdict(settings)) if log is None else logger.load_state_dict(log)
        train(run, options.steps, logger, interrupts)
    if interrupts:
        refuse(f"interrupted at step {run.steps:,}, --resume starts at {out / 'checkpoint.pt'}")
    seconds, weights = time.perf_counter() - start, run.best["weights"]
    score = run.evaluate(weights or run.network.state_dict(), seed=options.seed + 2_000_000)
    verdict = "solved" if score >= run.threshold else "not solved"
    print(f"{verdict}: mean return {score:.1f} of {EPISODES} new episodes, {run.threshold} wanted")
    print(f"{run.steps:,} steps, {seconds:.0f} s")
    print(f"curve: {draw(run, out)}\ncheckpoint: {out / 'checkpoint.pt'}")


if __name__ == "__main__":
    main()
