"""Recurrent PPO next to the same work written by hand: what tensordicts, markers and checks cost.

    PYTHONPATH=tools python integration_tests/benchmarks/recurrent_ppo_by_hand.py

The networks, batches, slices and updates of `recurrent_ppo.py`. By hand there are bare tensors and
no markers: a loop over Gymnasium, `torch.nn.GRU` over one dense block that runs through the ends of
episodes, which is less work than is right, and a fused Adam. The same update is timed with our
layer in place of torch's, so that what the layer gains and what all else costs are seen apart.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Callable
from typing import Any

import bench
import gymnasium
import numpy as np
import torch
from recurrent_ppo import (
    EPOCHS,
    HIDDEN,
    NAME,
    NUM_ENVS,
    NUM_STEPS,
    SLICE,
    SLICES_PER_UPDATE,
    Side,
    networks,
    ours,
)
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn.functional import linear, mse_loss

from rl_layout import Segments
from rl_recurrent.functional import gru
from rl_recurrent.network import Network

Nets = dict[str, tuple[nn.Module, nn.Module, nn.Module]]


class Player:
    """Plays a batch: Gymnasium's environments, cells of torch, one tensor for each entry."""

    def __init__(self, nets: Nets) -> None:
        self.nets = nets
        self.envs = [gymnasium.make(NAME) for _ in range(NUM_ENVS)]
        self.seen = np.stack([env.reset()[0] for env in self.envs])
        self.states = {name: torch.zeros(NUM_ENVS, HIDDEN) for name in nets}
        widths = {"observation": 4, "next": 4, "logits": 2, "log_prob": 1, "reward": 1, "ended": 1}
        widths |= {f"{name}_{when}": HIDDEN for name in nets for when in ("before", "after")}
        self.rows = {key: torch.zeros(NUM_STEPS, NUM_ENVS, n) for key, n in widths.items()}

    @torch.no_grad()
    def play(self) -> dict[str, Tensor]:
        """A batch of steps, overwritten by the next one."""
        for time_step in range(NUM_STEPS):
            row = {key: values[time_step] for key, values in self.rows.items()}
            self._step(self._act(row), row)
        return self.rows

    def _act(self, row: dict[str, Tensor]) -> list[int]:
        x = row["observation"].copy_(torch.from_numpy(self.seen))
        for name, (embed, cell, head) in self.nets.items():
            before = row[f"{name}_before"].copy_(self.states[name])
            weights: Any = cell.all_weights[0]
            after = torch.gru_cell(linear(x, *embed.parameters()), before, *weights)
            self.states[name] = row[f"{name}_after"].copy_(after).clone()
            out = linear(after, *head.parameters())
            if name == "actor":
                logits = row["logits"].copy_(out.log_softmax(-1))
        drawn = (logits.exp() / torch.empty_like(logits).exponential_()).argmax(-1, keepdim=True)
        row["log_prob"].copy_(logits.gather(-1, drawn))
        actions: list[int] = drawn[:, 0].tolist()
        return actions

    def _step(self, actions: list[int], row: dict[str, Tensor]) -> None:
        self.seen = self.seen.copy()
        for place, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            seen, reward, terminated, truncated, _ = env.step(action)
            row["next"][place] = torch.from_numpy(seen)
            row["reward"][place], row["ended"][place] = reward, terminated
            if terminated or truncated:
                seen, _ = env.reset()
                for state in self.states.values():
                    state[place] = 0
            self.seen[place] = seen


