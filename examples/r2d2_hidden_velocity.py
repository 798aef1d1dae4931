# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "rl-collect", "rl-envs", "rl-layout", "rl-policies", "rl-record", "rl-recurrent", "rl-replay",
#     "rl-specs", "rl-transforms", "gymnasium", "matplotlib", "tensordict", "torch",
# ]
# ///
"""R2D2 on a CartPole that hides its velocities: recurrent double DQN from prioritized slices.

    python examples/r2d2_hidden_velocity.py
    python examples/r2d2_hidden_velocity.py --samplers priorities uniform --seeds 0 1 2 3 4
    python examples/r2d2_hidden_velocity.py --steps 100000 --resume      # from its checkpoint

Slices begin in mid-trajectory, from the state that an older network left there: their first steps
only warm the state up. The errors of the other steps decide how often the slice is drawn again, and
the states that the network of now passes through are written back. The reward is -1 where the pole
falls and 0 elsewhere. `uniform` draws slices without priorities, and changes nothing else.
"""

from __future__ import annotations

import argparse
import copy
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn

from rl_collect import Collector
from rl_envs import GymEnv, SerialEnv, TransformedEnv, wire_policy
from rl_layout import keys, set_recurrent_mode
from rl_policies import EGreedyModule, QValueActor
from rl_record import Curve, JSONLLogger, read_run
from rl_recurrent import GRUModule
from rl_replay import (
    LazyTensorStorage,
    PrioritizedSliceSampler,
    Sampler,
    SliceSampler,
    TensorDictReplayBuffer,
)
from rl_specs import TensorSpec, Unbounded
from rl_transforms import Transform, multi_step

ENV, LONGEST, SOLVED = "CartPole-v1", 500, 475.0
UNITS = torch.tensor([0.6, 0.05])  # of cart (m) and pole (rad): a quarter of where episodes end
EPISODES = 20  # of an evaluation
SAMPLERS = ("priorities", "uniform")
PARTS = ("network", "target", "explore", "optimizer")  # of a checkpoint
LENGTH = "eval/length"  # steps until the fall


@dataclass(frozen=True)
class Settings:
    """Settings of a run."""

    sampler: str = "priorities"
    seed: int = 0
    num_envs: int = 4
    steps_per_batch: int = 128  # of all environments together
    updates_per_batch: int = 8
    first_steps: int = 1024  # without updates
    capacity: int = 50_000  # steps in the buffer
    slices: int = 32
    slice_steps: int = 20
    burn_in: int = 5  # steps of a slice
    hidden_size: int = 64
    learning_rate: float = 1e-3
    gamma: float = 0.98
    n_steps: int = 5
    alpha: float = 0.6
    beta: float = 0.4
    eta: float = 0.9  # the share of the largest error in the priority of a slice, else the mean
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


def make_env(num_envs: int) -> TransformedEnv:
    """Make environments that are played side by side."""
    envs = SerialEnv(num_envs, lambda: GymEnv(ENV, sutton_barto_reward=True))  # -1 for a fall
    return TransformedEnv(envs, Positions(["observation"]))


def make_sampler(settings: Settings) -> Sampler:
    """Make what chooses the slices of a batch, by their priorities or uniformly among steps."""
    if settings.sampler == "uniform":
        return SliceSampler(slice_len=settings.slice_steps, by="step")
    return PrioritizedSliceSampler(
        settings.capacity,
        settings.alpha,
        settings.beta,
        slice_len=settings.slice_steps,
        strict_length=False,
        eta=settings.eta,
    )


def rescaled(value: Tensor) -> Tensor:
    """Brings returns to the size of their square root: sign(x) (sqrt(|x| + 1) - 1) + x / 1000."""
    return value.sign() * ((value.abs() + 1).sqrt() - 1) + value / 1000


def unscaled(value: Tensor) -> Tensor:
    """Takes `rescaled` back."""
    root = (1 + 0.004 * (value.abs() + 1.001)).sqrt()
    return value.sign() * (((root - 1) / 0.002).square() - 1)


