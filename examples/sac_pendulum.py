# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "rl-collect", "rl-envs", "rl-policies", "rl-record", "rl-replay", "rl-transforms",
#     "rl-value", "gymnasium[classic-control]", "matplotlib", "tensordict", "torch",
# ]
# ///
"""SAC on a pendulum: an actor, two critics in one module, and an entropy that finds its weight.

    python examples/sac_pendulum.py
    python examples/sac_pendulum.py --seeds 0 1 2 3 4
    python examples/sac_pendulum.py --steps 30000 --resume      # from its checkpoint
    python examples/sac_pendulum.py --env HalfCheetah-v5 --steps 300000   # gymnasium[mujoco]

Four pendulums are played side by side; for each step of theirs the networks take one step on rows
drawn from all that were played. Curves go to a logger, a checkpoint is kept with the buffer, and
at the end the pendulum is filmed.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn

from rl_collect import Collector
from rl_envs import EnvBase, GymEnv, SerialEnv, TransformedEnv
from rl_policies import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from rl_record import Evaluation, Evaluator, JSONLLogger, VideoRecorder, read_run
from rl_record.plot import plot_runs
from rl_replay import LazyTensorStorage, TensorDictReplayBuffer
from rl_transforms import DoubleToFloat
from rl_value import SACLoss, SoftUpdate

PENDULUM = "Pendulum-v1"
EPISODES = 20  # of an evaluation


@dataclass(frozen=True)
class Settings:
    """What a run is."""

    env: str = PENDULUM
    seed: int = 0
    num_envs: int = 4
    steps_per_batch: int = 20  # of all environments together; so many updates follow
    first_steps: int = 500  # with random actions, and no updates
    capacity: int = 100_000  # steps in the buffer
    batch_size: int = 128
    cells: int = 64  # of each of two layers
    learning_rate: float = 2e-3
    gamma: float = 0.98
    tau: float = 0.01
    steps_per_evaluation: int = 1000


# for tasks of MuJoCo: those of Haarnoja et al., arXiv:1812.05905, but for fewer random actions
LARGE: dict[str, Any] = {"first_steps": 1000, "capacity": 1_000_000, "batch_size": 256}
LARGE |= {"cells": 256, "learning_rate": 3e-4, "gamma": 0.99, "tau": 0.005}
LARGE |= {"steps_per_evaluation": 5000}


def settings_for(env: str, seed: int) -> Settings:
    """Those of the pendulum, or of larger tasks."""
    return Settings(env, seed) if env == PENDULUM else Settings(env, seed, **LARGE)


def make_game(name: str, **options: Any) -> TransformedEnv:
    """Make an environment whose observations are float32."""
    return TransformedEnv(GymEnv(name, **options), DoubleToFloat(["observation"]))


def make_env(name: str, num_envs: int) -> EnvBase:
    """Make environments that are played side by side."""
    return SerialEnv(num_envs, lambda: make_game(name))


class Run:
    """A training run, with its log and its checkpoint in one folder."""

    def __init__(self, settings: Settings, folder: Path, *, resume: bool = False) -> None:
        torch.manual_seed(settings.seed)
        self.settings, self.folder = settings, folder
        env, game = make_env(settings.env, settings.num_envs), make_game(settings.env)
        seen, acts = game.observation_spec["observation"].shape[-1], game.action_spec.shape[-1]
        sizes = {"num_cells": [settings.cells] * 2, "activation_class": nn.ReLU}
        net = nn.Sequential(MLP(seen, 2 * acts, **sizes), NormalParamExtractor())
        self.actor = ProbabilisticActor(
            TensorDictModule(net, ["observation"], ["loc", "scale"]),
            ["loc", "scale"],
            spec=game.action_spec,
            distribution_class=TanhNormal,
        )
        critic = MLP(seen + acts, 1, **sizes)
        self.loss = SACLoss(self.actor, ValueOperator(critic, ["observation", "action"]))
        self.loss.make_value_estimator(gamma=settings.gamma)
        self.update_targets = SoftUpdate(self.loss, tau=settings.tau)
        self.optimizer = torch.optim.Adam(self.loss.parameters(), lr=settings.learning_rate)
        self.buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(settings.capacity), batch_size=settings.batch_size
        )
        self.collector = Collector(
            env,
            self.actor,
            frames_per_batch=settings.steps_per_batch,
            init_random_frames=0 if resume else settings.first_steps,
            replay_buffer=self.buffer,
        )
        self.collector.set_seed(settings.seed)
        self.logger = JSONLLogger(folder.name, folder.parent, resume=resume)
        held_out = make_env(settings.env, EPISODES)
        self.evaluator = Evaluator(held_out, self.actor, 1, logger=self.logger)
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
            if self.steps > settings.first_steps:
                for _ in range(settings.steps_per_batch):
                    losses = self.update()
                self.logger.log_metrics(losses, self.steps)
            found = None
            if self.steps % settings.steps_per_evaluation == 0:
                found = self.evaluator.evaluate(self.steps)
                self.save()
        self.collector.shutdown()
        return found or self.evaluator.evaluate(self.steps)

    def update(self) -> dict[str, torch.Tensor]:
        """Take one step of all networks and of the weight of the entropy."""
        losses = self.loss(self.buffer.sample())
        self.optimizer.zero_grad()
        (losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]).backward()
        self.optimizer.step()
        self.update_targets.step()
        return {name: value.detach() for name, value in losses.items()}

    def save(self) -> None:
        """Save what a run resumes from; its environments are reset."""
        state = {"steps": self.steps, "log": self.logger.state_dict()}
        parts = {"loss": self.loss.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**state, **parts}, self.folder / "checkpoint.pt")
        self.buffer.dumps(self.folder / "buffer")

    def load(self) -> None:
        """Resume from the checkpoint."""
        state = torch.load(self.folder / "checkpoint.pt", weights_only=True)
        self.steps = state["steps"]
        self.logger.load_state_dict(state["log"])
        self.loss.load_state_dict(state["loss"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.buffer.loads(self.folder / "buffer")

    def film(self) -> None:
        """Log one episode as a video."""
        shown = make_game(self.settings.env, render_mode="rgb_array")
        recorder = VideoRecorder(self.logger, "play", render=shown.render, skip=2)
        Evaluator(shown.append_transform(recorder), self.actor, 1).evaluate()
        recorder.dump(self.steps)


def main() -> None:
    """Read the options, train, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    hint = "whose actions are vectors between bounds, as HalfCheetah-v5"
    parser.add_argument("--env", default=PENDULUM, help=hint)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=15_000, help="of each run")
    parser.add_argument("--out", type=Path, default=Path("runs/sac_pendulum"))
    parser.add_argument("--resume", action="store_true", help="resume from the checkpoints")
    parser.add_argument("--no-video", action="store_true", help="do not film an episode")
    options = parser.parse_args()
    torch.set_num_threads(1)  # tensors as small as these are slower on several
    folders = [options.out / f"seed-{seed}" for seed in options.seeds]
    for seed, folder in zip(options.seeds, folders, strict=True):
        settings, start = settings_for(options.env, seed), time.process_time()
        run = Run(settings, folder, resume=options.resume)
        found = run.train(options.steps)
        print(
            f"seed {seed}: return {found.mean:.1f} over {len(found.returns)} episodes after "
            f"{run.steps} steps, {time.process_time() - start:.0f} s of CPU",
            flush=True,
        )
        if not options.no_video:
            run.film()
        run.logger.close()
    runs = [read_run(folder) for folder in folders]
    plot_runs({"SAC": runs}, names=["eval/return"]).savefig(options.out / "curves.png")
    print(f"curves: {options.out / 'curves.png'}")


if __name__ == "__main__":
    main()