class Learner:
    """Updates of PPO on bare tensors.

    Args:
        nets: they are copied.
        is_dense: whether torch's GRU runs over one block; else ours runs over segments.
        is_fused: whether Adam is one operation.
    """

    def __init__(self, nets: Nets, *, is_dense: bool, is_fused: bool) -> None:
        self.nets, self.is_dense = copy.deepcopy(nets), is_dense
        self.params = [p for parts in self.nets.values() for m in parts for p in m.parameters()]
        self.optimizer = torch.optim.Adam(self.params, lr=1e-3, fused=is_fused)

    def update(self, batch: TensorDictBase) -> None:
        """Learn from a batch as `Side.update` does."""
        keys = ["observation", "action", "sample_log_prob", "advantage", "value_target"]
        keys += [("next", "done"), *[f"{name}_state" for name in self.nets]]
        slices = {key: batch[key].reshape(-1, SLICE, *batch[key].shape[2:]) for key in keys}
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(slices["action"])).split(SLICES_PER_UPDATE):
                loss = self._loss({key: values[rows] for key, values in slices.items()})
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.params, 0.5)
                self.optimizer.step()

    def _loss(self, rows: dict[Any, Tensor]) -> Tensor:
        segments = None if self.is_dense else self._segments(rows["next", "done"])
        logits = self._unroll("actor", rows, segments).log_softmax(-1)
        value = self._unroll("critic", rows, segments)
        advantage = rows["advantage"][..., 0]
        advantage = (advantage - advantage.mean()) / advantage.std().clamp(min=1e-6)
        ratio = ((logits * rows["action"]).sum(-1) - rows["sample_log_prob"]).exp()
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        entropy = -(logits.exp() * logits).sum(-1).mean()
        return mse_loss(value, rows["value_target"]) - gain - 0.01 * entropy

    def _unroll(self, name: str, rows: dict[Any, Tensor], segments: Segments | None) -> Tensor:
        embed, cell, head = self.nets[name]
        x, state = embed(rows["observation"]), rows[f"{name}_state"]
        if segments is None:
            out, _ = cell(x, state[:, 0].transpose(0, 1).contiguous())
        else:
            first = state.flatten(0, 1).index_select(0, segments.starts)
            out, _ = gru(x, segments, first, Network.of(cell))
        result: Tensor = head(out)
        return result

    @staticmethod
    def _segments(done: Tensor) -> Segments:
        ends = done[..., 0].clone()
        ends[:, -1] = True
        last = ends.flatten().nonzero()[:, 0]
        lengths = last.diff(prepend=last.new_full((1,), -1))
        flat = Segments.from_lengths(lengths)
        return Segments(flat.starts, lengths, flat.kinds, done.shape[:2])


def main() -> None:
    """Read the command line, and print the time of each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cpu-time", action="store_true", help="for a machine that is shared")
    with bench.session(parser) as given:
        run(given.rounds, time.process_time if given.cpu_time else time.perf_counter)


def run(rounds: int, clock: Callable[[], float]) -> None:
    """Play and learn in turns, and report the medians for 10,000 steps."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    nets: Nets = networks()
    side, player = Side(ours(), nets, "auto"), Player(nets)
    learners = [
        Learner(nets, is_dense=is_dense, is_fused=is_fused)
        for is_dense, is_fused in ((True, True), (False, False), (False, True))
    ]

    def turn() -> list[float]:
        """Seconds of each way, on the same batch."""
        batch = side.advantage(side.collect(None))
        calls: list[Callable[[], Any]] = [lambda: side.collect(None), player.play]
        calls += [lambda: side.update(batch)]
        calls += [lambda one=one: one.update(batch) for one in learners]
        spent = []
        for call in calls:
            start = clock()
            call()
            spent.append(clock() - start)
        return spent

    (found,) = bench.medians(rounds, turn, warm_up=2)
    side.collector.shutdown()
    scale = 1e6 * 10_000 / (NUM_ENVS * NUM_STEPS)
    collect, by_hand, update, dense, layer, fused = (scale * took for took in found)
    print(f"10,000 steps of recurrent PPO on {NAME}")
    bench.report("collect", collect, by_hand, peer="by hand")
    bench.report("update; torch's GRU, one dense block", update, dense, peer="by hand")
    bench.report("update; our layer, Adam as ours", update, layer, peer="by hand")
    bench.report("update; our layer, fused Adam", update, fused, peer="by hand")


if __name__ == "__main__":
    main()
