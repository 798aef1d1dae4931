"""The time of a step: the loop that one would write by hand, ours, and the peer.

    nox -s "bench(rl-collect)"

CartPole, an MLP of 2 x 64 with a categorical sample, every key stored on every side; then a GRU
policy, and where the time of a step goes.
The loops by hand call the same `nn.Module` on plain tensors, store through numpy, and drop the
rows in which a vector only resets. Contenders of a table take turns; the medians are of batches.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from bench import medians_us, report, session, table, turns
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_collect import Collector
from rl_envs import GymEnv, GymVectorEnv, SerialEnv
from rl_policies import OneHotCategorical, ProbabilisticActor
from rl_recurrent import GRUModule

NAME, ROUNDS = "CartPole-v1", 15
# of all the files here, which take the same arguments
TABLES = [
    "all",
    "one",
    "recurrent",
    "workers",
    "profile",
    "memory",
    "batches",
    "vectors",
    "cluster",
    "sizing",
]


def network(width: int = 64) -> nn.Module:
    """The policy's network: 4 observations to 2 logits."""
    hidden = [nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*hidden, nn.Linear(width, 2))


def actor(net: nn.Module) -> ProbabilisticActor:
    """The same network as a policy of ours."""
    return ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["logits"]),
        in_keys=["logits"],
        spec=GymEnv(NAME).action_spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )


class ByHand:
    """Columns `[B, T]` for every key, and what a loop keeps between batches."""

    def __init__(self, net: nn.Module, num_envs: int, num_steps: int) -> None:
        self.net, self.num_envs, self.num_steps = net, num_envs, num_steps
        self.ids, self.step_of = np.arange(num_envs), np.zeros(num_envs, np.int64)
        self.begun, self.fresh = num_envs, np.ones(num_envs, bool)

    def columns(self) -> dict[str, np.ndarray]:
        """New memory for a batch."""
        shape = (self.num_envs, self.num_steps)
        floats = {"obs": 4, "next_obs": 4, "logits": 2, "reward": 1}
        flags = ("done", "terminated", "truncated", "next_done", "next_terminated")
        found = {name: np.zeros((*shape, size), np.float32) for name, size in floats.items()}
        found |= {name: np.zeros((*shape, 1), bool) for name in (*flags, "next_truncated")}
        found |= {"is_init": np.zeros((*shape, 1), bool), "action": np.zeros((*shape, 2), bool)}
        found |= {name: np.zeros(shape, np.int64) for name in ("ids", "steps", "version")}
        found["log_prob"] = np.zeros(shape, np.float32)
        return found

    def act(self, cols: dict[str, np.ndarray], t: int, obs: np.ndarray) -> np.ndarray:
        """Choose actions for `[B, 4]`, and store what the policy made."""
        logits = self.net(torch.from_numpy(obs))
        log_probs = logits.log_softmax(-1)
        choice = torch.multinomial(log_probs.exp(), 1)
        rows, taken = np.arange(self.num_envs), choice.numpy()[:, 0]
        cols["obs"][:, t], cols["logits"][:, t] = obs, logits.numpy()
        cols["action"][rows, t, taken] = True
        cols["log_prob"][:, t] = log_probs.gather(-1, choice).numpy()[:, 0]
        cols["is_init"][:, t, 0], cols["ids"][:, t] = self.fresh, self.ids
        cols["steps"][:, t] = self.step_of
        return taken

    def store(
        self, cols: dict[str, np.ndarray], t: int, next_obs: Any, reward: Any, ended: Any
    ) -> np.ndarray:
        """Store what a step made, and count on; say which rows are over."""
        terminated, truncated = ended
        over = np.logical_or(terminated, truncated)
        cols["next_obs"][:, t], cols["reward"][:, t, 0] = next_obs, reward
        cols["next_terminated"][:, t, 0] = terminated
        cols["next_truncated"][:, t, 0], cols["next_done"][:, t, 0] = truncated, over
        self.fresh, self.step_of = over, np.where(over, 0, self.step_of + 1)
        count = int(over.sum())
        if count:
            self.ids[over] = self.begun + np.arange(count)
            self.begun += count
        return over


def one_by_hand(
    net: nn.Module, num_steps: int, hand_out: Callable[[dict[str, np.ndarray]], object] = len
) -> Iterator[int]:
    """One environment, with plain numbers where a vector has arrays; batches are returned."""
    env, loop = gymnasium.make(NAME), ByHand(net, 1, num_steps)
    obs, _ = env.reset(seed=0)
    traj_id, step, fresh = 0, 0, True
    while True:
        cols = {name: column[0] for name, column in loop.columns().items()}
        with torch.no_grad():
            for t in range(num_steps):
                logits = net(torch.from_numpy(obs))
                log_probs = logits.log_softmax(-1)
                choice = torch.multinomial(log_probs.exp(), 1)
                taken = int(choice)
                cols["obs"][t], cols["logits"][t] = obs, logits.numpy()
                cols["action"][t, taken], cols["log_prob"][t] = True, log_probs[taken]
                cols["is_init"][t], cols["ids"][t], cols["steps"][t] = fresh, traj_id, step
                obs, reward, terminated, truncated, _ = env.step(taken)
                fresh = terminated or truncated
                cols["next_obs"][t], cols["reward"][t] = obs, reward
                cols["next_terminated"][t], cols["next_truncated"][t] = terminated, truncated
                cols["next_done"][t] = fresh
                step += 1
                if fresh:
                    obs, traj_id, step = env.reset()[0], traj_id + 1, 0
        hand_out(cols)
        yield num_steps


