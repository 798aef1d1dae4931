# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "rl-collect", "rl-envs", "rl-policies", "rl-record", "rl-replay", "rl-specs",
#     "rl-transforms", "rl-value", "matplotlib", "tensordict", "torch",
# ]
# ///
"""DQN from pixels, on the path that Atari takes: every frame is stored once, in a file.

    python examples/dqn_atari_path.py                            # a small game, built in
    python examples/dqn_atari_path.py --env ale_py:ALE/Breakout-v5 --steps 1000000   # needs ale-py
    python examples/dqn_atari_path.py --compare                  # what a step costs, stored so

The network sees stacks of four frames. The buffer keeps one frame of bytes for each step: stacks
and next stacks are built when rows are drawn, by priority.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictSequential
from torch import Tensor, nn

from rl_collect import Collector
from rl_envs import EnvBase, GymEnv, SerialEnv, TransformedEnv
from rl_policies import MLP, ConvNet, EGreedyModule, QValueActor
from rl_record import Evaluation, Evaluator, JSONLLogger, VideoRecorder, read_run
from rl_record.plot import plot_runs
from rl_replay import LazyMemmapStorage, PrioritizedSampler, TensorDictReplayBuffer
from rl_specs import Bounded, OneHot
from rl_transforms import CatFrames, EndOfLife, Resize, RewardClipping, UnsqueezeTransform
from rl_value import DQNLoss, SoftUpdate

CATCH, FRAME = "catch", ["observation"]
EPISODES = 10  # of an evaluation
SIDE, BALL, PADDLE, SPEED = 84, 6, 18, 6  # pixels; of the paddle and downwards, pixels a step
PARTS = ("loss", "explore", "optimizer")  # of a checkpoint


@dataclass(frozen=True)
class Settings:
    """What a run is."""

    env: str = CATCH
    seed: int = 0
    num_envs: int = 4
    steps_per_batch: int = 64  # of all environments together
    updates_per_batch: int = 16
    first_steps: int = 1000  # with random actions, and no updates
    random_steps: int = 10_000  # until then fewer and fewer actions are random
    last_epsilon: float = 0.05
    capacity: int = 50_000  # steps in the buffer
    batch_size: int = 32
    alpha: float = 0.3  # of squared errors: 0.6 of errors
    beta: float = 0.4
    learning_rate: float = 3e-4
    gamma: float = 0.97
    tau: float = 0.01
    steps_per_evaluation: int = 3200


class Catch(EnvBase):
    """Balls fall slantwise, one after the other; a paddle that catches one earns 1, else -1.

    Frames are bytes `[1, 84, 84]`. One alone does not show where the ball is going.
    """

    def __init__(self, balls: int = 5) -> None:
        super().__init__()
        self.observation_spec = Bounded(0, 255, (1, SIDE, SIDE), dtype=torch.uint8)
        self.action_spec = OneHot(3)  # left, stay, right
        self.balls, self.generator = balls, torch.Generator()

    def _drop(self) -> None:
        column, drift = (torch.randint(high, (), generator=self.generator) for high in (79, 9))
        self.row, self.column, self.drift = 0, int(column), 2 * (int(drift) - 4)

    def _frame(self) -> Tensor:
        frame = torch.zeros(1, SIDE, SIDE, dtype=torch.uint8)
        frame[:, self.row : self.row + BALL, self.column : self.column + BALL] = 255
        frame[:, -BALL:, self.paddle : self.paddle + PADDLE] = 128
        return frame

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDict:
        self.left, self.paddle = self.balls, (SIDE - PADDLE) // 2
        self._drop()
        return TensorDict({"observation": self._frame()})

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        move = SPEED * (int(tensordict["action"].int().argmax()) - 1)
        self.paddle = min(max(self.paddle + move, 0), SIDE - PADDLE)
        self.row += SPEED
        self.column += self.drift
        if not 0 <= self.column <= SIDE - BALL:  # off a wall
            self.column = -self.column if self.column < 0 else 2 * (SIDE - BALL) - self.column
            self.drift = -self.drift
        reward = 0.0
        if self.row >= SIDE - 2 * BALL:
            reward = 1.0 if -BALL < self.column - self.paddle < PADDLE else -1.0
            self.left -= 1
            self._drop()
        after = {
            "observation": self._frame(),
            "reward": torch.tensor([reward]),
            "terminated": torch.tensor([self.left == 0]),
        }
        return TensorDict(after)

    def _set_seed(self, seed: int) -> None:
        self.generator.manual_seed(seed)


def make_game(name: str) -> EnvBase:
    """Make a game that shows frames of bytes `[1, 84, 84]` under `"observation"`."""
    if name == CATCH:
        return Catch()
    game = GymEnv(name, obs_type="grayscale", frameskip=4, info_keys=["lives"])
    return TransformedEnv(game, UnsqueezeTransform(-3, FRAME), Resize(SIDE, in_keys=FRAME))


def make_env(name: str, num_envs: int, *, clipped: bool = True) -> TransformedEnv:
    """Make games that are played side by side, and show stacks to a policy."""
    env = TransformedEnv(SerialEnv(num_envs, lambda: make_game(name)), CatFrames(4, -3, FRAME))
    return env.append_transform(RewardClipping(-1, 1)) if clipped else env


def make_network(num_actions: int) -> nn.Sequential:
    """Values of actions from stacks of bytes `[*B, 4, 84, 84]` (Mnih et al., arXiv:1312.5602)."""
    sizes = {"num_cells": [16, 32], "kernel_sizes": [8, 4], "strides": [4, 2]}
    return nn.Sequential(
        Scaled(),
        ConvNet(4, activation_class=nn.ReLU, **sizes),
        MLP(32 * 9 * 9, num_actions, num_cells=[256], activation_class=nn.ReLU),
    )


class Scaled(nn.Module):
    """Bytes as floats between 0 and 1."""

    def forward(self, frames: Tensor) -> Tensor:
        """Scale them."""
        return frames.float() / 255


def make_buffer(
    settings: Settings, folder: Path, *, resume: bool = False
) -> TensorDictReplayBuffer:
    """Make a buffer whose rows are in a file of the folder, or open the one that is there."""
    if resume:
        storage = LazyMemmapStorage.open(folder)
    else:
        storage = LazyMemmapStorage(
            settings.capacity, scratch_dir=folder, lossless=True, existsok=True
        )
    buffer = TensorDictReplayBuffer(
        storage=storage,
        sampler=PrioritizedSampler(settings.capacity, settings.alpha, settings.beta),
        batch_size=settings.batch_size,
        transform=CatFrames(4, -3, FRAME),
    )
    if settings.env != CATCH:
        buffer.append_transform(EndOfLife(mark_done=True))  # for the learner only
    return buffer


class Run:
    """A training run, with its log, its checkpoint and its rows in one folder."""

    def __init__(self, settings: Settings, folder: Path, *, resume: bool = False) -> None:
        torch.manual_seed(settings.seed)
        self.settings, self.folder = settings, folder
        self.logger = JSONLLogger(folder.name, folder.parent, resume=resume)
        env = make_env(settings.env, settings.num_envs)
        spec = make_game(settings.env).action_spec
        net = make_network(spec.shape[-1])
        self.network = QValueActor(net, in_keys=["stacked_observation"], spec=spec)
        self.explore = EGreedyModule(spec, 1.0, settings.last_epsilon, settings.random_steps)
        self.loss = DQNLoss(self.network, loss_function="smooth_l1", double_dqn=True)
        self.loss.make_value_estimator(gamma=settings.gamma)
        self.update_targets = SoftUpdate(self.loss, tau=settings.tau)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=settings.learning_rate)
        self.buffer = make_buffer(settings, folder / "rows", resume=resume)
        self.collector = Collector(
            env,
            TensorDictSequential(self.network, self.explore),
            frames_per_batch=settings.steps_per_batch,
            replay_buffer=self.buffer,
        )
        self.collector.set_seed(settings.seed)
        held_out = make_env(settings.env, EPISODES, clipped=False)
        limits = {"max_steps": 5000, "deterministic": False}  # some games only go on if chance acts
        player = TensorDictSequential(self.network, EGreedyModule(spec, 0.01, 0.01))
        self.evaluator = Evaluator(held_out, player, 1, logger=self.logger, **limits)
        self.steps = 0
        if resume:
            self.load()
        else:
            self.logger.log_hparams(asdict(settings))

    def train(self, steps: int) -> Evaluation:
        """Play and update in turns; evaluate and keep a checkpoint now and then.

        Returns the last evaluation.
        """
        settings = self.settings
        found = None
        while self.steps < steps:
            self.collector.next()
            self.steps += settings.steps_per_batch
            self.explore.step(settings.steps_per_batch)
            if self.steps > settings.first_steps:
                losses = [self.update() for _ in range(settings.updates_per_batch)]
                self.logger.log_metrics({"loss": torch.stack(losses).mean()}, self.steps)
            found = None
            if self.steps % settings.steps_per_evaluation == 0:
                found = self.evaluator.evaluate(self.steps)
                self.save()
        self.save()
        self.collector.shutdown()
        return found or self.evaluator.evaluate(self.steps)

    def update(self) -> Tensor:
        """Take one step of the network, and give the errors back as priorities."""
        batch = self.buffer.sample()
        loss = self.loss(batch)["loss"]
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.update_targets.step()
        self.buffer.update_tensordict_priority(batch)
        return loss.detach()

    def save(self) -> None:
        """Save what a run resumes from; rows are in their file already, games are reset."""
        state = {"steps": self.steps, "log": self.logger.state_dict()}
        state |= {name: getattr(self, name).state_dict() for name in PARTS}
        state["sampler"] = self.buffer.sampler.state_dict()
        torch.save(state, self.folder / "checkpoint.pt")

    def load(self) -> None:
        """Resume from the checkpoint."""
        state = torch.load(self.folder / "checkpoint.pt", weights_only=True)
        self.steps = state["steps"]
        self.logger.load_state_dict(state["log"])
        for name in PARTS:
            getattr(self, name).load_state_dict(state[name])
        self.buffer.sampler.load_state_dict(state["sampler"])

    def film(self) -> None:
        """Log some steps as a video: the frames that the network sees."""
        recorder = VideoRecorder(self.logger, "play", FRAME, fps=15)
        env = TransformedEnv(make_game(self.settings.env), CatFrames(4, -3, FRAME))
        env.append_transform(recorder)
        Evaluator(env, self.evaluator.policy, 1, max_steps=300, deterministic=False).evaluate()
        recorder.dump(self.steps)


def compare(settings: Settings, steps: int) -> None:
    """Print what a step takes in a file, and how long a sample takes, for three ways to store."""
    env = make_env(settings.env, settings.num_envs)
    batches = [b.clone() for b in Collector(env, frames_per_batch=steps // 8, total_frames=steps)]
    stacks = ["stacked_observation", ("next", "stacked_observation")]
    ways: dict[str, tuple[bool, Callable[[TensorDictBase], TensorDictBase], bool]] = {
        "stacks": (False, lambda b: b.exclude(*FRAME, ("next", *FRAME)), False),
        "frames, next ones too": (False, lambda b: b.exclude(*stacks), True),
        "frames, once": (True, lambda b: b.exclude(*stacks), True),
    }
    with tempfile.TemporaryDirectory() as folder:
        buffers = {}
        for name, (once, shown, stacked) in ways.items():
            place = Path(folder) / str(len(buffers))
            buffers[name] = TensorDictReplayBuffer(
                storage=LazyMemmapStorage(steps, scratch_dir=place, lossless=once),
                sampler=PrioritizedSampler(steps, settings.alpha, settings.beta),
                batch_size=settings.batch_size,
                transform=CatFrames(4, -3, FRAME) if stacked else None,
            )
            for batch in batches:
                buffers[name].extend(shown(batch))
        took: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(200):
            for name, buffer in buffers.items():
                start = time.perf_counter()
                buffer.sample()
                took[name].append(time.perf_counter() - start)
        for number, name in enumerate(ways):
            files = (Path(folder) / str(number)).iterdir()
            size = sum(file.stat().st_blocks * 512 for file in files) / steps
            median = statistics.median(took[name]) * 1e6
            print(f"{name}: {size:,.0f} bytes a step in files, {median:,.0f} us a sample")


def main() -> None:
    """Read the options, train, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default=CATCH, help="catch, or an id of Atari, as ale_py:ALE/...")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=19_200, help="of each run, or to compare")
    parser.add_argument("--capacity", type=int, default=Settings.capacity, help="of the buffer")
    parser.add_argument("--out", type=Path, default=Path("runs/dqn_atari_path"))
    parser.add_argument("--resume", action="store_true", help="resume from the checkpoints")
    parser.add_argument("--compare", action="store_true", help="compare ways to store, and end")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.compare:
        compare(Settings(options.env), options.steps)
        return
    folders = [options.out / f"seed-{seed}" for seed in options.seeds]
    for seed, folder in zip(options.seeds, folders, strict=True):
        settings = Settings(options.env, seed, capacity=options.capacity)
        run = Run(settings, folder, resume=options.resume)
        start = time.process_time()
        found = run.train(options.steps)
        print(
            f"seed {seed}: return {found.mean:.1f} over {len(found.returns)} episodes after "
            f"{run.steps} steps, {time.process_time() - start:.0f} s of CPU",
            flush=True,
        )
        run.film()
        run.logger.close()
    runs = [read_run(folder) for folder in folders]
    plot_runs({"DQN": runs}, names=["eval/return"]).savefig(options.out / "curves.png")
    print(f"curves: {options.out / 'curves.png'}")


if __name__ == "__main__":
    main()
