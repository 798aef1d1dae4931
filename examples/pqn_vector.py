# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "rl-collect", "rl-envs", "rl-policies", "rl-record", "rl-value",
#     "gymnasium[classic-control]", "matplotlib", "tensordict", "torch",
# ]
# ///
"""PQN on many CartPoles at once: Q-learning without a buffer and without a target network.

    python examples/pqn_vector.py
    python examples/pqn_vector.py --seeds 0 1 2 3 4
    python examples/pqn_vector.py --steps 400000 --resume      # from its checkpoint

64 poles are played as one vector of arrays. Each batch of their steps is given TD(lambda) targets
by the network that played it, is learned from in four passes, and is thrown away; layer norm keeps
that stable (Gallici et al., arXiv:2407.04811).
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictSequential
from torch import Tensor, nn

from rl_collect import Collector
from rl_envs import GymEnv, GymVectorEnv, SerialEnv, TransformedEnv
from rl_policies import MLP, EGreedyModule, QValueActor
from rl_record import Evaluation, Evaluator, JSONLLogger, VideoRecorder, read_run
from rl_record.plot import plot_runs
from rl_value import DQNLoss

ENV = "CartPole-v1"
EPISODES = 20  # of an evaluation
PARTS = ("network", "explore", "optimizer")  # of a checkpoint


@dataclass(frozen=True)
class Settings:
    """What a run is."""

    seed: int = 0
    num_envs: int = 64
    num_steps: int = 32  # of each environment, in a batch
    epochs: int = 4
    minibatches: int = 16  # of an epoch
    cells: int = 64  # of each of two layers
    learning_rate: float = 5e-4
    gamma: float = 0.99
    lmbda: float = 0.95
    reward_scale: float = 0.1
    last_epsilon: float = 0.1
    random_steps: int = 100_000  # until then fewer and fewer actions are random
    batches_per_evaluation: int = 10


class Run:
    """A training run, with its log and its checkpoint in one folder."""

    def __init__(self, settings: Settings, folder: Path, *, resume: bool = False) -> None:
        torch.manual_seed(settings.seed)
        self.settings, self.folder = settings, folder
        env = GymVectorEnv(ENV, settings.num_envs, vectorization_mode="vector_entry_point")
        spec = GymEnv(ENV).action_spec
        sizes = {"num_cells": [settings.cells] * 2, "activation_class": nn.ReLU}
        net = MLP(4, 2, norm_class=nn.LayerNorm, **sizes)
        self.network = QValueActor(net, in_keys=["observation"], spec=spec)
        self.explore = EGreedyModule(spec, 1.0, settings.last_epsilon, settings.random_steps)
        self.loss = DQNLoss(self.network, delay_value=False)
        self.loss.make_value_estimator("td_lambda", gamma=settings.gamma, lmbda=settings.lmbda)
        self.optimizer = torch.optim.RAdam(self.network.parameters(), lr=settings.learning_rate)
        self.collector = Collector(
            env,
            TensorDictSequential(self.network, self.explore),
            frames_per_batch=settings.num_envs * settings.num_steps,
        )
        self.collector.set_seed(settings.seed)
        self.logger = JSONLLogger(folder.name, folder.parent, resume=resume)
        held_out = SerialEnv(EPISODES, lambda: GymEnv(ENV))
        self.evaluator = Evaluator(held_out, self.network, 1, logger=self.logger)
        self.steps = 0
        if resume:
            self.load()
        else:
            self.logger.log_hparams(asdict(settings))

    def train(self, steps: int) -> Evaluation:
        """Play and learn in turns; evaluate and keep a checkpoint now and then.

        Returns the last evaluation.
        """
        settings = self.settings
        size = settings.num_envs * settings.num_steps
        found = None
        while self.steps < steps:
            loss = self.learn(self.collector.next())
            self.steps += size
            self.explore.step(size)
            self.logger.log_metrics({"loss": loss, "epsilon": self.explore.eps}, self.steps)
            found = None
            if self.steps // size % settings.batches_per_evaluation == 0:
                found = self.evaluator.evaluate(self.steps)
                self.save()
        self.collector.shutdown()
        return found or self.evaluator.evaluate(self.steps)

    def learn(self, batch: TensorDictBase) -> Tensor:
        """Take some steps on the rows of a batch `[B, T]`, whose targets are computed once."""
        batch["next", "reward"] *= self.settings.reward_scale
        rows = self.loss.targets(batch).reshape(-1)
        for _ in range(self.settings.epochs):
            for some in torch.randperm(len(rows)).chunk(self.settings.minibatches):
                loss = self.loss(rows[some])["loss"]
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.network.parameters(), max_norm=10.0)
                self.optimizer.step()
        return loss.detach()

    def save(self) -> None:
        """Save what a run resumes from; its environments are reset."""
        parts = {"steps": self.steps, "log": self.logger.state_dict()}
        parts |= {name: getattr(self, name).state_dict() for name in PARTS}
        torch.save(parts, self.folder / "checkpoint.pt")

    def load(self) -> None:
        """Resume from the checkpoint."""
        state = torch.load(self.folder / "checkpoint.pt", weights_only=True)
        self.steps = state["steps"]
        self.logger.load_state_dict(state["log"])
        for name in PARTS:
            getattr(self, name).load_state_dict(state[name])

    def film(self) -> None:
        """Log one episode as a video."""
        shown = GymEnv(ENV, render_mode="rgb_array")
        recorder = VideoRecorder(self.logger, "play", render=shown.render, skip=2)
        Evaluator(TransformedEnv(shown, recorder), self.network, 1).evaluate()
        recorder.dump(self.steps)


def main() -> None:
    """Read the options, train, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=200_000, help="of each run")
    parser.add_argument("--out", type=Path, default=Path("runs/pqn_vector"))
    parser.add_argument("--resume", action="store_true", help="resume from the checkpoints")
    parser.add_argument("--no-video", action="store_true", help="do not film the pole")
    options = parser.parse_args()
    torch.set_num_threads(1)  # tensors as small as these are slower on several
    folders = [options.out / f"seed-{seed}" for seed in options.seeds]
    for seed, folder in zip(options.seeds, folders, strict=True):
        run, start = Run(Settings(seed), folder, resume=options.resume), time.process_time()
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
    plot_runs({"PQN": runs}, names=["eval/return"]).savefig(options.out / "curves.png")
    print(f"curves: {options.out / 'curves.png'}")


if __name__ == "__main__":
    main()
