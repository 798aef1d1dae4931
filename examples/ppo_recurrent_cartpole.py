# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "rl-collect", "rl-envs", "rl-policies", "rl-record", "rl-recurrent", "rl-specs",
#     "rl-transforms", "rl-value", "gymnasium", "matplotlib", "tensordict", "torch", "tqdm",
# ]
# ///
"""Recurrent PPO on a CartPole that hides its velocities: train, look, resume.

Who sees single steps cannot tell how fast the cart and the pole move, so actor and critic have a
GRU each. Every row of a batch holds the states that its step started from: a batch can be cut into
slices anywhere, and these train in any order.
"""

from __future__ import annotations

import argparse
import copy
import os
import signal
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import gymnasium
import torch
from matplotlib.figure import Figure
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from tqdm import tqdm

from rl_collect import Collector, RayCollector
from rl_envs import GymEnv, SerialEnv, TransformedEnv, wire_policy
from rl_policies import OneHotCategorical, ProbabilisticActor
from rl_record import JSONLLogger, read_run
from rl_recurrent import GRUModule
from rl_specs import TensorSpec, Unbounded
from rl_transforms import Transform
from rl_value import GAE, ClipPPOLoss

LIMITS = torch.tensor([2.4, 0.21])  # where cart (m) and pole (rad) end an episode
EPISODES = 20  # of an evaluation
CURVES = {"return": "training, sampled actions", "eval/return": "evaluation, likeliest actions"}


@dataclass(frozen=True)
class Settings:
    """Settings of a run; a checkpoint is resumed under the settings that it began with."""

    env: str = "CartPole-v1"
    seed: int = 0
    device: str = "cpu"
    ray: int = 0  # actors of Ray that play; 0 for this process
    num_envs: int = 8
    num_steps: int = 128  # of each environment, in a batch
    slice_steps: int = 16
    slices_per_update: int = 32
    epochs: int = 4
    hidden_size: int = 64
    learning_rate: float = 2e-3
    gamma: float = 0.98
    lmbda: float = 0.9
    batches_per_evaluation: int = 8


class Positions(Transform):
    """Shows where cart and pole are, in parts of their limits, and hides how fast they move."""

    def apply_leaf(self, value: Tensor) -> Tensor:
        """Keep two of the four numbers `[*B, 4]`."""
        return value[..., ::2] / LIMITS

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """Describe them: `[*B, 2]`."""
        return Unbounded((*spec.shape[:-1], 2))


def make_env(name: str, num_envs: int) -> TransformedEnv:
    """Make environments that are played side by side."""
    return TransformedEnv(SerialEnv(num_envs, lambda: GymEnv(name)), Positions(["observation"]))


def recurrent(name: str, hidden_size: int, num_outputs: int, out_key: str) -> TensorDictSequential:
    """Read positions step by step: a layer, a GRU, a layer."""
    embed = nn.Sequential(nn.Linear(2, hidden_size), nn.Tanh())
    return TensorDictSequential(
        TensorDictModule(embed, ["observation"], [f"{name}_embedding"]),
        GRUModule(
            hidden_size,
            hidden_size,
            in_keys=[f"{name}_embedding", f"{name}_state", "is_init"],
            out_keys=[f"{name}_features", ("next", f"{name}_state")],
        ),
        TensorDictModule(nn.Linear(hidden_size, num_outputs), [f"{name}_features"], [out_key]),
    )


