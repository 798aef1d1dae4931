import sys
from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_envs import (
    GymEnv,
    RolloutPlayer,
    RolloutRequest,
    SerialEnv,
    TransformedEnv,
)
from rl_envs.rollouts import column_steps
from rl_envs.transformed.binding import TransformedBinding, pass_step
from rl_specs import Unbounded
from rl_transforms import (
    CatTensors,
    Compose,
    DoubleToFloat,
    DTypeCastTransform,
    ExcludeTransform,
    FlattenObservation,
    InitTracker,
    ObservationNorm,
    RenameTransform,
    RewardClipping,
    RewardScaling,
    RewardSum,
    SelectTransform,
    SignTransform,
    StepCounter,
    TensorDictPrimer,
    Transform,
    UnsqueezeTransform,
)


def ten():
    """Cheap transforms of all kinds."""
    return Compose(
        InitTracker(),
        StepCounter(max_steps=7),
        RewardScaling(0.5, 2.0),
        RewardClipping(-1, 1),
        SignTransform(["reward"], ["sign"]),
        RewardSum(),
        ObservationNorm(0.1, 0.7, ["observation"], ["normed"]),
        DTypeCastTransform(torch.float32, torch.float64, ["observation"], ["wide"]),
        CatTensors(["normed", "observation"], "both", del_keys=False),
        UnsqueezeTransform(-1, ["both"], ["column"]),
    )


class Shift(Transform):
    def apply_leaf(self, value):
        return value + 10

    def leaf_spec(self, spec):
        return Unbounded(spec.shape, dtype=spec.dtype)


def memory():
    return TensorDictPrimer(hidden=Unbounded((3,)), expand_specs=True, default_value=2.0)


CHANGES = {
    "trackers": lambda: Compose(InitTracker(), StepCounter(max_steps=7), RewardSum()),
    "in place": lambda: Shift(["observation"]),
    "new key": lambda: Shift(["observation"], ["shifted"]),
    "cast": lambda: DTypeCastTransform(torch.float32, torch.float64, ["observation"]),
    "cast and count": lambda: Compose(
        DTypeCastTransform(torch.float32, torch.float64, ["observation"]), StepCounter(5)
    ),
    "rename": lambda: Compose(
        RenameTransform(["observation"], ["seen"]), RenameTransform(["seen"], ["observation"])
    ),
    "select": lambda: Compose(InitTracker(), SelectTransform("observation")),
    "ten": lambda: ten(),
    "sizes": lambda: Compose(
        UnsqueezeTransform(-1),
        FlattenObservation(-2, -1),
        UnsqueezeTransform(-2, ["reward"], ["tall"]),
    ),
    "names": lambda: Compose(
        RenameTransform(["observation"], [("seen", "all")], create_copy=True),
        CatTensors([("seen", "all"), "observation"], "both", del_keys=False),
        DoubleToFloat(),
        RenameTransform(["reward"], ["paid"], create_copy=True),
    ),
    "back and forth": lambda: Compose(
        DTypeCastTransform(torch.float32, torch.float64, ["observation"]),
        ObservationNorm(0.5, 3.0, standard_normal=True),
        DTypeCastTransform(torch.float64, torch.float32, ["observation"]),
    ),
    "bits": lambda: Compose(
        RewardScaling(0.1, 0.7),
        ObservationNorm(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor(0.3)),
    ),
    "views of what is overwritten": lambda: Compose(
        UnsqueezeTransform(-1, ["observation"], ["column"]),
        RenameTransform(["observation"], ["seen"], create_copy=True),
        Shift(["observation"]),
    ),
    "exclude": lambda: Compose(Shift(["observation"], ["shifted"]), ExcludeTransform("shifted")),
}


def policy():
    torch.manual_seed(2)
    cell, head = nn.Linear(4, 3), nn.Linear(3, 2)

    def step(seen, hidden):
        return torch.tanh(cell(seen.float()) + hidden)

    def act(hidden):
        return nn.functional.one_hot(head(hidden).argmax(-1), 2).bool()

    return TensorDictSequential(
        TensorDictModule(step, ["observation", "hidden"], [("next", "hidden")]),
        TensorDictModule(act, [("next", "hidden")], ["action"]),
    )