def several_by_hand(net: nn.Module, num_envs: int, num_steps: int) -> Iterator[int]:
    """Several in turn, by Gymnasium's vector that resets in the same step."""
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    makers = [lambda: gymnasium.make(NAME)] * num_envs
    env = gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode)
    loop = ByHand(net, num_envs, num_steps)
    obs, _ = env.reset(seed=0)
    while True:
        cols = loop.columns()
        with torch.no_grad():
            for t in range(num_steps):
                taken = loop.act(cols, t, obs)
                shown, reward, *ended, info = env.step(taken)
                after = shown
                if "final_obs" in info:
                    rows = np.flatnonzero(info["_final_obs"])
                    after = shown.copy()
                    after[rows] = np.stack(info["final_obs"][rows])
                loop.store(cols, t, after, reward, ended)
                obs = shown
        yield num_envs * num_steps


def vector_by_hand(net: nn.Module, num_envs: int, num_steps: int) -> Iterator[int]:
    """A native vector, whose rows are reset while the others step: those are dropped at the end."""
    env = gymnasium.make_vec(NAME, num_envs, vectorization_mode="vector_entry_point")
    loop = ByHand(net, num_envs, num_steps)
    obs, _ = env.reset(seed=0)
    over = np.zeros(num_envs, bool)
    while True:
        cols = loop.columns()
        real = np.zeros((num_envs, num_steps), bool)
        with torch.no_grad():
            for t in range(num_steps):
                real[:, t] = ~over
                taken = loop.act(cols, t, obs)
                after, reward, *ended, _ = env.step(taken)
                over = loop.store(cols, t, after, reward, ended)
                obs = after
        kept = {name: column[real] for name, column in cols.items()}
        yield len(kept["obs"])


def ours(env: Any, net: nn.Module, frames: int, buffer: Any = None) -> Iterator[int]:
    """Batches of our collector."""
    collector = Collector(env, actor(net), frames_per_batch=frames, replay_buffer=buffer)
    for _ in collector:
        yield frames


def peer(num_envs: int, net: nn.Module, frames: int) -> Iterator[int]:
    """Batches of torchrl's collector."""
    from torchrl.collectors import Collector as Theirs
    from torchrl.envs import GymEnv as TheirEnv
    from torchrl.envs import SerialEnv as TheirSerial
    from torchrl.modules import OneHotCategorical as TheirOneHot
    from torchrl.modules import ProbabilisticActor as TheirActor

    one = TheirEnv(NAME)
    env = one if num_envs == 1 else TheirSerial(num_envs, lambda: TheirEnv(NAME))
    policy = TheirActor(
        TensorDictModule(net, ["observation"], ["logits"]),
        in_keys=["logits"],
        spec=one.action_spec,
        distribution_class=TheirOneHot,
        return_log_prob=True,
    )
    collector = Theirs(env, policy, frames_per_batch=frames, total_frames=-1)
    for batch in collector:
        yield batch.numel()


def parts_of(nets: tuple[nn.Module, ...], kind: Any) -> TensorDictSequential:
    """The network of the field's recurrent PPO example: linear, a GRU of 32, linear."""
    embed, hidden, head = nets
    return TensorDictSequential(
        TensorDictModule(embed, ["observation"], ["embed"]),
        kind(gru=hidden, in_key="embed", out_key="features"),
        TensorDictModule(head, ["features"], ["logits"]),
    )


def recurrent(nets: tuple[nn.Module, ...]) -> ProbabilisticActor:
    """It as a policy of ours."""
    return ProbabilisticActor(
        parts_of(nets, GRUModule),
        in_keys=["logits"],
        spec=GymEnv(NAME).action_spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )


def recurrent_peer(nets: tuple[nn.Module, ...], num_envs: int, frames: int) -> Iterator[int]:
    """Batches of torchrl's collector, of the same policy."""
    from torchrl.collectors import Collector as Theirs
    from torchrl.envs import GymEnv as TheirEnv
    from torchrl.envs import SerialEnv as TheirSerial
    from torchrl.modules import GRUModule as TheirGRU
    from torchrl.modules import OneHotCategorical as TheirOneHot
    from torchrl.modules import ProbabilisticActor as TheirActor

    policy = TheirActor(
        parts_of(nets, TheirGRU),
        in_keys=["logits"],
        spec=TheirEnv(NAME).action_spec,
        distribution_class=TheirOneHot,
        return_log_prob=True,
    )
    env = TheirSerial(num_envs, lambda: TheirEnv(NAME))
    options = {"auto_register_policy_transforms": True, "total_frames": -1}
    for batch in Theirs(env, policy, frames_per_batch=frames, **options):
        yield batch.numel()