class Run:
    """A training run: whatever a checkpoint holds, and what resumes it."""

    def __init__(self, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        self.settings = settings
        actor = ProbabilisticActor(
            recurrent("actor", settings.hidden_size, 2, "logits"),
            in_keys=["logits"],
            spec=GymEnv(settings.env).action_spec,
            distribution_class=OneHotCategorical,
            return_log_prob=True,
        )
        critic = recurrent("critic", settings.hidden_size, 1, "state_value")
        self.agent = TensorDictSequential(actor, critic)
        self.acting = copy.deepcopy(self.agent)  # on the CPU, where the environments are
        self.agent.to(settings.device)
        self.collector = self.make_collector()
        self.collector.set_seed(settings.seed)
        self.advantage = GAE(gamma=settings.gamma, lmbda=settings.lmbda, value_network=critic)
        self.loss = ClipPPOLoss(
            actor, critic, normalize_advantage=True, entropy_coeff=0.0, loss_critic_type="l2"
        )
        self.optimizer = torch.optim.Adam(self.loss.parameters(), lr=settings.learning_rate)
        self.test_env = wire_policy(make_env(settings.env, EPISODES), self.acting[0])
        self.longest = gymnasium.spec(settings.env).max_episode_steps
        self.threshold = gymnasium.spec(settings.env).reward_threshold
        self.best: dict[str, Any] = {"score": float("-inf"), "weights": None}

    def make_collector(self) -> Collector | RayCollector:
        """Make what plays all environments, here or in actors that have a share of them each."""
        settings = self.settings
        frames = settings.num_envs * settings.num_steps
        if not settings.ray:
            env = make_env(settings.env, settings.num_envs)
            return Collector(env, self.acting, frames_per_batch=frames, producer=settings.seed)
        makers = [partial(make_env, settings.env, settings.num_envs // settings.ray)] * settings.ray
        together = {"sync": True, "cat_results": 0}
        return RayCollector(makers, self.acting, frames_per_batch=frames, **together)

    def train_on_batch(self) -> dict[str, Any]:
        """Collect steps, estimate their advantages, update; now and then, evaluate. What to log."""
        settings, batch = self.settings, self.collector.next().to(self.settings.device)
        batch["next", "reward"] *= 1 - settings.gamma  # so returns lie between 0 and 1
        self.advantage(batch)
        slices = batch.reshape(-1, settings.slice_steps)
        for _ in range(settings.epochs):
            for rows in torch.randperm(len(slices)).split(settings.slices_per_update):
                losses = self.update(slices[rows.to(settings.device)])
        self.collector.update_policy_weights_(self.agent)
        self.acting.load_state_dict(self.agent.state_dict())  # actors have copies of it
        stats = self.collector.stats()
        players = stats.get("workers", [stats])
        mean_return = sum(player["mean_return"] for player in players) / len(players)
        logged = {"return": mean_return, **losses}
        if self.collector.policy_version % settings.batches_per_evaluation == 0:
            logged["eval/return"] = self.keep_score()
        return logged

    def update(self, slices: TensorDictBase) -> dict[str, Tensor]:
        """Take one step of the optimiser."""
        found = self.loss(slices)
        self.optimizer.zero_grad()
        (found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]).backward()
        nn.utils.clip_grad_norm_(self.loss.parameters(), max_norm=0.5)
        self.optimizer.step()
        return {name: found[name].detach() for name in ("loss_objective", "loss_critic", "entropy")}

    def keep_score(self) -> float:
        """Evaluate, always from the same starts, and keep the best weights."""
        score = self.evaluate(seed=self.settings.seed + 1_000_000)
        if score > self.best["score"]:
            self.best = {"score": score, "weights": copy.deepcopy(self.acting.state_dict())}
        return score

    def evaluate(self, seed: int) -> float:
        """Play episodes with the likeliest actions; their mean return."""
        self.test_env.set_seed(seed)
        batch = self.test_env.rollout(
            self.longest, self.acting[0], break_when_any_done=False, break_when_all_done=True
        )
        done = batch["next", "done"].int()
        is_first_episode = done.cumsum(1) - done == 0
        return float((batch["next", "reward"] * is_first_episode).sum(1).mean())

    def final_score(self) -> float:
        """Evaluate the best weights, from starts that had no part in choosing them."""
        self.acting.load_state_dict(self.best["weights"] or self.agent.state_dict())
        return self.evaluate(seed=self.settings.seed + 2_000_000)

    def save(self, path: Path, log: dict[str, Any]) -> None:
        """Write everything that what follows depends on, whole or not at all."""
        state = {
            "settings": asdict(self.settings),
            "agent": self.agent.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "collector": self.collector.state_dict(),  # environments and generators too
            "best": self.best,
            "log": log,
        }
        torch.save(state, path.with_suffix(".part"))
        os.replace(path.with_suffix(".part"), path)

    def load(self, path: Path) -> dict[str, Any]:
        """Continue from a checkpoint, and return the state of its log; reading it runs no code."""
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
        self.agent.load_state_dict(state["agent"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.collector.load_state_dict(state["collector"])
        self.best = state["best"]
        return state["log"]


class Interrupt:
    """Remembers Ctrl-C, so that a batch under way is finished; a second one stops at once."""

    def __init__(self) -> None:
        self.came = False
        signal.signal(signal.SIGINT, self._note)

    def _note(self, *_: object) -> None:
        self.came = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def train(run: Run, steps: int, out: Path, interrupt: Interrupt, *, resume: bool) -> None:
    """Train until the policy is nearly perfect, the steps are played, or somebody interrupts."""
    enough, checkpoint = 0.99 * run.longest, out / "checkpoint.pt"
    log = run.load(checkpoint) if resume else None
    with (
        JSONLLogger(out.name, out.parent, resume=resume) as logger,
        tqdm(total=steps, initial=run.collector.frames, unit="step", unit_scale=True) as bar,
    ):
        logger.log_hparams(asdict(run.settings)) if log is None else logger.load_state_dict(log)
        run.save(checkpoint, logger.state_dict())
        while run.collector.frames < steps and run.best["score"] < enough and not interrupt.came:
            logged = run.train_on_batch()
            logger.log_metrics(logged, run.collector.frames)
            bar.set_postfix({"return": logged["return"]}, refresh=False)
            bar.update(run.collector.frames - bar.n)
            run.save(checkpoint, logger.state_dict())
    if interrupt.came:
        refuse(f"interrupted at step {run.collector.frames:,}, --resume starts at {checkpoint}")


def draw(run: Run, out: Path) -> Path:
    """Draw the returns over the steps."""
    figure, logged = Figure(figsize=(7, 4), layout="constrained"), read_run(out)
    axes = figure.subplots()
    for name in filter(logged.__contains__, CURVES):
        axes.plot(logged[name].steps, logged[name].values, label=CURVES[name])
    axes.axhline(run.threshold, color="grey", linestyle=":", label="solved")
    axes.set(xlabel="steps", ylabel="return", title=f"{run.settings.env} without velocities")
    axes.legend()
    figure.savefig(out / "curve.png")
    return out / "curve.png"


def refuse(message: str, error: BaseException | None = None) -> NoReturn:
    """End with one line and a status that is not 0."""
    cause = "" if error is None else f": {(str(error).splitlines() or [type(error).__name__])[0]}"
    raise SystemExit(f"ppo_recurrent_cartpole: {message}{cause}")


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
    if settings.ray and (settings.ray < 0 or settings.num_envs % settings.ray):
        refuse(f"--ray {settings.ray} does not divide {settings.num_envs} environments")
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
    parser.add_argument("--ray", type=int, default=0, metavar="N", help="play in N actors of Ray")
    parser.add_argument("--steps", type=int, default=300_000, help="most steps to train")
    parser.add_argument("--out", type=Path, default=Path("runs/ppo_recurrent_cartpole"))
    parser.add_argument("--resume", action="store_true", help="resume the checkpoint of --out")
    options, interrupt = parser.parse_args(), Interrupt()
    torch.set_num_threads(1)  # tensors as small as these are slower on several
    settings = Settings(options.env, options.seed, options.device, options.ray)
    check(settings, options.out, resume=options.resume)
    run, start = Run(settings), time.perf_counter()
    train(run, options.steps, options.out, interrupt, resume=options.resume)
    seconds, score = time.perf_counter() - start, run.final_score()
    verdict = "solved" if score >= run.threshold else "not solved"
    print(f"{verdict}: mean return {score:.1f} of {EPISODES} new episodes, {run.threshold} wanted")
    print(f"{run.collector.frames:,} steps, {seconds:.0f} s")
    print(f"curve: {draw(run, options.out)}\ncheckpoint: {options.out / 'checkpoint.pt'}")


if __name__ == "__main__":
    main()
