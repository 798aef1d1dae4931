"""Transforms that change the form of an entry under its own name, around batches of rows."""

import pytest
import torch
from tensordict import TensorDict

from rl_envs import EnvBase, GymEnv, ParallelEnv, SerialEnv, TransformedEnv, check_env_specs
from rl_specs import Bounded, Composite, OneHot, Unbounded
from rl_transforms import (
    CatFrames,
    Compose,
    DoubleToFloat,
    FlattenObservation,
    GrayScale,
    RenameTransform,
    Resize,
    StepCounter,
    ToTensorImage,
    Transform,
    UnsqueezeTransform,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
PIXELS = ["pixels"]


class Screen(EnvBase):
    """Shows a frame `[24, 20, 3]` and doubles `[3]`; over after `length` steps."""

    def __init__(self, length=3):
        super().__init__()
        self.length, self.count = length, 0
        self.observation_spec = Composite(
            pixels=Bounded(0, 255, (24, 20, 3), dtype=torch.uint8),
            place=Unbounded((3,), dtype=torch.float64),
        )
        self.action_spec = OneHot(2)

    def _show(self):
        frame = torch.arange(24 * 20 * 3).reshape(24, 20, 3) + 7 * self.count
        place = torch.full((3,), self.count / 3, dtype=torch.float64)
        return TensorDict({"pixels": (frame % 256).to(torch.uint8), "place": place}, [])

    def _reset(self, tensordict):
        self.count = 0
        return self._show()

    def _step(self, tensordict):
        self.count += 1
        after = self._show().set("reward", torch.tensor([float(self.count)]))
        return after.set("terminated", torch.tensor([self.count >= self.length]))

    def _set_seed(self, seed):
        """Nothing is random."""


class TwoRewards(Transform):
    """Makes a reward `[2]` of a reward `[1]`, under its own name."""

    def __init__(self):
        super().__init__(["reward"])

    def apply_leaf(self, value):
        return torch.cat([value, -value], -1)

    def leaf_spec(self, spec):
        return Unbounded((*spec.shape[:-1], 2))


CHANGES = {
    "images": lambda: ToTensorImage(in_keys=PIXELS),
    "images made smaller": lambda: Compose(
        ToTensorImage(in_keys=PIXELS), Resize(8, in_keys=PIXELS)
    ),
    "grey stacks of frames": lambda: Compose(
        ToTensorImage(in_keys=PIXELS),
        GrayScale(in_keys=PIXELS),
        CatFrames(4, dim=-3, in_keys=PIXELS),
    ),
    "one dimension more": lambda: UnsqueezeTransform(-1, in_keys=PIXELS),
    "one dimension": lambda: FlattenObservation(-3, -1, in_keys=PIXELS),
    "another dtype": lambda: DoubleToFloat(in_keys=["place"]),
    "another reward": TwoRewards,
    "another name of a flag": lambda: RenameTransform(["reward"], ["score"]),
    "a limit": lambda: Compose(ToTensorImage(in_keys=PIXELS), StepCounter(2)),
}


def around(kind, change, make=Screen):
    makers = [lambda: make(3), lambda: make(5)]
    if kind is ParallelEnv:
        return TransformedEnv(ParallelEnv(2, makers, mp_start_method="fork"), change())
    if kind is SerialEnv:
        return TransformedEnv(SerialEnv(2, makers), change())
    return SerialEnv(2, [lambda make=make: TransformedEnv(make(), change()) for make in makers])


def played(env, num_steps=7):
    torch.manual_seed(0)
    with env:
        return env.rollout(num_steps, break_when_any_done=False)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_entries_of_another_form_pass_processes_as_they_pass_a_loop(change):
    parallel, serial, inside = (
        played(around(kind, change)) for kind in (ParallelEnv, SerialEnv, None)
    )
    assert set(parallel.keys(True, True)) == set(serial.keys(True, True))
    assert (parallel == serial).all()
    assert (inside == serial).all()


@pytest.mark.parametrize("kind", [SerialEnv, ParallelEnv])
@pytest.mark.parametrize("name", ["images", "another dtype", "another reward"])
def test_specs_say_what_comes_out_of_such_transforms(kind, name):
    with around(kind, CHANGES[name]) as env:
        check_env_specs(env, num_steps=5)


def test_transforms_in_transforms_may_change_the_form_twice():
    def nested(kind):
        base = around(kind, CHANGES["images"])
        return TransformedEnv(TransformedEnv(base, CHANGES["one dimension"]()), StepCounter())

    parallel, serial = played(nested(ParallelEnv)), played(nested(SerialEnv))
    assert parallel["pixels"].shape == (2, 7, 3 * 24 * 20)
    assert (parallel == serial).all()


@pytest.mark.parametrize("kind", [SerialEnv, ParallelEnv])
def test_rows_that_go_on_keep_their_changed_entries_at_a_partial_reset(kind):
    with around(kind, CHANGES["images"]) as env:
        step = env.step(env.rand_action(env.reset()))
        root = env.next_root(step).set("_reset", torch.tensor([[True], [False]]))
        root = env.reset(root)
        assert torch.equal(root["pixels"][1], step["next", "pixels"][1])
        assert root["place"].tolist() == [[0.0] * 3, [1 / 3] * 3]


def in_place(batch):
    """Changes the leaves that it is given."""
    return batch.set("observation", batch["observation"].mul_(0.5))


@pytest.mark.parametrize("kind", [SerialEnv, ParallelEnv])
def test_a_change_in_place_comes_out_as_a_change_on_copies_does(kind):
    def copied(batch):
        return batch.set("observation", batch["observation"] * 0.5)

    found, expected = [], []
    for made, change in ((found, in_place), (expected, copied)):
        makers = [lambda: GymEnv("CartPole-v1")] * 2
        options = {"mp_start_method": "fork"} if kind is ParallelEnv else {}
        env = TransformedEnv(kind(2, makers, **options), change)
        env.set_seed(3)
        made.append(played(env, 40))
    assert (found[0] == expected[0]).all()
