"""Recurrent PPO next to torchrl's: the time for 10,000 steps, and where it goes.

    PYTHONPATH=tools python integration_tests/benchmarks/recurrent_ppo.py

CartPole, 8 environments, batches of [8, 128], GAE, 4 epochs of slices of 16 steps, 2 updates an
epoch. Actor and critic have a linear layer, a GRU of 64 and a head each; both sides begin with the
same weights, take turns batch by batch, and learn. One thread each: such tensors are slower on two.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import bench
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

import rl_collect
import rl_envs
import rl_layout
import rl_policies
import rl_recurrent
import rl_value

NAME, NUM_ENVS, NUM_STEPS, HIDDEN = "CartPole-v1", 8, 128, 64
EPOCHS, SLICE, SLICES_PER_UPDATE = 4, 16, 32
PARTS = ("collect", "advantage", "update")


def ours() -> SimpleNamespace:
    """The names that a side is made of, from these packages."""
    return names(rl_collect, rl_envs, rl_policies, rl_recurrent, rl_layout, rl_value, rl_value)


def theirs() -> SimpleNamespace:
    """The same from torchrl."""
    import torchrl.collectors
    import torchrl.envs
    import torchrl.modules
    import torchrl.objectives
    import torchrl.objectives.value

    modules = torchrl.modules
    losses, values = torchrl.objectives, torchrl.objectives.value
    return names(torchrl.collectors, torchrl.envs, modules, modules, modules, losses, values)


def names(
    collect: ModuleType,
    envs: ModuleType,
    policies: ModuleType,
    recurrent: ModuleType,
    layout: ModuleType,
    losses: ModuleType,
    values: ModuleType,
) -> SimpleNamespace:
    """Both sides have the same names, at different places."""
    return SimpleNamespace(
        Collector=collect.Collector,
        GymEnv=envs.GymEnv,
        SerialEnv=envs.SerialEnv,
        ProbabilisticActor=policies.ProbabilisticActor,
        OneHotCategorical=policies.OneHotCategorical,
        GRUModule=recurrent.GRUModule,
        set_recurrent_mode=layout.set_recurrent_mode,
        ClipPPOLoss=losses.ClipPPOLoss,
        GAE=values.GAE,
    )


def networks() -> dict[str, tuple[nn.Module, nn.Module, nn.Module]]:
    """Layer, GRU and head of actor and critic."""
    return {
        name: (
            nn.Linear(4, HIDDEN),
            nn.GRU(HIDDEN, HIDDEN, batch_first=True),
            nn.Linear(HIDDEN, outputs),
        )
        for name, outputs in (("actor", 2), ("critic", 1))
    }


class Side:
    """A learner, made of the names of one side.

    Args:
        lib: the names.
        nets: the networks; they are copied.
        backend: of the GRUs.
    """

    def __init__(self, lib: SimpleNamespace, nets: dict[str, Any], backend: str) -> None:
        self.lib = lib
        parts = {
            name: self.sequence(name, copy.deepcopy(found), backend) for name, found in nets.items()
        }
        self.critic = parts["critic"]
        self.actor = lib.ProbabilisticActor(
            parts["actor"],
            in_keys=["logits"],
            spec=lib.GymEnv(NAME).action_spec,
            distribution_class=lib.OneHotCategorical,
            return_log_prob=True,
        )
        self.collector = lib.Collector(
            lib.SerialEnv(NUM_ENVS, lambda: lib.GymEnv(NAME)),
            TensorDictSequential(self.actor, self.critic),
            frames_per_batch=NUM_ENVS * NUM_STEPS,
            total_frames=-1,
            auto_register_policy_transforms=True,
        )
        self.batches = iter(self.collector)
        options = {"gamma": 0.98, "lmbda": 0.9, "deactivate_vmap": True}
        self.gae = lib.GAE(value_network=self.critic, **options)
        self.loss = lib.ClipPPOLoss(
            self.actor, self.critic, normalize_advantage=True, loss_critic_type="l2"
        )
        self.optimizer = torch.optim.Adam(self.loss.parameters(), lr=1e-3)

    def sequence(self, name: str, nets: Any, backend: str) -> TensorDictSequential:
        """The tensordict modules of one network."""
        embed, hidden, head = nets
        out = "logits" if name == "actor" else "state_value"
        return TensorDictSequential(
            TensorDictModule(embed, ["observation"], [f"{name}_embedding"]),
            self.lib.GRUModule(
                gru=hidden,
                in_keys=[f"{name}_embedding", f"{name}_state", "is_init"],
                out_keys=[f"{name}_features", ("next", f"{name}_state")],
                recurrent_backend=backend,
            ),
            TensorDictModule(head, [f"{name}_features"], [out]),
        )

    def collect(self, _: Any) -> TensorDictBase:
        """Play a batch; values that the peer finds in it would be in its way."""
        return next(self.batches).exclude("state_value")

    def advantage(self, batch: TensorDictBase) -> TensorDictBase:
        """Estimate its advantages."""
        batch["next", "reward"] *= 0.02
        with torch.no_grad(), self.lib.set_recurrent_mode(True):
            return self.gae(batch)

    def update(self, batch: TensorDictBase) -> TensorDictBase:
        """Learn from it."""
        slices = batch.reshape(-1, SLICE)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(slices)).split(SLICES_PER_UPDATE):
                with self.lib.set_recurrent_mode(True):
                    found = self.loss(slices[rows])
                self.optimizer.zero_grad()
                (found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]).backward()
                nn.utils.clip_grad_norm_(self.loss.parameters(), 0.5)
                self.optimizer.step()
        return batch

    def turn(self, clock: Callable[[], float]) -> list[float]:
        """One batch, from playing to the last update: seconds of each part."""
        spent, carried = [], None
        for part in PARTS:
            start = clock()
            carried = getattr(self, part)(carried)
            spent.append(clock() - start)
        return spent


def main() -> None:
    """Read the command line, and print the time of each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cpu-time", action="store_true", help="for a machine that is shared")
    with bench.session(parser) as given:
        run(given.rounds, time.process_time if given.cpu_time else time.perf_counter)


def run(rounds: int, clock: Callable[[], float]) -> None:
    """Learn on both sides in turns, and report the medians of each part for 10,000 steps."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    nets = networks()
    sides = Side(ours(), nets, "auto"), Side(theirs(), nets, "pad")
    # the first two batches make and check what later ones use
    measures = [lambda side=side: side.turn(clock) for side in sides]
    medians = bench.medians(rounds, *measures, warm_up=2)
    for side in sides:
        side.collector.shutdown()
    print(f"10,000 steps of recurrent PPO on {NAME}")
    scale = 1e6 * 10_000 / (NUM_ENVS * NUM_STEPS)
    mine, other = ([scale * took for took in (*spent, sum(spent))] for spent in medians)
    for part, took, peer in zip((*PARTS, "all"), mine, other, strict=True):
        bench.report(part, took, peer)


if __name__ == "__main__":
    main()
