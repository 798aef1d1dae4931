"""Every transform that works alone keeps the same promises, in every place."""

# ruff: noqa: D101, D102, D103 - the name of a test is its promise

from __future__ import annotations

import copy

import pytest
import torch
from tensordict.nn import InteractionType, TensorDictModule

from rl_collect import Collector
from rl_envs import ParallelEnv, SerialEnv, TransformedEnv, check_env_specs
from rl_envs.testing import ScriptedEnv
from rl_layout import check_layout
from rl_policies import OneHotCategorical, ProbabilisticActor
from rl_replay import LazyTensorStorage, TensorDictReplayBuffer
from rl_specs import Binary, Bounded, Composite, Unbounded
from rl_tensordict import leaves
from rl_transforms import (
    ActionMask,
    BinarizeReward,
    BurnIn,
    CatFrames,
    CatTensors,
    CenterCrop,
    DeviceCastTransform,
    DoubleToFloat,
    DTypeCastTransform,
    EndOfLife,
    ExcludeTransform,
    FiniteTensorDictCheck,
    FlattenObservation,
    FrameSkip,
    GrayScale,
    HindsightRelabel,
    MultiStep,
    MultiStepTransform,
    NextObservationDelta,
    NextStateReconstructor,
    NoopReset,
    ObservationNorm,
    PermuteTransform,
    RandomCropTensorDict,
    RemoveEmptySpecs,
    RenameTransform,
    Resize,
    RewardClipping,
    RewardScaling,
    RewardSum,
    SelectTransform,
    SignTransform,
    SqueezeTransform,
    TimeMaxPool,
    ToTensorImage,
    UnsqueezeTransform,
    VecNorm,
)

ENDINGS = [(3, "terminated"), (5, "truncated"), (1, "terminated")]


class PicturesEnv(ScriptedEnv):
    """Shows an image, a vector of doubles, and its own numbers: (episode, step)."""

    def __init__(self, first_episode=0, batch_size=()):
        super().__init__(ENDINGS, batch_size, first_episode)
        rows = self.batch_size
        self.observation_spec = Composite(
            pixels=Bounded(0, 255, (*rows, 6, 7, 3), dtype=torch.uint8),
            image=Bounded(0.0, 1.0, (*rows, 3, 6, 7)),
            speed=Unbounded((*rows, 1), dtype=torch.float64),
            observation=Unbounded((*rows, 2)),
            numbers=Bounded(0.0, 1e3, (*rows, 2)),
            is_init=Binary(shape=(*rows, 1), dtype=torch.bool),
            shape=rows,
        )

    def _show(self):
        seen = torch.stack([self._episode, self._count], -1).float()
        shape = (*self.batch_size, 6, 7, 3)
        ramp = torch.arange(6 * 7 * 3).reshape(6, 7, 3)
        shift = (self._episode * 7 + self._count * 3).reshape(*self.batch_size, 1, 1, 1)
        pixels = ((ramp + shift) % 256).to(torch.uint8).expand(shape)
        root = self.observation_spec.zero()
        root["pixels"], root["image"] = pixels, pixels.movedim(-1, -3) / 255
        root["numbers"], root["is_init"] = seen.flip(-1), (self._count == 0).unsqueeze(-1)
        root["observation"], root["speed"] = seen, seen.double().sum(-1, keepdim=True)
        return root


def played(env, steps=14):
    """Steps in which rows end at different times and are reset one by one."""
    actions = torch.Generator().manual_seed(0)

    def act(root):
        choice = torch.randint(2, env.batch_size, generator=actions)
        return root.set("action", torch.nn.functional.one_hot(choice, 2).bool())

    return env.rollout(steps, act, break_when_any_done=False)


def frozen_norm():
    norm = VecNorm(["observation", "numbers"])
    norm.update(played(PicturesEnv()))
    return norm.freeze()


class Onward:
    """A recurrent module, as far as `BurnIn` is concerned."""

    in_keys, out_keys = ["observation"], [("next", "observation")]

    def __call__(self, rows):
        return rows.set(("next", "observation"), rows["observation"] + 100)


def distance(rows):
    return (rows["next", "observation"] - rows["numbers"]).norm(dim=-1)


