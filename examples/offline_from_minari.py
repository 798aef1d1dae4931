# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "rl-datasets", "rl-envs", "rl-policies", "rl-record", "rl-value",
#     "h5py", "gymnasium[classic-control]", "matplotlib", "tensordict", "torch",
# ]
# ///
"""IQL and behavioural cloning of a dataset: recorded, written as Minari, read back, learnt from.

    python examples/offline_from_minari.py
    python examples/offline_from_minari.py --loss bc --random 0
    python examples/offline_from_minari.py --updates 4000 --resume

A rule that balances a pole, some of whose actions are replaced by random ones, is recorded for some
episodes. They are written as a dataset of Minari, which anybody can read. The files are then read
as any other dataset of Minari, and an actor learns from them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import gymnasium
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl_datasets import MinariExperienceReplay, to_minari
from rl_envs import GymEnv, SerialEnv
from rl_policies import MLP, ProbabilisticActor, ValueOperator
from rl_record import Evaluation, Evaluator, JSONLLogger, read_run
from rl_record.plot import plot_runs
from rl_value import BCLoss, IQLLoss, LossModule, SoftUpdate

NAME = "demo/pole-v0"
EVALUATED = 20  # episodes of an evaluation


@dataclass(frozen=True)
class Settings:
    """What a run is."""

    loss: str = "iql"
    random_share: float = 0.5  # of the actions of data
    episodes: int = 200  # of data
    batch_size: int = 256
    learning_rate: float = 1e-3
    updates_per_evaluation: int = 500


class Rule(nn.Module):
    """Pushes to the side to which the pole falls, or often anywhere."""

    def __init__(self, random_share: float) -> None:
        super().__init__()
        self.random_share = random_share

    def forward(self, observation: Tensor) -> Tensor:
        """Actions 0 and 1 `[*B]` of observations `[*B, 4]`."""
        falls_right = observation[..., 2:].sum(-1) > 0
        is_random = torch.rand_like(observation[..., 0]) < self.random_share
        return torch.where(
            is_random, torch.rand_like(observation[..., 0]) < 0.5, falls_right
        ).long()


class Critic(nn.Module):
    """What an action is worth: of two heads, the one of the action."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = MLP(4, 2, num_cells=[64, 64])

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """Values `[*B, 1]` of observations `[*B, 4]` and actions `[*B]`."""
        return self.heads(observation).gather(-1, action.unsqueeze(-1))


def make_env() -> GymEnv:
    """A pole on a cart, whose actions are 0 and 1."""
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def recorded(episodes: int, random_share: float) -> Iterator[TensorDictBase]:
    """Whole episodes of the rule."""
    env = make_env()
    policy = TensorDictModule(Rule(random_share), ["observation"], ["action"])
    env.set_seed(0)
    for _ in range(episodes):
        yield env.rollout(1_000, policy)


def make_loss(name: str) -> LossModule:
    """The loss of an actor, and for IQL of a critic and a value network."""
    actor = ProbabilisticActor(
        TensorDictModule(MLP(4, 2, num_cells=[64, 64]), ["observation"], ["logits"]),
        ["logits"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=False,
    )
    if name == "bc":
        return BCLoss(actor)
    critic = ValueOperator(Critic(), ["observation", "action"])
    value = ValueOperator(MLP(4, 1, num_cells=[64, 64]), ["observation"])
    loss = IQLLoss(actor, critic, value, expectile=0.8, temperature=3.0)
    loss.make_value_estimator(gamma=0.98)
    return loss


def write(settings: Settings, root: Path) -> None:
    """Write a new dataset of Minari below a folder."""
    space = gymnasium.make("CartPole-v1").action_space
    steps = recorded(settings.episodes, settings.random_share)
    folder = to_minari(steps, NAME, root=root, action_space=space)
    print("written:", *(path.name for path in sorted(Path(folder, "data").iterdir())))


class Run:
    """A training run on a dataset, with its log and the dataset in a folder."""

    def __init__(self, settings: Settings, folder: Path, *, resume: bool = False) -> None:
        torch.manual_seed(0)
        self.settings, self.folder, self.updates = settings, folder, 0
        self.logger = JSONLLogger(folder.name, folder.parent, resume=resume)
        if not resume:
            self.logger.log_hparams(asdict(settings))
            write(settings, folder / "data")
        self.data = MinariExperienceReplay(
            NAME,
            batch_size=settings.batch_size,
            path=folder / "data" / NAME,
            root=folder / "data",
        )
        self.loss = make_loss(settings.loss)
        self.optimizer = torch.optim.Adam(self.loss.parameters(), lr=settings.learning_rate)
        is_iql = isinstance(self.loss, IQLLoss)
        self.targets = SoftUpdate(self.loss, tau=0.01) if is_iql else None
        env = SerialEnv(EVALUATED, make_env)
        self.evaluator = Evaluator(env, self.loss.actor_network, 1, logger=self.logger)
        if resume:
            state = torch.load(folder / "checkpoint.pt", weights_only=True)
            self.updates = state["updates"]
            self.logger.load_state_dict(state["log"])
            self.loss.load_state_dict(state["loss"])
            self.optimizer.load_state_dict(state["optimizer"])

    def train(self, updates: int) -> Evaluation:
        """Learn from the dataset alone; what the actor is worth in the end."""
        every, found = self.settings.updates_per_evaluation, None
        while self.updates < updates:
            losses = self.update(self.data.sample())
            self.updates += 1
            if self.updates % every == 0 or self.updates == updates:
                self.logger.log_metrics(losses, self.updates)
                found = self.evaluator.evaluate(self.updates)
                self.save()
        return found or self.evaluator.evaluate(self.updates)

    def update(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """Take one step of all networks."""
        losses = {name: x for name, x in self.loss(batch).items() if name.startswith("loss_")}
        self.optimizer.zero_grad()
        sum(losses.values()).backward()
        self.optimizer.step()
        if self.targets is not None:
            self.targets.step()
        return {name: x.detach() for name, x in losses.items()}

    def save(self) -> None:
        """Save what a run resumes from."""
        state = {"updates": self.updates, "log": self.logger.state_dict()}
        parts = {"loss": self.loss.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**state, **parts}, self.folder / "checkpoint.pt")


def main() -> None:
    """Record, write, read, learn, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loss", choices=["iql", "bc"], default="iql")
    parser.add_argument("--random", type=float, default=0.5, help="share of the actions of data")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path("runs/offline_from_minari"))
    parser.add_argument("--resume", action="store_true", help="resume from the checkpoint")
    given = parser.parse_args()
    torch.set_num_threads(1)  # tensors as small as these are slower on several
    folder = given.out / given.loss
    settings = Settings(given.loss, given.random, given.episodes)
    run = Run(settings, folder, resume=given.resume)
    learnt = run.train(given.updates)
    print(f"return of the data {run.data.report.mean_return:.1f}, learnt {learnt.mean:.1f}")
    run.logger.close()
    curve = given.out / f"{given.loss}.png"
    plot_runs({given.loss.upper(): [read_run(folder)]}, names=["eval/return"]).savefig(curve)
    print(f"curve: {curve}")


if __name__ == "__main__":
    main()
