"""n-step rows, images and steps of an environment through transforms, compared with torchrl.

Run with `nox -s "bench(rl-transforms)"`. Medians in one process, ratios printed.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from bench import medians_us, report, session
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

from rl_envs import GymEnv, TransformedEnv
from rl_layout.testing import EndKind, environments, trajectories
from rl_specs import Unbounded
from rl_transforms import (
    CatTensors,
    CenterCrop,
    Compose,
    DTypeCastTransform,
    GrayScale,
    InitTracker,
    MultiStep,
    MultiStepTransform,
    ObservationNorm,
    Resize,
    RewardClipping,
    RewardScaling,
    RewardSum,
    SignTransform,
    StepCounter,
    TensorDictPrimer,
    ToTensorImage,
    UnsqueezeTransform,
)

warnings.filterwarnings("ignore")


def n_steps() -> None:
    """Rows that reach ahead: 65,536 rows of 64 environments.

    The peer does not move the done flags.
    """
    from torchrl.data.postprocs import MultiStep as Peer

    batch = environments(64, 1024, [200, 170, 230], [EndKind.TERMINATED])
    print("n-step rows, 64 x 1,024, episodes near 200, 12 leaves")
    for n in (3, 10):
        ours, theirs = MultiStep(0.99, n), Peer(0.99, n)
        flag = batch["is_init"]

        def afresh(ours: MultiStep = ours, flag: torch.Tensor = flag) -> object:
            flag[0, 0] = True  # moves the version counter, so that no kept segments are used
            return ours(batch)

        report(f"MultiStep, n = {n}", *medians_us(9, afresh, lambda t=theirs: t(batch)))


def writes() -> None:
    """The same on the way into a buffer, in calls of 64 to 10,000 rows.

    The peer carries the rows of one producer only, environment by environment. Ours joins rows by
    their ids, and the last case brings the rows of 32 producers, each in calls of its own.
    """
    from torchrl.envs.transforms import MultiStepTransform as Peer

    print("rows of 3 steps on their way into a buffer, 12 leaves")
    for envs, steps in ((1, 64), (8, 8), (64, 32), (16, 625)):
        batch = environments(envs, 12 * steps, [200, 170, 230], [EndKind.TERMINATED])
        pieces = [piece.contiguous() for piece in batch.split(steps, 1)]
        sides = [
            MultiStepTransform(3, 0.99),
            MultiStepTransform(3, 0.99, columns=True),
            Peer(3, 0.99),
        ]
        flat, columns, theirs = medians_us(48, *(writing(one, pieces) for one in sides))
        report(f"{envs} x {steps} a call, flat", flat, theirs)
        report(f"{envs} x {steps} a call, columns", columns, theirs)
    pieces = []
    for producer in range(32):
        mine = environments(4, 16 * 12, [200, 170, 230], [EndKind.TERMINATED])
        mine["collector", "traj_ids"] += producer << 32
        pieces += [piece.contiguous() for piece in mine.split(16, 1)]
    mixed = [pieces[12 * p + turn] for turn in range(12) for p in range(32)]
    (took,) = medians_us(352, writing(MultiStepTransform(3, 0.99), mixed))
    print(f"  {'4 x 16 a call, 32 producers':34}{took:10.0f} us")


def writing(transform: Any, pieces: list[TensorDict]) -> Callable[[], object]:
    """A call that stores the next piece."""
    turn = itertools.cycle(pieces)
    return lambda: transform.inv(next(turn))


def steps() -> None:
    """A step and a partial reset through four transforms, 8 environments."""
    from torchrl.data import Unbounded as PeerUnbounded
    from torchrl.envs import EnvBase, TransformedEnv
    from torchrl.envs import transforms as peer

    ours = Compose(
        InitTracker(),
        StepCounter(max_steps=10**9),
        RewardSum(),
        TensorDictPrimer(hidden=Unbounded((8, 64))),
    )
    no = torch.zeros(8, 1, dtype=torch.bool)
    flags = {"done": no, "terminated": no, "truncated": no, "observation": torch.zeros(8, 4)}
    after = TensorDict({**flags, "reward": torch.ones(8, 1)}, [8])
    root = ours.reset(TensorDict(flags, [8]))

    class Plain(EnvBase):
        """An environment that only says which keys there are."""

        def __init__(self) -> None:
            super().__init__(batch_size=[8])
            from torchrl.data import Binary, Composite

            self.observation_spec = Composite(observation=PeerUnbounded((8, 4)), shape=(8,))
            self.action_spec = PeerUnbounded((8, 1))
            self.reward_spec = PeerUnbounded((8, 1))
            names = ("done", "terminated", "truncated")
            leaves = {name: Binary(1, shape=(8, 1), dtype=torch.bool) for name in names}
            self.done_spec = Composite(leaves, shape=(8,))

        def _reset(self, tensordict: TensorDict | None) -> TensorDict:
            return TensorDict(dict(flags), [8])

        def _step(self, tensordict: TensorDict) -> TensorDict:
            return after

        def _set_seed(self, seed: int | None) -> None:
            pass

    primer = peer.TensorDictPrimer(hidden=PeerUnbounded((64,)), expand_specs=True)
    composed = peer.Compose(
        peer.InitTracker(), peer.StepCounter(max_steps=10**9), peer.RewardSum(), primer
    )
    env = TransformedEnv(Plain(), composed)
    theirs, start = env.transform, env.reset()
    print("a step through InitTracker, StepCounter, RewardSum and a primer, 8 environments")
    both = (lambda: ours.step(root, after), lambda: theirs._step(start, after.copy()))
    report("step", *medians_us(2001, *both))
    mask = torch.arange(8) == 2
    resets = start.clone().set("_reset", mask.unsqueeze(-1))
    fresh = TensorDict(flags, [8])
    both = (lambda: ours.reset(root, mask), lambda: theirs._reset(resets.copy(), fresh.copy()))
    report("partial reset", *medians_us(2001, *both))


def rows() -> None:
    """The same trackers on 65,536 finished rows, instead of every step of them."""
    batch = trajectories([200] * 327 + [136]).reshape(64, 1024)
    finishing = Compose(StepCounter(), RewardSum())
    (took,) = medians_us(9, lambda: finishing.rows(batch))
    print(f"trackers on 64 x 1,024 finished rows{took:13.0f} us")


def ten() -> None:
    """A rollout of CartPole through ten cheap transforms, the last of which the policy reads."""
    from torchrl.envs import GymEnv as PeerEnv
    from torchrl.envs import TransformedEnv as PeerTransformed
    from torchrl.envs import transforms as peer

    num_steps = 1000
    ours = Compose(
        InitTracker(),
        StepCounter(max_steps=10**6),
        RewardScaling(0.5, 2.0),
        RewardClipping(-1, 1),
        SignTransform(),
        RewardSum(),
        ObservationNorm(0.0, 2.0, ["observation"], ["normed"]),
        DTypeCastTransform(torch.float32, torch.float64, ["observation"], ["wide"]),
        CatTensors(["normed", "observation"], "both", del_keys=False),
        UnsqueezeTransform(-1, ["both"], ["column"]),
    )
    theirs = peer.Compose(
        peer.InitTracker(),
        peer.StepCounter(max_steps=10**6),
        peer.RewardScaling(0.5, 2.0),
        peer.RewardClipping(-1, 1),
        peer.SignTransform(in_keys=["reward"]),
        peer.RewardSum(),
        peer.ObservationNorm(0.0, 2.0, in_keys=["observation"], out_keys=["normed"]),
        peer.DTypeCastTransform(
            torch.float32, torch.float64, in_keys=["observation"], out_keys=["wide"]
        ),
        peer.CatTensors(["normed", "observation"], "both", del_keys=False),
        peer.UnsqueezeTransform(dim=-1, in_keys=["both"], out_keys=["column"]),
    )
    sides: list[Any] = [GymEnv("CartPole-v1"), TransformedEnv(GymEnv("CartPole-v1"), ours)]
    sides += [PeerEnv("CartPole-v1"), PeerTransformed(PeerEnv("CartPole-v1"), theirs)]

    def play(env: Any, act: Any) -> Callable[[], object]:
        return lambda: env.rollout(num_steps, act, break_when_any_done=False)

    def reading(env: Any) -> Any:
        action = torch.tensor([1, 0]).to(env.action_spec.dtype)
        name = "column" if "column" in env.observation_spec else "observation"
        return TensorDictModule(lambda seen: action, [name], ["action"])

    print("ten cheap transforms around CartPole, us a step more than without them")
    kinds = {"random actions": lambda env: None, "a policy that reads the last": reading}
    for name, make in kinds.items():
        calls = [play(env, make(env)) for env in sides]
        plain, changed, bare, wrapped = (found / num_steps for found in medians_us(5, *calls))
        report(name, changed - plain, wrapped - bare)
        print(f"  {'without them':34}{plain:10.0f} us   torchrl {bare:10.0f} us")


def images() -> None:
    """Single images and batches of 64, small and as an Atari screen; one thread."""
    from torchrl.envs import transforms as peer

    torch.set_num_threads(1)
    for height, width in ((84, 84), (210, 160)):
        for rows in (1, 64):
            pixels = torch.randint(0, 256, (rows, height, width, 3), dtype=torch.uint8)
            first = pixels.movedim(-1, -3).contiguous()
            side = 42 if height == 84 else 84
            cases = [
                ("ToTensorImage", ToTensorImage(), peer.ToTensorImage, (), pixels),
                ("GrayScale, floats", GrayScale(), peer.GrayScale, (), first / 255),
                ("GrayScale, bytes", GrayScale(), peer.GrayScale, (), first),
                ("Resize, floats", Resize(side), peer.Resize, (side, side), first / 255),
                ("Resize, bytes", Resize(side), peer.Resize, (side, side), first),
                ("CenterCrop", CenterCrop(64), peer.CenterCrop, (64, 64), first),
            ]
            print(f"images {rows} x {height} x {width}")
            for name, mine, make, sizes, image in cases:
                _image(name, mine, lambda make=make, sizes=sizes: make(*sizes), image)


def _image(name: str, ours: Any, make: Callable[[], Any], image: torch.Tensor) -> None:
    batch = TensorDict({"pixels": image}, image.shape[:1])
    try:
        theirs = make()
        theirs(batch.copy())
    except ImportError:
        (took,) = medians_us(31, lambda: ours(batch))
        print(f"  {name:34}{took:10.0f} us   torchrl needs torchvision")
        return
    report(name, *medians_us(31, lambda: ours(batch), lambda: theirs(batch.copy())))


if __name__ == "__main__":
    with session():
        torch.manual_seed(0)
        n_steps()
        writes()
        steps()
        rows()
        ten()
        images()