TRANSFORMS = [
    RenameTransform(["observation"], [("seen", "vector")]),
    DTypeCastTransform(torch.float32, torch.float64, ["observation"]),
    DoubleToFloat(),
    DeviceCastTransform("cpu"),
    FlattenObservation(-3, -1, ["pixels"]),
    PermuteTransform((-1, -3, -2), ["pixels"]),
    FiniteTensorDictCheck(),
    RemoveEmptySpecs(),
    BinarizeReward(),
    UnsqueezeTransform(-2),
    SqueezeTransform(-1, ["speed"]),
    CatTensors(["observation", "numbers"], "all"),
    ToTensorImage(),
    ToTensorImage(in_keys=["pixels"], out_keys=["float_pixels"]),
    GrayScale(["image"]),
    Resize(4, 3, in_keys=["image"]),
    CenterCrop(4, in_keys=["image"]),
    RewardScaling(1.0, -2.0),
    RewardClipping(0.0, 2.0),
    SignTransform(),
    ObservationNorm(torch.tensor(2.0), torch.tensor(4.0), standard_normal=True),
    frozen_norm(),
    CatFrames(3, -3, ["image"]),
    CatFrames(4, -1, ["observation"], [("seen", "last")], "constant", -1.0),
    TimeMaxPool(["numbers"], T=3),
    TimeMaxPool(["image", "observation"], [("pooled", "image"), "most"], T=2),
]


def named(transform):
    return f"{type(transform).__name__}{TRANSFORMS.index(transform)}"


def assert_same(one, other):
    mine, theirs = dict(leaves(one)), dict(leaves(other))
    assert mine.keys() == theirs.keys()
    for key, value in mine.items():
        assert value.dtype == theirs[key].dtype, key
        torch.testing.assert_close(value, theirs[key], rtol=0, atol=0, equal_nan=True)


def without_marks(rows):
    """What only buffers mark, and what whole trajectories have no need of."""
    mark = rows.get(("collector", "history_missing"), None)
    assert mark is None or not mark.any()
    return rows.exclude(("collector", "history_missing"))


@pytest.mark.parametrize("transform", TRANSFORMS, ids=named)
class TestEveryTransform:
    @pytest.mark.parametrize("rows", [(), (3,)])
    def test_an_environment_does_what_its_specs_say(self, transform, rows):
        check_env_specs(TransformedEnv(PicturesEnv(batch_size=rows), copy.deepcopy(transform)))

    @pytest.mark.parametrize("rows", [(), (3,)])
    def test_steps_and_resets_are_what_rows_become(self, transform, rows):
        plain = played(PicturesEnv(batch_size=rows))
        before = plain.clone()
        stepped = played(TransformedEnv(PicturesEnv(batch_size=rows), copy.deepcopy(transform)))
        assert_same(stepped, without_marks(transform(plain)))
        assert_same(plain, before)

    def test_transform_is_equal_around_and_inside_a_serial_environment(self, transform):
        def inside():
            return TransformedEnv(PicturesEnv(2), copy.deepcopy(transform))

        around = TransformedEnv(SerialEnv(2, lambda: PicturesEnv(2)), copy.deepcopy(transform))
        assert_same(played(around), played(SerialEnv(2, inside)))

    def test_transform_works_inside_a_parallel_environment(self, transform):
        def inside():
            return TransformedEnv(PicturesEnv(2), copy.deepcopy(transform))

        parallel = ParallelEnv(2, inside, mp_start_method="fork")
        try:
            assert_same(played(parallel), played(SerialEnv(2, inside)))
        finally:
            parallel.close()

    def test_a_buffer_hands_out_transformed_rows_and_keeps_its_own(self, transform):
        rows = played(PicturesEnv())
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), transform=transform)
        buffer.extend(rows)
        found = buffer[:].exclude("index", ("collector", "row"))
        assert_same(found, transform(transform.inv(rows)))

    def test_it_is_saved_and_loaded(self, transform):
        other = copy.deepcopy(transform)
        other.load_state_dict(transform.state_dict())
        rows = played(PicturesEnv())
        assert_same(other(rows), transform(rows))