ORDERS = [(name, first) for name in CHANGES for first in (True, False) if name != "select"]


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize(("name", "first"), [*ORDERS, ("select", False)])
def test_columns_hold_what_tensordicts_would(name, number, first):
    batches = []
    for fast in (True, False):
        env = GymEnv("CartPole-v1")
        if number:
            env = SerialEnv(number, lambda: GymEnv("CartPole-v1", max_episode_steps=11))
        changes = [memory(), CHANGES[name]()]
        env = TransformedEnv(env, Compose(*(changes if first else reversed(changes))))
        env.native_rows = fast
        env.set_seed(5)
        batches.append(env.rollout(41, policy(), break_when_any_done=False))
    one, other = batches
    assert one.names == other.names
    assert set(one.keys(True, True)) == set(other.keys(True, True))
    assert all(torch.equal(one[key], other[key]) for key in one.keys(True, True))
    assert one["hidden"].unique().numel() > 10


class Half(Transform):
    def invert_leaf(self, value):
        return value / 2


class Mirror(Transform):
    def inv(self, batch):
        return batch.copy().set("action", -batch["action"])


class Offline(Half):
    online = False


class OfflineMirror(Mirror):
    online = False


INVERSES = {
    "leaf": lambda: Half(in_keys_inv=["action"]),
    "batch": Mirror,
    "bounds": lambda: ObservationNorm(0.5, 2.0, in_keys=[], in_keys_inv=["action"]),
    "two": lambda: Compose(Mirror(), StepCounter(), Half(in_keys_inv=["action"])),
    "offline": lambda: Compose(Offline(in_keys_inv=["action"]), OfflineMirror()),
}


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("name", INVERSES)
def test_batches_hold_the_actions_of_the_policy_and_not_those_inside(name, number):
    batches = []
    for fast in (True, False):
        env = TransformedEnv(GymEnv("Pendulum-v1"), INVERSES[name]())
        if number:
            env = SerialEnv(number, lambda: TransformedEnv(GymEnv("Pendulum-v1"), INVERSES[name]()))
        env.native_rows = fast
        env.set_seed(5)
        act = TensorDictModule(lambda seen: seen[..., :1] + 0.3, ["observation"], ["action"])
        batches.append(env.rollout(7, act))
    one, other = batches
    assert torch.equal(one["action"], one["observation"][..., :1] + 0.3)
    assert all(torch.equal(one[key], other[key]) for key in other.keys(True, True))


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("name", ["trackers", "ten", "names", "back and forth", "bits"])
def test_rows_that_arrays_alone_reset_are_those_of_tensordicts(name, number):
    batches = []
    for fast in (True, False):
        env = GymEnv("CartPole-v1", max_episode_steps=11)
        if number:
            env = SerialEnv(number, lambda: GymEnv("CartPole-v1", max_episode_steps=11))
        env = TransformedEnv(env, CHANGES[name]())
        env.native_rows = fast
        env.set_seed(5)
        torch.manual_seed(9)
        batches.append(env.rollout(41, env.rand_action, break_when_any_done=False))
    one, other = batches
    assert set(one.keys(True, True)) == set(other.keys(True, True))
    assert all(torch.equal(one[key], other[key]) for key in one.keys(True, True))
    assert one["next", "done"].sum() >= 3


def recurrent():
    """Reads where trajectories begin, writes one state, and leaves another to be carried on."""

    def act(hidden, kept, is_init):
        turn = (hidden[..., 0] + kept[..., 0] + is_init[..., 0]).long() % 2
        return nn.functional.one_hot(turn, 2).bool(), hidden + 1

    return TensorDictModule(act, ["hidden", "kept", "is_init"], ["action", ("next", "hidden")])


