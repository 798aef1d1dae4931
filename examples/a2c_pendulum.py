# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "rl-collect", "rl-envs", "rl-layout", "rl-policies", "rl-record", "rl-transforms", "rl-value",
#     "gymnasium", "matplotlib", "tensordict", "torch",
# ]
# ///
"""A2C on a pendulum: continuous actions, and episodes that only a time limit ends.

    python examples/a2c_pendulum.py
    python examples/a2c_pendulum.py --resume      # from its checkpoint

No episode of the pendulum ever terminates: in training each is truncated after 20 actions, too
few to swing up, so every return is bootstrapped at its end from the real final observation.
`--truncations-terminate` makes the usual mistake on purpose, and learns nothing.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, TensorDictModule, set_interaction_type
from torch import Tensor, nn

from rl_collect import Collector
from rl_envs import GymEnv, SerialEnv, TransformedEnv
from rl_layout import check_layout
from rl_policies import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from rl_record import JSONLLogger
from rl_transforms import StepCounter
from rl_value import GAE, A2CLoss

ENV = "Pendulum-v1"
LIMIT = 200  # steps of an episode in evaluation
EPISODES = 50  # of an evaluation
PARTS = ("loss", "optimizer", "collector")  # of a checkpoint


@dataclass(frozen=True)
class Settings:
    """What a run is."""

    seed: int = 0
    num_envs: int = 64
    num_steps: int = 16  # of each environment, in a batch
    frame_skip: int = 2  # each action is taken so many times
    max_actions: int = 20  # of an episode in training
    gamma: float = 0.9
    lmbda: float = 0.95
    actor_rate: float = 3e-3
    critic_rate: float = 1e-2
    reward_scale: float = 0.1
    truncations_terminate: bool = False


class Scaled(nn.Module):
    """A perceptron of observations `[*B, 3]` whose last entry, the speed, is at most 8."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = MLP(3, 1, num_cells=[64, 64])
        self.register_buffer("scale", torch.tensor([1.0, 1.0, 1 / 8]))

    def forward(self, observation: Tensor) -> Tensor:
        """Compute one number `[*B, 1]`."""
        return self.mlp(observation * self.scale)


class Torque(nn.Module):
    """The centre of a distribution of torques, and a spread that is the same everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.loc = Scaled()
        self.log_scale = nn.Parameter(torch.zeros(1))
        with torch.no_grad():
            self.loc.mlp[-1].weight.mul_(0.1)  # begins near no torque

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Compute loc and scale, `[*B, 1]` each."""
        loc = self.loc(observation)
        return loc, self.log_scale.exp().expand_as(loc)


def make_env(num_envs: int, frame_skip: int, max_actions: int = LIMIT) -> TransformedEnv:
    """Make pendulums that are played side by side, and are truncated after so many actions."""
    env = SerialEnv(num_envs, lambda: GymEnv(ENV, frame_skip=frame_skip))
    return TransformedEnv(env, StepCounter(max_actions))