class LivesEnv(PicturesEnv):
    """Shows how many lives are left, too, and which actions are allowed: after odd steps not 0."""

    def __init__(self, first_episode=0, batch_size=()):
        super().__init__(first_episode, batch_size)
        rows = self.batch_size
        spec = self.observation_spec.clone()
        spec.set("lives", Unbounded((*rows, 1), dtype=torch.int64))
        spec.set("action_mask", Binary(shape=(*rows, 2), dtype=torch.bool))
        self.observation_spec = spec

    def _show(self):
        root = super()._show()
        allowed = torch.ones(*self.batch_size, 2, dtype=torch.bool)
        allowed[..., 0] = self._count % 2 == 0
        root["lives"] = (3 - self._count // 2).unsqueeze(-1)
        return root.set("action_mask", allowed)


def allowed_steps(env, steps=14):
    """Steps whose first choice is taken where it is allowed, or the other one."""

    def act(root):
        first = root["action_mask"][..., 0]
        return root.set("action", torch.stack([first, ~first], -1))

    return env.rollout(steps, act, break_when_any_done=False)


STEPPING = [EndOfLife(), FrameSkip(2), NoopReset(2, random=False)]


@pytest.mark.parametrize(
    "transform", [*STEPPING, ActionMask()], ids=lambda transform: type(transform).__name__
)
class TestEveryTransformOfEnvironments:
    @pytest.mark.parametrize("rows", [(), (3,)])
    def test_an_environment_does_what_its_specs_say(self, transform, rows):
        env = LivesEnv(batch_size=rows)
        if rows and isinstance(transform, NoopReset):  # whose rows must be able to stand still
            env = SerialEnv(3, LivesEnv)
        check_env_specs(TransformedEnv(env, copy.deepcopy(transform)), num_steps=9)

    def test_driver_is_equal_around_and_inside_a_serial_environment(self, transform):
        def inside():
            return TransformedEnv(LivesEnv(2), copy.deepcopy(transform))

        around = TransformedEnv(SerialEnv(2, lambda: LivesEnv(2)), copy.deepcopy(transform))
        found = allowed_steps(around)
        if isinstance(transform, ActionMask):  # the environment that draws the actions must see it
            with pytest.raises(ValueError, match="cannot sit in a worker"):
                SerialEnv(2, inside)
            return
        assert_same(found, allowed_steps(SerialEnv(2, inside)))
        parallel = ParallelEnv(2, inside, mp_start_method="fork")
        try:
            assert_same(allowed_steps(parallel), found)
        finally:
            parallel.close()

    def test_driver_works_around_a_parallel_environment(self, transform):
        serial = TransformedEnv(SerialEnv(2, lambda: LivesEnv(2)), copy.deepcopy(transform))
        with ParallelEnv(2, lambda: LivesEnv(2), mp_start_method="fork") as base:
            parallel = TransformedEnv(base, copy.deepcopy(transform))
            assert_same(allowed_steps(parallel), allowed_steps(serial))

    def test_a_saved_environment_goes_on(self, transform):
        env, other = (TransformedEnv(LivesEnv(), copy.deepcopy(transform)) for _ in range(2))
        root = env.step_and_maybe_reset(env.rand_action(env.reset()))[1]
        other.load_state_dict(env.state_dict())
        batches = []
        for one in (env, other):
            torch.manual_seed(0)
            played_on = one.rollout(9, auto_reset=False, tensordict=root, break_when_any_done=False)
            batches.append(played_on)
        assert_same(*batches)

    def test_transform_leaves_its_input_unchanged(self, transform):
        rows = allowed_steps(LivesEnv())
        before = rows.clone()
        transform(rows)
        assert_same(rows, before)


def test_lives_are_the_same_in_an_environment_and_in_a_buffer():
    stepped = allowed_steps(TransformedEnv(LivesEnv(batch_size=(3,)), EndOfLife()))
    plain = allowed_steps(LivesEnv(batch_size=(3,)))
    assert_same(stepped.exclude("end-of-life"), EndOfLife()(plain))
    assert stepped["next", "end-of-life"].any()
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), transform=EndOfLife(mark_done=True)
    )
    buffer.extend(plain[0])
    found = buffer[:]
    marked = stepped["next", "end-of-life"][0]
    truncated = plain["next", "truncated"][0]
    assert torch.equal(found["next", "done"], marked)
    assert torch.equal(found["next", "terminated"], marked & ~truncated)


