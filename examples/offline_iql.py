# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "rl-collect", "rl-envs", "rl-layout", "rl-policies", "rl-record", "rl-replay", "rl-value",
#     "gymnasium[classic-control]", "matplotlib", "tensordict", "torch",
# ]
# ///
"""IQL from stored steps alone: a pendulum that is learned from somebody else's clumsy play.

    python examples/offline_iql.py
    python examples/offline_iql.py --seeds 0 1 2 3 4

First a hand-written controller, half of whose actions are replaced by random ones, plays some
episodes, which are kept on disk. Then the networks learn from these alone. What the actor is worth
is compared with what the data is worth: the mean return of its episodes.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tensordict import TensorDictBase
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import Tensor, nn

from rl_collect import Collector
from rl_envs import GymEnv, SerialEnv
from rl_policies import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from rl_record import Evaluation, Evaluator, JSONLLogger, read_run
from rl_record.plot import plot_runs
from rl_replay import LazyTensorStorage, TensorDictReplayBuffer
from rl_value import IQLLoss, SoftUpdate

ENV, LIMIT = "Pendulum-v1", 200  # steps of an episode
EPISODES = 20  # of an evaluation


@dataclass(frozen=True)
class Settings:
    """What a run is."""

    seed: int = 0
    episodes: int = 100  # of data
    random_share: float = 0.5  # of the actions of data
    batch_size: int = 256
    cells: int = 64  # of each of two layers
    learning_rate: float = 1e-3
    gamma: float = 0.98
    tau: float = 0.01
    expectile: float = 0.8
    temperature: float = 3.0
    reward_scale: float = 0.1
    updates_per_evaluation: int = 500


class Clumsy(nn.Module):
    """Swings up by energy, balances by angle and speed, and often does anything else."""

    def __init__(self, random_share: float) -> None:
        super().__init__()
        self.random_share = random_share

    def forward(self, observation: Tensor) -> Tensor:
        """Torques `[*B, 1]` of cosine, sine and speed `[*B, 3]`."""
        up, side, speed = observation.unbind(-1)
        energy = speed.square() / 6 + 5 * (up - 1)  # 0 at rest at the top
        swing = -2 * speed.sign() * energy.sign()
        torque = torch.where(up > 0.9, -10 * side - 2 * speed, swing).clamp(-2, 2)
        is_random = torch.rand_like(torque) < self.random_share
        return torch.where(is_random, 4 * torch.rand_like(torque) - 2, torque).unsqueeze(-1)


def collect(settings: Settings) -> TensorDictReplayBuffer:
    """Play the episodes of the data."""
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(settings.episodes * LIMIT), batch_size=settings.batch_size
    )
    collector = Collector(
        SerialEnv(settings.episodes, lambda: GymEnv(ENV)),
        TensorDictModule(Clumsy(settings.random_share), ["observation"], ["action"]),
        frames_per_batch=settings.episodes * LIMIT,
        total_frames=settings.episodes * LIMIT,
        replay_buffer=buffer,
    )
    collector.set_seed(settings.seed)
    for _ in collector:
        pass
    collector.shutdown()
    return buffer


class Run:
    """A training run on data, with its log in a folder."""

    def __init__(self, settings: Settings, folder: Path, *, resume: bool = False) -> None:
        torch.manual_seed(settings.seed)
        self.settings, self.folder, cells = settings, folder, [settings.cells] * 2
        body = MLP(3, 2, num_cells=cells, activation_class=nn.ReLU)
        net = nn.Sequential(body, NormalParamExtractor())
        self.actor = ProbabilisticActor(
            TensorDictModule(net, ["observation"], ["loc", "scale"]),
            ["loc", "scale"],
            spec=GymEnv(ENV).action_spec,
            distribution_class=TanhNormal,
        )
        critic = MLP(4, 1, num_cells=cells, activation_class=nn.ReLU)
        value = MLP(3, 1, num_cells=cells, activation_class=nn.ReLU)
        self.loss = IQLLoss(
            self.actor,
            ValueOperator(critic, ["observation", "action"]),
            ValueOperator(value, ["observation"]),
            expectile=settings.expectile,
            temperature=settings.temperature,
        )
        self.loss.make_value_estimator(gamma=settings.gamma)
        self.update_targets = SoftUpdate(self.loss, tau=settings.tau)
        self.optimizer = torch.optim.Adam(self.loss.parameters(), lr=settings.learning_rate)
        self.logger = JSONLLogger(folder.name, folder.parent, resume=resume)
        env = SerialEnv(EPISODES, lambda: GymEnv(ENV))
        self.evaluator = Evaluator(env, self.actor, 1, logger=self.logger)
        self.updates = 0
        if resume:
            state = torch.load(folder / "checkpoint.pt", weights_only=True)
            self.updates = state["updates"]
            self.logger.load_state_dict(state["log"])
            self.loss.load_state_dict(state["loss"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.data = TensorDictReplayBuffer(
                storage=LazyTensorStorage(settings.episodes * LIMIT),
                batch_size=settings.batch_size,
            )
            self.data.loads(folder / "data")
        else:
            self.logger.log_hparams(asdict(settings))
            self.data = collect(settings)
            self.data.dumps(folder / "data")

    def worth_of_data(self) -> float:
        """The mean return of the episodes that are stored."""
        rewards = self.data[:]["next", "reward"]
        return float(rewards.sum() / self.settings.episodes)

    def train(self, updates: int) -> Evaluation:
        """Learn from the data; what the actor is worth in the end."""
        every = self.settings.updates_per_evaluation
        found = None
        while self.updates < updates:
            losses = self.update(self.data.sample())
            self.updates += 1
            found = None
            if self.updates % every == 0:
                self.logger.log_metrics(losses, self.updates)
                found = self.evaluator.evaluate(self.updates)
                self.save()
        return found or self.evaluator.evaluate(self.updates)

    def update(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """Take one step of all networks."""
        batch["next", "reward"] = batch["next", "reward"] * self.settings.reward_scale
        losses = self.loss(batch)
        self.optimizer.zero_grad()
        (losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_value"]).backward()
        self.optimizer.step()
        self.update_targets.step()
        return {name: value.detach() for name, value in losses.items()}

    def save(self) -> None:
        """Save what a run resumes from."""
        state = {"updates": self.updates, "log": self.logger.state_dict()}
        parts = {"loss": self.loss.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**state, **parts}, self.folder / "checkpoint.pt")


def main() -> None:
    """Read the options, train, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--updates", type=int, default=3000, help="of each run")
    parser.add_argument("--out", type=Path, default=Path("runs/offline_iql"))
    parser.add_argument("--resume", action="store_true", help="resume from the checkpoints")
    options = parser.parse_args()
    torch.set_num_threads(1)  # tensors as small as these are slower on several
    folders = [options.out / f"seed-{seed}" for seed in options.seeds]
    for seed, folder in zip(options.seeds, folders, strict=True):
        start = time.process_time()
        run = Run(Settings(seed), folder, resume=options.resume)
        found = run.train(options.updates)
        print(
            f"seed {seed}: return {found.mean:.1f} over {len(found.returns)} episodes after "
            f"{run.updates} updates, the data's {run.worth_of_data():.1f}, "
            f"{time.process_time() - start:.0f} s of CPU",
            flush=True,
        )
        run.logger.close()
    runs = [read_run(folder) for folder in folders]
    plot_runs({"IQL": runs}, names=["eval/return"]).savefig(options.out / "curves.png")
    print(f"curves: {options.out / 'curves.png'}")


if __name__ == "__main__":
    main()
