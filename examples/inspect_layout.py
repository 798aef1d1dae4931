# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "rl-collect", "rl-envs", "rl-layout", "rl-policies", "rl-recurrent",
#     "gymnasium", "matplotlib", "tensordict", "torch",
# ]
# ///
"""Collect from several environments, check and draw the batch, then break it in four ways.

    python examples/inspect_layout.py

A recurrent policy plays three CartPoles. What it collected is right; then four faults that training
scripts are known for are made on purpose, and the checker says what it finds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential

from rl_collect import Collector
from rl_envs import GymEnv, SerialEnv
from rl_layout import EndKind, Segments, check_layout, draw_layout
from rl_policies import MLP, OneHotCategorical, ProbabilisticActor
from rl_recurrent import GRUModule

STATE = "recurrent_state"
LIMIT = 20  # steps after which an episode is truncated


def collect(num_envs: int, num_steps: int, seed: int) -> TensorDictBase:
    """Play CartPoles side by side with a recurrent policy; a batch `[B, T]`."""
    torch.manual_seed(seed)
    env = SerialEnv(num_envs, lambda: GymEnv("CartPole-v1"))
    gru = GRUModule(4, 16, in_key="observation", out_key="features")
    policy = ProbabilisticActor(
        TensorDictSequential(gru, TensorDictModule(MLP(16, 2), ["features"], ["logits"])),
        in_keys=["logits"],
        spec=GymEnv("CartPole-v1").action_spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    options = {"frames_per_batch": num_envs * num_steps, "max_frames_per_traj": LIMIT}
    collector = Collector(env, policy, producer=0, **options)
    collector.set_seed(seed)
    return collector.next()


def flatten_time_first(batch: TensorDictBase) -> TensorDictBase:
    """Lay `[B, T]` flat with time in front, so that environments lie through each other."""
    return batch.transpose(0, 1).reshape(-1)


def drop_starts(batch: TensorDictBase) -> TensorDictBase:
    """Write False into `is_init`, as a transform does that rebuilds a batch without it."""
    return batch.clone().set("is_init", torch.zeros_like(batch["is_init"]))


def keep_reset_observations(batch: TensorDictBase) -> TensorDictBase:
    """Put the first observation of the next episode in the place of the final one."""
    broken = batch.clone()
    over = batch["next", "done"][:, :-1, 0]
    broken["next", "observation"][:, :-1][over] = batch["observation"][:, 1:][over]
    return broken


def carry_states_on(batch: TensorDictBase) -> TensorDictBase:
    """Let a new episode begin with the state that the last one ended with."""
    broken = batch.clone()
    over = batch["next", "done"][:, :-1, 0]
    broken[STATE][:, 1:][over] = batch["next", STATE][:, :-1][over]
    return broken


@dataclass(frozen=True)
class Fault:
    """A fault, made on purpose, and what it does to training."""

    name: str
    harm: str
    make: Callable[[TensorDictBase], TensorDictBase]


FAULTS = [
    Fault(
        "flattened time first",
        "returns and states run from one environment into another at every step",
        flatten_time_first,
    ),
    Fault(
        "starts lost",
        "a recurrent network does not know where an episode begins",
        drop_starts,
    ),
    Fault(
        "reset observations in place of final ones",
        "a truncated episode is bootstrapped from the first state of another one",
        keep_reset_observations,
    ),
    Fault(
        "states carried across resets",
        "a fresh episode acts like the last one",
        carry_states_on,
    ),
]


def main() -> None:
    """Collect, check, draw, break."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60, help="of each environment")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/inspect_layout"))
    options = parser.parse_args()
    if min(options.envs, options.steps, options.seed + 1) < 1:
        parser.error("--envs and --steps must be at least 1, --seed at least 0")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"inspect_layout: cannot write to {options.out}: {error}") from None

    batch = collect(options.envs, options.steps, options.seed)
    report = check_layout(batch, default_states={STATE: 0.0}).raise_if_broken()
    segments = Segments.of(batch)
    ends = [EndKind(kind).name for kind in segments.kinds.tolist()]
    print(f"{report}\n\n{draw_layout(batch)}\n")
    print(f"{segments.num_real} steps in {len(segments)} pieces: ", end="")
    print(", ".join(f"{ends.count(kind.name)} {kind.name.lower()}" for kind in EndKind))
    whole = segments.kinds != EndKind.CUT
    returns = segments.sum(batch["next", "reward"]).squeeze(-1)
    print(f"returns of the trajectories that ended here: {returns[whole].tolist()}\n")
    draw_layout(batch).save(options.out / "right.png")

    for number, fault in enumerate(FAULTS, 1):
        broken = fault.make(batch)
        found = check_layout(broken, default_states={STATE: 0.0})
        if found.ok:
            raise RuntimeError(f"{fault.name} went unnoticed.")
        print(f"--- {number}. {fault.name}: {fault.harm}\n{found}\n")
        draw_layout(broken).save(options.out / f"fault_{number}.png")
    print(f"pictures: {options.out}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("inspect_layout: interrupted, nothing is kept") from None