def test_masked_actions_are_drawn_and_chosen_by_the_mask():
    env = TransformedEnv(LivesEnv(batch_size=(3,)), ActionMask())
    rows = env.rollout(30, break_when_any_done=False)
    assert (rows["action"] & ~rows["action_mask"]).sum() == 0
    assert rows["action"].any(-1).all()
    assert rows["action"][rows["action_mask"].all(-1)].float().mean(0).min() > 0.2
    around = TransformedEnv(env, RewardSum()).rollout(30, break_when_any_done=False)
    assert (around["action"] & ~around["action_mask"]).sum() == 0
    first = torch.tensor([[True, False]] * 3)
    with pytest.raises(ValueError, match="'action_mask' forbids the action in rows"):
        env.rollout(9, lambda root: root.set("action", first), break_when_any_done=False)
    with pytest.raises(ValueError, match="pass the root"):
        env.rand_action()


def test_a_masked_policy_reads_the_mask_by_its_key():
    net = TensorDictModule(lambda seen: torch.zeros(*seen.shape[:-1], 2), ["numbers"], ["logits"])
    env = TransformedEnv(LivesEnv(batch_size=(3,)), ActionMask())
    actor = ProbabilisticActor(
        net,
        spec=env.action_spec,
        in_keys={"logits": "logits", "mask": "action_mask"},
        distribution_class=OneHotCategorical,
        default_interaction_type=InteractionType.RANDOM,
    )
    rows = env.rollout(30, actor, break_when_any_done=False)
    assert (rows["action"].bool() & ~rows["action_mask"]).sum() == 0


def test_random_frames_of_a_collector_are_drawn_by_the_mask():
    def act(root):
        first = root["action_mask"][..., 0]
        return root.set("action", torch.stack([first, ~first], -1))

    env = TransformedEnv(LivesEnv(batch_size=(3,)), ActionMask())
    collector = Collector(env, act, frames_per_batch=30, init_random_frames=30)
    drawn, chosen = collector.next(), collector.next()
    assert (drawn["action"] & ~drawn["action_mask"]).sum() == 0
    assert drawn["action"][drawn["action_mask"].all(-1)].float().mean(0).min() > 0.1
    assert (chosen["action"] == act(chosen.copy())["action"]).all()


@pytest.mark.parametrize(
    "transform",
    [
        *STEPPING,
        ActionMask(),
        CatFrames(3, -1, in_keys=["numbers"], out_keys=["stack"]),
        TimeMaxPool(in_keys=["numbers"], out_keys=["most"], T=3),
        VecNorm(in_keys=["numbers"]),
        RewardSum(),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_collected_steps_do_not_depend_on_the_batch_size(transform):
    def act(root):
        first = root["action_mask"][..., 0]
        return root.set("action", torch.stack([first, ~first], -1))

    found = []
    for steps in (4, 12):
        env = TransformedEnv(SerialEnv(3, LivesEnv), copy.deepcopy(transform))
        with Collector(env, act, frames_per_batch=3 * steps, total_frames=36) as collector:
            rows = torch.cat(list(collector), -1)
        assert not check_layout(rows).errors
        found.append(rows.exclude(("collector", "traj_ids")))
    assert_same(*found)


@pytest.mark.parametrize(
    "transform",
    [
        BurnIn(Onward(), 2),
        HindsightRelabel(
            distance,
            her_ratio=1,
            strategy="final",
            goal_key="numbers",
            achieved_goal_key="observation",
        ),
    ],
    ids=lambda transform: type(transform).__name__,
)
class TestEveryTransformOfSamples:
    def test_an_environment_refuses_it(self, transform):
        with pytest.raises(ValueError, match="cannot sit in an environment"):
            TransformedEnv(PicturesEnv(), transform)

    def test_a_buffer_hands_out_transformed_rows_and_keeps_its_own(self, transform):
        rows = played(PicturesEnv())
        before = rows.clone()
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), transform=transform)
        buffer.extend(rows)
        found = buffer[:].exclude("index", ("collector", "row"))
        assert_same(found, transform(rows))
        assert_same(rows, before)
        assert not torch.equal(found["next", "reward"], rows["next", "reward"])

    def test_it_is_saved_and_loaded(self, transform):
        other = copy.deepcopy(transform)
        other.load_state_dict(transform.state_dict())
        rows = played(PicturesEnv())
        assert_same(other(rows), transform(rows))