@pytest.mark.parametrize("number", [0, 3])
def test_states_that_nothing_else_touches_are_carried_on(number):
    batches = []
    for fast in (True, False):
        env = GymEnv("CartPole-v1", max_episode_steps=11)
        if number:
            env = SerialEnv(number, lambda: GymEnv("CartPole-v1", max_episode_steps=11))
        kept = TensorDictPrimer(kept=Unbounded((2,)), expand_specs=True, default_value=7.0)
        env = TransformedEnv(env, Compose(InitTracker(), memory(), kept))
        env.native_rows = fast
        env.set_seed(5)
        batches.append(env.rollout(41, recurrent(), break_when_any_done=False))
    one, other = batches
    assert set(one.keys(True, True)) == set(other.keys(True, True))
    assert all(torch.equal(one[key], other[key]) for key in one.keys(True, True))
    assert one["hidden"].max() == 12  # eleven steps from 2
    assert (one["next", "kept"] == 7).all()


def steps_by_hand(env, count=30, act=None):
    """Steps one after another, and the root of each is what the one before has left."""
    torch.manual_seed(9)
    env.set_seed(5)
    root, steps = env.reset(), []
    for t in range(count):
        if act is not None:
            act(env, t)
        steps.append(env.step(env.rand_action(root)))
        root = env.maybe_reset(env.next_root(steps[-1]))
    return torch.stack(steps)


def by_rows_and_tensordicts(change, act=None):
    """The same steps by hand, on rows and on tensordicts."""
    found = []
    for fast in (True, False):
        env = TransformedEnv(GymEnv("CartPole-v1", max_episode_steps=11), change())
        env.native_rows, env.check_values = fast, False  # what is moved leaves its bounds
        found.append(steps_by_hand(env, act=act))
    return found


@pytest.mark.parametrize("name", CHANGES)
def test_steps_by_hand_through_rows_are_those_through_tensordicts(name):
    one, other = by_rows_and_tensordicts(CHANGES[name])
    assert set(one.keys(True, True)) == set(other.keys(True, True))
    assert all(torch.equal(one[key], other[key]) for key in one.keys(True, True))


def called(act):
    """Names of the functions that a call runs."""
    names = set()
    sys.setprofile(lambda frame, event, _: names.add(frame.f_code.co_qualname))
    try:
        act()
    finally:
        sys.setprofile(None)
    return names


def test_a_step_by_hand_runs_transforms_on_arrays():
    env = TransformedEnv(GymEnv("CartPole-v1"), ten())
    root = env.rand_action(env.reset())
    assert "OneColumn.step" in called(lambda: env.step(root))
    assert "StepCounter.step" not in called(lambda: env.step(root))
    assert "NumpyPipeline.__init__" not in called(lambda: env.step(root))
    shifted = TransformedEnv(GymEnv("CartPole-v1"), Shift(["observation"]), StepCounter())
    root = shifted.rand_action(shifted.reset())
    assert "StepCounter.step" in called(lambda: shifted.step(root))


def loosen(env, t):
    env.transforms[0].max_steps = 3 if t < 9 else 5


def move(env, t):
    env.transforms[0].loc.fill_(float(t))


def replace(env, t):
    env.transforms[0].scale = torch.tensor(float(t + 1))


def clip(env, t):
    env.transforms[0].clamp_max = 0.5 if t > 7 else 2.0


@pytest.mark.parametrize(
    ("change", "act"),
    [
        (lambda: StepCounter(3), loosen),
        (lambda: ObservationNorm(0.0, 1.0), move),
        (lambda: ObservationNorm(0.0, torch.ones(())), replace),
        (lambda: RewardClipping(-1.0, 2.0), clip),
    ],
    ids=["limit", "in place", "tensor", "number"],
)
def test_what_changes_in_a_transform_shows_in_the_next_step_by_hand(change, act):
    one, other = by_rows_and_tensordicts(change, act)
    still = by_rows_and_tensordicts(change)[0]
    assert all(torch.equal(one[key], other[key]) for key in one.keys(True, True))
    assert any(not torch.equal(one[key], still[key]) for key in one.keys(True, True))