class Run:
    """A training run."""

    def __init__(self, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        self.settings, size = settings, settings.hidden_size
        spec = GymEnv(ENV).action_spec
        self.gru = GRUModule(2, size, in_key="observation", out_key="h", burn_in=settings.burn_in)
        values = TensorDictModule(nn.Linear(size, 2), ["h"], ["action_value"])
        self.network = QValueActor(TensorDictSequential(self.gru, values), spec=spec)
        self.target = copy.deepcopy(self.network)  # follows slowly
        self.explore = EGreedyModule(spec, 1.0, 0.02, annealing_num_steps=15_000)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=settings.learning_rate)
        self.buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(settings.capacity),
            sampler=make_sampler(settings),
            batch_size=settings.slices * settings.slice_steps,
        )
        self.collector = Collector(
            make_env(settings.num_envs),
            TensorDictSequential(self.network, self.explore),
            frames_per_batch=settings.steps_per_batch,
            replay_buffer=self.buffer,
        )
        self.collector.set_seed(settings.seed)
        self.test_env = wire_policy(make_env(EPISODES), self.target)
        self.steps = 0  # that were played

    def train(self, steps: int, folder: Path, *, resume: bool = False) -> None:
        """Play and update in turns; evaluate, log and keep a checkpoint now and then."""
        settings = self.settings
        with JSONLLogger(folder.name, folder.parent, resume=resume) as logger:
            if resume:
                self.load(folder, logger)
            else:
                logger.log_hparams(asdict(settings))
            while self.steps + settings.steps_per_batch <= steps:
                self.collector.next()
                self.steps += settings.steps_per_batch
                self.explore.step(settings.steps_per_batch)
                if self.steps > settings.first_steps:
                    for _ in range(settings.updates_per_batch):
                        loss = self.update()
                    logger.log_scalar("loss", loss, self.steps)
                if self.steps % settings.steps_per_evaluation == 0:
                    logger.log_scalar(LENGTH, self.evaluate(settings.seed + 1_000_000), self.steps)
                    self.save(folder, logger)
            self.save(folder, logger)
        self.collector.shutdown()

    def save(self, folder: Path, logger: JSONLLogger) -> None:
        """Save what a run resumes from; its environments are reset."""
        state = {"steps": self.steps, "log": logger.state_dict()}
        state |= {name: getattr(self, name).state_dict() for name in PARTS}
        torch.save(state, folder / "checkpoint.pt")
        self.buffer.dumps(folder / "buffer")

    def load(self, folder: Path, logger: JSONLLogger) -> None:
        """Resume from the checkpoint."""
        state = torch.load(folder / "checkpoint.pt", weights_only=True)
        self.steps = state["steps"]
        logger.load_state_dict(state["log"])
        for name in PARTS:
            getattr(self, name).load_state_dict(state[name])
        self.buffer.loads(folder / "buffer")

    def update(self) -> Tensor:
        """Take one step of the optimiser; write priorities and states back."""
        batch = self.buffer.sample()
        errors, counted = self.errors(batch)
        weight = batch.get(keys.PRIORITY_WEIGHT, torch.ones(len(batch)))
        loss = (weight * errors.square())[counted].sum() / counted.sum()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 10.0)
        self.optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.network.parameters(), strict=True):
                slow.lerp_(fast, self.settings.tau)
        batch["td_error"] = torch.where(counted, errors.detach().abs(), 0.0)
        self.buffer.update_tensordict_priority(batch)
        fresh = self.gru.refreshed_states(batch)
        self.buffer.update_rows(fresh[keys.ROW], fresh.select(*self.gru.state_keys))
        return loss.detach()

    def errors(self, batch: TensorDictBase) -> tuple[Tensor, Tensor]:
        """The distance of each step from its n-step target, and which steps have one, `[N]`."""
        gamma, slices = self.settings.gamma, batch["collector", "slice_ids"]
        far = multi_step(batch, gamma, self.settings.n_steps)
        steps = far["next", "steps_to_next_obs"].squeeze(-1)
        reached = torch.arange(len(batch)) + steps
        later = reached.clamp(max=len(batch) - 1)
        inside = (reached == later) & (slices[later] == slices)  # or the next state is not there
        ended = far["next", "terminated"].squeeze(-1)
        with set_recurrent_mode(True):
            values = self.network(batch.copy())["action_value"]
            with torch.no_grad():
                slow = self.target(batch.copy())["action_value"]
        value = (values * batch["action"]).sum(-1)
        best = values.detach().argmax(-1, keepdim=True)  # double DQN: chosen by the one network
        following = unscaled(slow.gather(-1, best).squeeze(-1))[later]  # valued by the other
        rewards = far["next", "reward"].squeeze(-1)
        target = rescaled(rewards + gamma**steps * following * ~ended)
        return value - target, (inside | ended) & ~self.gru.burn_in_mask(batch)

    def evaluate(self, seed: int) -> float:
        """Play episodes with the actions that are worth most; how many steps the pole stays up."""
        self.test_env.set_seed(seed)
        batch = self.test_env.rollout(
            LONGEST, self.target, break_when_any_done=False, break_when_all_done=True
        )
        done = batch["next", "done"].int()
        is_first_episode = done.cumsum(1) - done == 0
        return float(is_first_episode.sum(1).float().mean())


def draw(curves: dict[str, list[Curve]], path: Path) -> None:
    """Draw how long the pole stays up over the steps played, of each run and on average."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for number, (name, runs) in enumerate(curves.items()):
        steps, lengths = runs[0].steps, [curve.values for curve in runs]
        for one in lengths:
            axes.plot(steps, one, color=f"C{number}", alpha=0.25, linewidth=0.8)
        mean = sum(lengths) / len(lengths)
        axes.plot(steps, mean, color=f"C{number}", linewidth=2, label=name)
    axes.axhline(SOLVED, color="grey", linestyle=":")
    axes.set(xlabel="steps", ylabel="steps until the fall", title=f"{ENV} without velocities")
    axes.legend()
    figure.savefig(path)


def main() -> None:
    """Read the options, train, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=["priorities"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=51_200, help="of each run")
    parser.add_argument("--out", type=Path, default=Path("runs/r2d2_hidden_velocity"))
    parser.add_argument("--resume", action="store_true", help="resume from the checkpoints")
    options = parser.parse_args()
    if options.steps < Settings.steps_per_evaluation:
        parser.error(f"--steps must be at least {Settings.steps_per_evaluation}, one evaluation")
    torch.set_num_threads(1)  # tensors as small as these are slower on several
    curves: dict[str, list[Curve]] = {name: [] for name in options.samplers}
    for seed in options.seeds:
        for name, runs in curves.items():
            run, start = Run(Settings(name, seed)), time.process_time()
            folder = options.out / name / f"seed-{seed}"
            run.train(options.steps, folder, resume=options.resume)
            runs.append(read_run(folder)[LENGTH])
            scores = runs[-1].values
            print(
                f"{name}, seed {seed}: up for {scores.mean():.1f} steps over training, "
                f"{scores[-5:].mean():.1f} in the last five evaluations, "
                f"{time.process_time() - start:.0f} s of CPU",
                flush=True,
            )
    draw(curves, options.out / "curves.png")
    print(f"curves: {options.out / 'curves.png'}")


if __name__ == "__main__":
    main()
