# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "rl-collect", "rl-envs", "rl-record", "rl-replay", "rl-trees[compiled]", "rl-value",
#     "gymnasium[classic-control]", "matplotlib", "tensordict", "torch",
# ]
# ///
"""CartPole by tree search in a model that is learned while it plays.

    python examples/mcts_learned_model.py
    python examples/mcts_learned_model.py --seeds 0 1 2 3 4
    python examples/mcts_learned_model.py --steps 24000 --resume      # from its checkpoint

A network predicts the next state and whether the pole falls; another one the value of a state and
which action is tried first. Eight environments are played side by side, and each step of theirs is
searched for in eight trees at once, by steps of the model alone. Both networks learn from the rows
that were played: the model from next observations, the value from returns, the prior from what the
search found.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from rl_collect import Collector
from rl_envs import GymEnv, SerialEnv
from rl_record import Evaluation, Evaluator, JSONLLogger, read_run
from rl_record.plot import plot_runs
from rl_replay import LazyTensorStorage, TensorDictReplayBuffer
from rl_trees import GumbelHalving, MCTSTrees, SearchStep
from rl_value import TDLambdaEstimator

ENV, ACTIONS = "CartPole-v1", 2
EPISODES = 20  # of an evaluation


@dataclass(frozen=True)
class Settings:
    """What a run is."""

    seed: int = 0
    num_envs: int = 8
    simulations: int = 16
    steps_per_batch: int = 200  # of all environments together
    updates_per_batch: int = 40
    batch_size: int = 256
    cells: int = 64  # of each of two layers
    learning_rate: float = 3e-3
    gamma: float = 0.99
    lmbda: float = 0.95
    batches_per_evaluation: int = 5


def network(inputs: int, outputs: int, cells: int) -> nn.Sequential:
    """Two layers of tanh units and a linear one."""
    layers = [nn.Linear(inputs, cells), nn.Tanh(), nn.Linear(cells, cells), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(cells, outputs))


class Model(nn.Module):
    """What is learned of the environment, and of how to play it."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.dynamics = network(4 + ACTIONS, 4 + 1, settings.cells)
        self.prediction = network(4, ACTIONS + 1, settings.cells)
        self.register_buffer("scale", torch.ones(4))  # of one step's change
        self.horizon = 1 / (1 - settings.gamma)  # the value of a pole that never falls

    def step(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """The next states `[B, 4]`, and logits `[B]` of a fall."""
        out = self.dynamics(torch.cat([state, one_hot(action, ACTIONS).to(state.dtype)], -1))
        return state + out[..., :4] * self.scale, out[..., 4]

    def predict(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the priors `[B, A]` and values `[B]`."""
        out = self.prediction(state)
        return out[..., :ACTIONS], out[..., ACTIONS] * self.horizon

    def value(self, state: Tensor) -> Tensor:
        """Values `[B, 1]`."""
        return self.predict(state)[1].unsqueeze(-1)


class Search(nn.Module):
    """Plays what a search in the model finds."""

    def __init__(self, model: Model, settings: Settings) -> None:
        super().__init__()
        self.model, self.settings = model, settings
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.trees: dict[int, MCTSTrees] = {}  # by how many states are searched at once

    @torch.no_grad()
    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Actions one-hot `[B, A]`, a policy `[B, A]` and values `[B, 1]`, as searched."""
        count, simulations = len(observation), self.settings.simulations
        rule = GumbelHalving(simulations)
        trees = self.trees.setdefault(count, MCTSTrees(count, simulations + 1, ACTIONS, rule))
        trees.reset(*self.model.predict(observation), generator=self.generator)
        trees.search(self.step, observation, simulations)
        action = one_hot(trees.best_actions(), ACTIONS)
        return action, trees.policy().float(), trees.root_values.float().unsqueeze(-1)

    def step(self, state: Tensor, action: Tensor) -> SearchStep[Tensor]:
        """A step of the model in each tree."""
        after, fall = self.model.step(state, action)
        logits, value = self.model.predict(after)
        return SearchStep(
            after, torch.ones_like(value), logits, value, self.settings.gamma, fall > 0
        )


class Run:
    """A training run, with its log and its checkpoint in one folder."""

    def __init__(self, settings: Settings, folder: Path, *, resume: bool = False) -> None:
        torch.manual_seed(settings.seed)
        self.settings, self.folder = settings, folder
        self.model = Model(settings)
        self.search = Search(self.model, settings)
        self.actor = TensorDictModule(
            self.search, ["observation"], ["action", "searched_policy", "searched_value"]
        )
        value = TensorDictModule(self.model.value, ["observation"], ["state_value"])
        self.returns = TDLambdaEstimator(
            gamma=settings.gamma, lmbda=settings.lmbda, value_network=value
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=settings.learning_rate)
        self.buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(10_000), batch_size=settings.batch_size
        )
        env = SerialEnv(settings.num_envs, lambda: GymEnv(ENV))
        self.collector = Collector(env, self.actor, frames_per_batch=settings.steps_per_batch)
        self.collector.set_seed(settings.seed)
        self.logger = JSONLLogger(folder.name, folder.parent, resume=resume)
        shown = SerialEnv(EPISODES, lambda: GymEnv(ENV))
        self.evaluator = Evaluator(shown, self.actor, 1, logger=self.logger)
        self.steps = 0
        if resume:
            self.load()
        else:
            self.logger.log_hparams(asdict(settings))

    def train(self, steps: int) -> Evaluation:
        """Play and learn in turns; evaluate and keep a checkpoint now and then.

        Returns the last evaluation.
        """
        settings, batches = self.settings, 0
        found = None
        while self.steps < steps:
            rows = self.collector.next()
            with torch.no_grad():
                self.buffer.extend(self.returns(rows))
            self.steps += rows.numel()
            change = self.buffer[:]["next", "observation"] - self.buffer[:]["observation"]
            self.model.scale.copy_(change.std(0))
            for _ in range(settings.updates_per_batch):
                losses = self.update(self.buffer.sample())
            self.logger.log_metrics(losses, self.steps)
            batches += 1
            found = None
            if batches % settings.batches_per_evaluation == 0:
                found = self.evaluator.evaluate(self.steps)
                self.save()
        self.collector.shutdown()
        return found or self.evaluator.evaluate(self.steps)

    def update(self, rows: TensorDictBase) -> dict[str, Tensor]:
        """Take one step of the model."""
        action = rows["action"].long().argmax(-1)
        after, fall = self.model.step(rows["observation"], action)
        error = (after - rows["next", "observation"]) / self.model.scale
        logits, value = self.model.predict(rows["observation"])
        surprise = value - rows["value_target"].squeeze(-1)
        losses = {
            "loss_state": error.square().mean(),
            "loss_fall": binary_cross_entropy_with_logits(
                fall, rows["next", "terminated"].squeeze(-1).float()
            ),
            "loss_value": (surprise / self.model.horizon).square().mean(),
            "loss_prior": cross_entropy(logits, rows["searched_policy"]),
        }
        self.optimizer.zero_grad()
        sum(losses.values(), torch.zeros(())).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return {name: loss.detach() for name, loss in losses.items()}

    def save(self) -> None:
        """Save what a run resumes from; its environments are reset."""
        state = {"steps": self.steps, "log": self.logger.state_dict()}
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        generator = self.search.generator.get_state()
        torch.save({**state, **parts, "generator": generator}, self.folder / "checkpoint.pt")
        self.buffer.dumps(self.folder / "buffer")

    def load(self) -> None:
        """Resume from the checkpoint."""
        state = torch.load(self.folder / "checkpoint.pt", weights_only=True)
        self.steps = state["steps"]
        self.logger.load_state_dict(state["log"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.search.generator.set_state(state["generator"])
        self.buffer.loads(self.folder / "buffer")


def main() -> None:
    """Read the options, train, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=12_000, help="of each run")
    parser.add_argument("--out", type=Path, default=Path("runs/mcts_learned_model"))
    parser.add_argument("--resume", action="store_true", help="resume from the checkpoints")
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
        run.logger.close()
    runs = [read_run(folder) for folder in folders]
    plot_runs({"search": runs}, names=["eval/return"]).savefig(options.out / "curves.png")
    print(f"curves: {options.out / 'curves.png'}")


if __name__ == "__main__":
    main()