def batches_of(change, act=None):
    """Batches of one player that follow each other, with actions of a recurrent policy."""
    env = TransformedEnv(GymEnv("CartPole-v1", max_episode_steps=11), memory(), change())
    env.check_values = False
    env.set_seed(5)
    player, request = (
        RolloutPlayer(env, policy()),
        RolloutRequest(4, break_when_any_done=False, continues=True),
    )
    batches, root = [], None
    for t in range(12):
        if act is not None:
            act(env, t)
        batches.append(player.play(request, root))
        root = None if player.can_continue(request) else player.root_after(batches[-1])
    return torch.cat(batches)


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "select"])
def test_batches_in_columns_that_are_kept_are_those_in_new_ones(name, monkeypatch):
    one = batches_of(CHANGES[name])
    monkeypatch.setattr(column_steps, "KEPT_BYTES", 0)
    other = batches_of(CHANGES[name])
    assert set(one.keys(True, True)) == set(other.keys(True, True))
    assert all(torch.equal(one[key], other[key]) for key in one.keys(True, True))
    assert one["next", "done"].any()


def second(act):
    """The same change to the transform that follows a primer."""
    return lambda env, t: act(SimpleNamespace(transforms=env.transforms[1:]), t)


@pytest.mark.parametrize(
    ("change", "act"),
    [
        (lambda: StepCounter(3), loosen),
        (lambda: ObservationNorm(0.0, 1.0), move),
        (lambda: ObservationNorm(0.0, torch.ones(())), replace),
    ],
    ids=["limit", "in place", "tensor"],
)
def test_what_changes_in_a_transform_shows_in_the_next_batch(change, act, monkeypatch):
    one, still = batches_of(change, second(act)), batches_of(change)
    monkeypatch.setattr(column_steps, "KEPT_BYTES", 0)
    other = batches_of(change, second(act))
    assert all(torch.equal(one[key], other[key]) for key in one.keys(True, True))
    assert any(not torch.equal(one[key], still[key]) for key in one.keys(True, True))


@pytest.fixture
def steps_through_tensordicts(monkeypatch):
    """Counts the steps that were not calls on arrays."""
    counted = []
    # private: which of two equal paths runs has no public sign
    original = TransformedBinding._step_through_tensordicts

    def counting(self, t):
        counted.append(t)
        return original(self, t)

    monkeypatch.setattr(TransformedBinding, "_step_through_tensordicts", counting)
    return counted


@pytest.mark.parametrize(
    "name", ["ten", "sizes", "names", "back and forth", "bits", "select", "exclude"]
)
def test_cheap_transforms_step_on_arrays(name, steps_through_tensordicts):
    change = CHANGES[name]()
    if name == "exclude":  # the shift of a test has no twin
        change = ExcludeTransform("observation")
    env = TransformedEnv(SerialEnv(2, lambda: GymEnv("CartPole-v1")), change)
    env.rollout(9, lambda root: env.rand_action(root), break_when_any_done=False)
    assert steps_through_tensordicts == []


def test_transforms_without_numpy_steps_use_tensordicts(steps_through_tensordicts):
    env = TransformedEnv(GymEnv("CartPole-v1"), Compose(Shift(["observation"]), StepCounter(9)))
    env.rollout(3, lambda root: env.rand_action(root))
    assert steps_through_tensordicts == [0, 1, 2]


def test_rows_that_only_reset_others_see_no_transformed_values_of_them():
    batches = []
    for fast in (True, False):
        base = SerialEnv(3, lambda: GymEnv("CartPole-v1"))
        env = TransformedEnv(base, ten())
        env.native_rows = fast
        env.set_seed(4)
        torch.manual_seed(4)
        batches.append(
            env.rollout(60, lambda root, e=env: e.rand_action(root), break_when_any_done=False)
        )
    one, other = batches
    assert (one["next", "done"].sum(1) > 2).all()
    for key in one.keys(True, True):
        assert torch.equal(one[key], other[key]), key


def test_pass_step_keeps_entries_of_the_policy_that_a_transform_drops():
    after = TensorDict({"hidden": torch.full((1,), 3.0), "speed": torch.ones(1)}, [])
    given = after.select("hidden")
    passed = pass_step(Compose(ExcludeTransform("hidden", "speed")), after, after, given)
    assert list(passed.keys()) == ["hidden"]