class Run:
    """A training run."""

    def __init__(self, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        self.settings = settings
        self.actor = ProbabilisticActor(
            TensorDictModule(Torque(), ["observation"], ["loc", "scale"]),
            in_keys=["loc", "scale"],
            spec=GymEnv(ENV).action_spec,
            distribution_class=TanhNormal,
            # a centre near a bound makes torques whose density float32 no longer resolves
            distribution_kwargs={"low": -2.0, "high": 2.0, "tanh_loc": True, "upscale": 2.0},
        )
        critic = ValueOperator(Scaled())
        self.collector = Collector(
            make_env(settings.num_envs, settings.frame_skip, settings.max_actions),
            self.actor,
            frames_per_batch=settings.num_envs * settings.num_steps,
            producer=settings.seed,
        )
        self.collector.set_seed(settings.seed)
        self.advantage = GAE(
            gamma=settings.gamma, lmbda=settings.lmbda, value_network=critic, average_gae=True
        )
        self.loss = A2CLoss(self.actor, critic, entropy_bonus=False, loss_critic_type="l2")
        rates = [(self.actor, settings.actor_rate), (critic, settings.critic_rate)]
        groups = [{"params": list(net.parameters()), "lr": rate} for net, rate in rates]
        self.optimizer = torch.optim.Adam(groups, eps=1e-5)
        self.test_env = make_env(EPISODES, settings.frame_skip)
        self.curve: list[tuple[int, float]] = []  # steps of the environments, return

    @property
    def steps(self) -> int:
        """Steps that the environments took."""
        return self.collector.frames * self.settings.frame_skip

    def collect(self) -> TensorDictBase:
        """Play a batch `[B, T]`; its rewards are scaled."""
        batch = self.collector.next()
        batch["next", "reward"] *= self.settings.reward_scale
        if self.settings.truncations_terminate:
            batch["next", "terminated"] |= batch["next", "truncated"]
        return batch

    def update(self, batch: TensorDictBase) -> None:
        """Take one step of the optimiser."""
        self.advantage(batch)
        found = self.loss(batch)
        self.optimizer.zero_grad()
        (found["loss_objective"] + found["loss_critic"]).backward()
        for group in self.optimizer.param_groups:
            nn.utils.clip_grad_norm_(group["params"], max_norm=0.5)
        self.optimizer.step()
        self.collector.update_policy_weights_()

    def evaluate(self, seed: int) -> float:
        """Play whole episodes without noise; their mean return."""
        self.test_env.set_seed(seed)
        with torch.no_grad(), set_interaction_type(InteractionType.DETERMINISTIC):
            batch = self.test_env.rollout(
                LIMIT // self.settings.frame_skip, self.actor, break_when_any_done=False
            )
        return float(batch["next", "reward"].sum(1).mean())

    def train(self, steps: int, logger: JSONLLogger, checkpoint: Path) -> None:
        """Train; evaluate twenty times on the way, and keep a checkpoint each time."""
        if not self.curve:
            check_layout(self.collect()).raise_if_broken()
        while self.steps < steps:
            self.update(self.collect())
            if self.steps * 20 // steps > len(self.curve):
                self.curve.append((self.steps, self.evaluate(seed=1_000_000)))
                logger.log_scalar("eval/return", self.curve[-1][1], self.steps)
                self.save(logger, checkpoint)
                print(f"{self.steps:9,} steps: mean return {self.curve[-1][1]:7.1f}", flush=True)

    def save(self, logger: JSONLLogger, checkpoint: Path) -> None:
        """Save what a run resumes from; the collector has the states of its environments."""
        state = {"curve": self.curve, "log": logger.state_dict()}
        torch.save(state | {name: getattr(self, name).state_dict() for name in PARTS}, checkpoint)

    def load(self, logger: JSONLLogger, checkpoint: Path) -> None:
        """Resume from the checkpoint."""
        state = torch.load(checkpoint, weights_only=True)
        self.curve = state["curve"]
        logger.load_state_dict(state["log"])
        for name in PARTS:
            getattr(self, name).load_state_dict(state[name])


def draw(curve: list[tuple[int, float]], path: Path) -> None:
    """Draw returns over steps."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([steps for steps, _ in curve], [score for _, score in curve])
    axes.set(xlabel="steps of the environments", ylabel="mean return", title=f"A2C on {ENV}")
    figure.savefig(path)


def main() -> None:
    """Read the options, train, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=Settings.seed)
    parser.add_argument("--envs", type=int, default=Settings.num_envs)
    parser.add_argument("--steps", type=int, default=1_200_000, help="of all environments together")
    parser.add_argument("--out", type=Path, default=Path("runs/a2c_pendulum"))
    parser.add_argument("--truncations-terminate", action="store_true", help="the usual mistake")
    parser.add_argument("--resume", action="store_true", help="resume from the checkpoint in --out")
    options = parser.parse_args()
    if min(options.envs, options.steps, options.seed + 1) < 1:
        parser.error("--envs and --steps must be at least 1, --seed at least 0")
    out = options.out
    if not options.resume and (out / "metrics.jsonl").exists():
        parser.error(f"{out} holds a run: --resume continues it, another --out begins anew")
    torch.set_num_threads(1)
    try:
        logger = JSONLLogger(out.name, out.parent, resume=options.resume)
    except OSError as error:
        raise SystemExit(f"a2c_pendulum: cannot write to {out}: {error}") from None
    wrong = options.truncations_terminate
    settings = Settings(options.seed, options.envs, truncations_terminate=wrong)
    run, start, checkpoint = Run(settings), time.perf_counter(), out / "checkpoint.pt"
    with logger:
        if options.resume and checkpoint.exists():
            run.load(logger, checkpoint)
        logger.log_hparams(asdict(settings))
        before = "resumed" if run.curve else "untrained"
        print(f"{before}: mean return {run.evaluate(seed=2_000_000):.1f} of {EPISODES} episodes")
        run.train(options.steps, logger, checkpoint)
    score, seconds = run.evaluate(seed=2_000_000), time.perf_counter() - start
    draw(run.curve, out / "curve.png")
    print(f"trained: mean return {score:.1f} of {EPISODES} new episodes, {run.steps:,} steps")
    print(f"{seconds:.0f} s, curve: {out / 'curve.png'}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        told = "a2c_pendulum: interrupted, --resume starts at the last evaluation"
        raise SystemExit(told) from None