UNKNOWN = ["nowhere"]
READING = [
    RenameTransform(UNKNOWN, ["there"]),
    SelectTransform("nowhere"),
    ExcludeTransform("nowhere"),
    DTypeCastTransform(torch.float32, torch.float64, UNKNOWN),
    DoubleToFloat(UNKNOWN),
    FlattenObservation(-2, -1, UNKNOWN),
    UnsqueezeTransform(-1, UNKNOWN),
    SqueezeTransform(-1, UNKNOWN),
    CatTensors(["observation", "nowhere"]),
    ToTensorImage(in_keys=UNKNOWN),
    GrayScale(UNKNOWN),
    Resize(4, in_keys=UNKNOWN),
    CenterCrop(4, in_keys=UNKNOWN),
    RewardScaling(0.0, 1.0, UNKNOWN),
    RewardClipping(0.0, 1.0, UNKNOWN),
    SignTransform(UNKNOWN),
    RewardSum(UNKNOWN),
    ObservationNorm(0.0, 1.0, UNKNOWN),
    VecNorm(UNKNOWN),
    CatFrames(3, -1, UNKNOWN),
    TimeMaxPool(UNKNOWN, T=2),
    ActionMask("nowhere"),
    ActionMask(mask_key="nowhere"),
    EndOfLife(lives_key="nowhere"),
    EndOfLife(done_key="nowhere"),
    NextObservationDelta(UNKNOWN),
]
QUIET = (
    ActionMask,
    ExcludeTransform,
    NextObservationDelta,
    RewardSum,
)  # whose rows may well lack the key


def numbered(transform):
    return f"{type(transform).__name__}{READING.index(transform)}"


@pytest.mark.parametrize("transform", READING, ids=numbered)
def test_an_unknown_key_is_named_by_every_transform(transform):
    rows = allowed_steps(LivesEnv())
    with pytest.raises((KeyError, ValueError), match="nowhere"):
        TransformedEnv(LivesEnv(), copy.deepcopy(transform)).rollout(2)
    if not isinstance(transform, QUIET):
        with pytest.raises((KeyError, ValueError), match="nowhere"):
            copy.deepcopy(transform)(rows)


@pytest.mark.parametrize(
    "transform",
    [
        ToTensorImage(),
        ToTensorImage(in_keys=["speed"]),
        GrayScale(["pixels"]),
        GrayScale(["speed"]),
        Resize(4, in_keys=["speed"]),
        CenterCrop(4, in_keys=["speed"]),
        CenterCrop(9, in_keys=["image"]),
    ],
    ids=lambda transform: type(transform).__name__ + transform.in_keys[0],
)
def test_an_image_of_the_wrong_layout_is_refused_by_its_key(transform):
    rows = played(PicturesEnv())
    if isinstance(transform, ToTensorImage) and transform.in_keys == ["pixels"]:
        rows["pixels"] = torch.zeros(
            14, 3, 6, 7, dtype=torch.uint8
        )  # its channels are first already
    named = transform.in_keys[0]
    with pytest.raises(ValueError, match=f"{type(transform).__name__}, '{named}'.*(image|keep)"):
        transform(rows)


@pytest.mark.parametrize("transform", [ObservationNorm(), VecNorm()], ids=["fixed", "running"])
def test_statistics_that_do_not_exist_yet_are_asked_for(transform):
    rows = played(PicturesEnv())
    with pytest.raises(RuntimeError, match="no statistics"):
        transform(rows)


@pytest.mark.parametrize(
    ("transform", "wrong"),
    [
        (ActionMask(), "buffer"),
        (FrameSkip(2), "buffer"),
        (NoopReset(), "buffer"),
        (EndOfLife(mark_done=True), "environment"),
        (BurnIn(Onward(), 2), "environment"),
        (HindsightRelabel(distance, goal_key="numbers"), "environment"),
        (RandomCropTensorDict(2), "environment"),
        (MultiStep(0.9, 2), "environment"),
        (MultiStepTransform(2, 0.9), "environment"),
        (NextStateReconstructor(), "environment"),
        (NextObservationDelta(), "worker"),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_a_transform_on_the_wrong_side_is_refused_by_name(transform, wrong):
    put = {
        "buffer": lambda: TensorDictReplayBuffer(
            storage=LazyTensorStorage(20), transform=transform
        ),
        "environment": lambda: TransformedEnv(LivesEnv(), transform),
        "worker": lambda: SerialEnv(2, lambda: TransformedEnv(LivesEnv(), transform)),
    }
    name = type(transform).__name__
    with pytest.raises(ValueError, match=f"{name} cannot sit in an? {wrong}: put it "):
        put[wrong]()