def batches_of(collector: Any) -> Iterator[int]:
    """Batches of any collector, which is shut down with the generator."""
    try:
        for batch in collector:
            yield batch.numel()
    finally:
        collector.shutdown()


def show(title: str, contenders: dict[str, Callable[[], Iterator[int]]]) -> None:
    """One table: the median time of a step of each."""
    running = {name: make() for name, make in contenders.items()}
    calls = [partial(next, batches) for batches in running.values()]
    # the first batch makes and checks
    found = medians_us(ROUNDS, *calls, warm_up=1, per_unit=True)
    show_steps(title, dict(zip(running, found, strict=True)))
    for batches in running.values():
        batches.close()  # type: ignore[attr-defined] # generators, all of them


def show_steps(title: str, took: dict[str, float]) -> None:
    """Print microseconds of a step with the steps a second that they are."""
    notes = {name: f"{1e6 / us:12,.0f} steps/s" for name, us in took.items()}
    table(f"a step, {title}", took, "rl-collect", notes)


def show_profile(net: nn.Module) -> None:
    """Where the time of a step goes: environment, policy, and what is left, the collector."""
    collector = Collector(GymEnv(NAME), actor(net), frames_per_batch=500)
    collector.next()
    spent = {"env": 0.0, "policy": 0.0}

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*given, **named)
            finally:
                spent[name] += time.perf_counter() - start

        return run

    gym = collector.env.env  # type: ignore[attr-defined] # a GymEnv, around gymnasium's
    gym.step, gym.reset = timed("env", gym.step), timed("env", gym.reset)
    plan = collector.batches.plan
    assert plan is not None
    bind = plan.bound  # what each batch but its first step calls
    plan.bound = lambda: timed("policy", bind())  # type: ignore[method-assign, arg-type]
    rounds = turns(ROUNDS)
    start = time.perf_counter()
    for _ in range(rounds):
        collector.next()
    whole, steps = time.perf_counter() - start, rounds * 500
    spent["collector"] = whole - sum(spent.values())
    print("\none environment: where a step goes")
    for name, seconds in spent.items():
        us = 1e6 * seconds / steps
        report(f"{name}'s part of a step", us, note=f"{seconds / whole:6.2f} of it")


def one_process(net: nn.Module, has_peer: bool) -> None:
    """The tables of one process."""
    found = {"by hand": lambda: one_by_hand(net, 500)}
    if has_peer:
        found["torchrl"] = lambda: peer(1, net, 500)
    found["rl-collect"] = lambda: ours(GymEnv(NAME), net, 500)
    show("one environment, 500 steps a batch", found)
    found = {"by hand, SyncVectorEnv": lambda: several_by_hand(net, 8, 128)}
    if has_peer:
        found["torchrl"] = lambda: peer(8, net, 1024)
    found["rl-collect"] = lambda: ours(SerialEnv(8, lambda: GymEnv(NAME)), net, 1024)
    show("8 environments in turn, 1,024 steps a batch", found)
    found = {"by hand, native vector": lambda: vector_by_hand(net, 64, 128)}
    mode = "vector_entry_point"
    found["rl-collect"] = lambda: ours(
        GymVectorEnv(NAME, num_envs=64, vectorization_mode=mode), net, 64 * 128
    )
    show("64 environments in one native vector, 8,192 steps a batch", found)


def with_state(has_peer: bool) -> None:
    """The table of a GRU policy."""
    nets = nn.Linear(4, 32), nn.GRU(32, 32, batch_first=True), nn.Linear(32, 2)
    found = {}
    if has_peer:
        found["torchrl"] = lambda: recurrent_peer(nets, 8, 512)
    env = SerialEnv(8, lambda: GymEnv(NAME))
    found["rl-collect"] = lambda: batches_of(Collector(env, recurrent(nets), frames_per_batch=512))
    show("a GRU policy, 8 environments in turn, 512 steps a batch", found)


def main(wanted: str) -> None:
    """Print the tables."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    pandas = "is" if importlib.util.find_spec("pandas") else "is not"
    print(f"{torch.get_num_threads()} threads; pandas {pandas} installed")
    net = network()
    has_peer = importlib.util.find_spec("torchrl") is not None
    if wanted in ("all", "one"):
        one_process(net, has_peer)
    if wanted in ("all", "recurrent"):
        with_state(has_peer)
    if wanted in ("all", "profile"):
        show_profile(net)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", nargs="?", default="all", choices=TABLES)
    with session(parser) as given:
        main(given.table)
