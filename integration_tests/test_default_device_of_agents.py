"""Environments, policies, collectors, transforms, losses and tokens under any default device.

Networks are made before, on the CPU, as are losses with parameters of their own.
"""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from tensordict import NonTensorStack, TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
from torch import nn

from catalogue.environments import LivesEnv, allowed_steps
from catalogue.transforms import STEPPING, TRANSFORMS
from default_device import assert_same_under_any_default
from rl_collect import Collector, MultiSyncCollector
from rl_envs import (
    GymEnv,
    GymVectorEnv,
    ParallelEnv,
    Pendulums,
    ResizedEnv,
    SerialEnv,
    TransformedEnv,
    check_env_specs,
)
from rl_envs.testing import CountingEnv, GroupsEnv, MultiAgentEnv, NestedEnv
from rl_layout import set_recurrent_mode
from rl_layout.keys import TRAJ_IDS
from rl_layout.synthetic import trajectories
from rl_policies import (
    MLP,
    Actor,
    AdditiveGaussianModule,
    EGreedyModule,
    IndependentNormal,
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
    TanhNormal,
    TruncatedNormal,
    ValueOperator,
)
from rl_record import Evaluator
from rl_recurrent import GRUModule, LSTMModule
from rl_replay import LazyTensorStorage, TensorDictReplayBuffer
from rl_specs import Unbounded
from rl_tensordict import CPU
from rl_text import (
    AdaptiveKLController,
    ByteTokenizer,
    PairwiseDataset,
    PromptData,
    PromptGroupSampler,
    RolloutFromModel,
    TensorDictTokenizer,
    Tokenizer,
    get_dataloader,
    padded,
    place_rewards,
    sample_completions,
)
from rl_text.testing import TinyModel
from rl_transforms import (
    Compose,
    GroupDone,
    HindsightRelabel,
    InitTracker,
    MultiStepTransform,
    NextStateReconstructor,
    NoopReset,
    ObservationNorm,
    RandomCropTensorDict,
    RewardClipping,
    RewardScaling,
    RewardSum,
    StepCounter,
    TensorDictPrimer,
    VecNorm,
)
from rl_value import (
    GAE,
    A2CLoss,
    ClipPPOLoss,
    CQLLoss,
    DQNLoss,
    GRPOAdvantage,
    IQLLoss,
    SACLoss,
    TD3Loss,
    TDLambdaEstimator,
    VTrace,
)

FOUR_STEPS, GAINED = [(4, "terminated")], ("agents", "reward")
ENVIRONMENTS = {
    "of Gymnasium": lambda: GymEnv("CartPole-v1"),
    "with floats": lambda: GymEnv("Pendulum-v1"),
    "a vector": lambda: GymVectorEnv("CartPole-v1", 3),
    "one after the other": lambda: SerialEnv(2, lambda: GymEnv("CartPole-v1")),
    "in processes": lambda: ParallelEnv(2, lambda: GymEnv("CartPole-v1"), mp_start_method="fork"),
    "resized": lambda: ResizedEnv(SerialEnv(4, lambda: CountingEnv(3)), (2, 2)),
    "tensors": lambda: Pendulums(3, device="cpu"),
    "agents": lambda: MultiAgentEnv(3, batch_size=(2,)),
    "groups": GroupsEnv,
    "nested": lambda: NestedEnv(FOUR_STEPS),
    "tracked": lambda: TransformedEnv(
        GymEnv("CartPole-v1"),
        Compose(
            InitTracker(),
            StepCounter(9),
            RewardSum(),
            TensorDictPrimer(drawn=Unbounded((2,), device="cpu"), random=True),
            NoopReset(3, noop_action=torch.tensor([True, False], device=CPU)),
        ),
    ),
    "scaled": lambda: TransformedEnv(
        GymEnv("Pendulum-v1"),
        Compose(
            RewardScaling(0.5, 2.0),
            RewardClipping(-9.0, 9.0),
            ObservationNorm(0.5, 2.0),
            VecNorm(),
        ),
    ),
    "tracked agents": lambda: TransformedEnv(
        MultiAgentEnv(3),
        Compose(InitTracker(), StepCounter(), RewardSum([GAINED], [("agents", "sum")])),
    ),
    "flags of the root": lambda: TransformedEnv(NestedEnv(FOUR_STEPS), GroupDone("data")),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_environments_are_stepped(name):
    def flow():
        env = ENVIRONMENTS[name]()
        env.set_seed(3)
        check_env_specs(env)
        env.set_seed(3)
        torch.manual_seed(7)
        found = env.rollout(25, break_when_any_done=False)
        root = env.rand_action(env.reset())
        found = [found, *env.step_and_maybe_reset(root)]
        env.close()
        return found

    assert_same_under_any_default(flow)


EVERY = [*TRANSFORMS, *STEPPING]


@pytest.mark.parametrize(
    "transform", EVERY, ids=lambda one: f"{type(one).__name__}{EVERY.index(one)}"
)
def test_transforms_change_steps_and_rows(transform):
    plain = allowed_steps(LivesEnv())

    def flow():
        found = [copy.deepcopy(transform)(plain)]
        if transform not in STEPPING:
            buffer = TensorDictReplayBuffer(
                storage=LazyTensorStorage(20), transform=copy.deepcopy(transform)
            )
            buffer.extend(plain)
            found.append(buffer[:])
        return found

    assert_same_under_any_default(flow)


def played_rows():
    """Rows with what rows of a buffer and of an actor have."""
    rows = trajectories([5, 9, 1, 7])
    for root in ((), ("next",)):
        rows[(*root, "desired_goal")] = rows["observation"] + 1
        rows[(*root, "achieved_goal")] = rows[(*root, "observation")]
    return rows


def reached(rows):
    return (rows["next", "achieved_goal"] == rows["desired_goal"]).all(-1).float()


OF_ROWS = {
    "n steps": lambda: MultiStepTransform(3, gamma=0.9),
    "goals": lambda: HindsightRelabel(reached, her_ratio=0.7),
    "next observations": lambda: NextStateReconstructor(["observation"]),
}


@pytest.mark.parametrize("name", OF_ROWS)
def test_transforms_of_buffers_change_rows(name):
    rows = played_rows()
    written = rows.exclude(("next", "observation")) if name == "next observations" else rows

    def flow():
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(40), transform=OF_ROWS[name](), batch_size=9
        )
        buffer.extend(written)
        for row in rows[:4] if name == "n steps" else ():
            buffer.add(row)
        return [buffer.sample(), buffer[:]]

    assert_same_under_any_default(flow)


def test_rows_are_cropped():
    rows = trajectories([6] * 4).reshape(4, 6)
    assert_same_under_any_default(lambda: RandomCropTensorDict(3)(rows))


LOGITS = TensorDictModule(MLP(4, 2, num_cells=[8]), ["observation"], ["logits"])
SCALES = nn.Sequential(MLP(3, 2, num_cells=[8]), NormalParamExtractor())
PUSHES, PENDULUM = (GymEnv(name).action_spec for name in ("CartPole-v1", "Pendulum-v1"))


def actor_of(distribution, **bounds):
    """An actor of a pendulum."""
    net = TensorDictModule(SCALES, ["observation"], ["loc", "scale"])
    return ProbabilisticActor(
        net,
        ["loc", "scale"],
        distribution_class=distribution,
        distribution_kwargs=bounds,
        return_log_prob=True,
    )


CHOICES = ProbabilisticActor(
    LOGITS, ["logits"], distribution_class=OneHotCategorical, return_log_prob=True
)
LOGITS_AND_MODE = TensorDictSequential(
    LOGITS, TensorDictModule(lambda logits: logits == logits.amax(-1, True), ["logits"], ["action"])
)
VALUES = QValueActor(MLP(4, 2, num_cells=[8]), spec=PUSHES)
POLICIES = {
    "choices": ("CartPole-v1", CHOICES),
    "greedy": (
        "CartPole-v1",
        TensorDictSequential(
            VALUES, EGreedyModule(GymEnv("CartPole-v1").action_spec, eps_init=0.5)
        ),
    ),
    "between bounds": ("Pendulum-v1", actor_of(TanhNormal, low=-2.0, high=2.0)),
    "conditioned": ("Pendulum-v1", actor_of(TruncatedNormal, low=-2.0, high=2.0)),
    "without bounds": ("Pendulum-v1", actor_of(IndependentNormal)),
    "with noise": (
        "Pendulum-v1",
        TensorDictSequential(Actor(MLP(3, 1), spec=PENDULUM), AdditiveGaussianModule(PENDULUM)),
    ),
}


@pytest.mark.filterwarnings("ignore:split_trajs pads")
@pytest.mark.parametrize("name", POLICIES)
def test_collectors_play_policies(name):
    env, policy = POLICIES[name]

    def flow():
        found = []
        for options in ({}, {"trajs_per_batch": 1}, {"split_trajs": True}, {"compact_obs": True}):
            collector = Collector(
                SerialEnv(2, lambda: GymEnv(env, max_episode_steps=9)),
                policy,
                frames_per_batch=24,
                **options,
            )
            collector.set_seed(0)
            found += [collector.next(), collector.next()]
            state = collector.state_dict()
            collector.load_state_dict(state)
            found.append(collector.next())
        return [one.exclude(TRAJ_IDS) for one in found]  # a collector has ids of its own

    assert_same_under_any_default(flow)


def test_workers_play():
    def flow():
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(99), batch_size=9)
        makers = [lambda: GymEnv("CartPole-v1")] * 2
        options = {"frames_per_batch": 20, "total_frames": 60, "mp_start_method": "fork"}
        with MultiSyncCollector(makers, LOGITS_AND_MODE, **options) as collector:
            collector.set_seed(0)
            found = list(collector)
        with MultiSyncCollector(
            makers, LOGITS_AND_MODE, replay_buffer=buffer, **options
        ) as collector:
            collector.set_seed(0)
            for _ in collector:
                pass
        found.append(buffer[:].exclude("collector"))
        return [one.exclude(TRAJ_IDS) for one in found]

    assert_same_under_any_default(flow)


def test_policies_are_evaluated():
    def flow():
        env = SerialEnv(2, lambda: GymEnv("CartPole-v1", max_episode_steps=30))
        found = Evaluator(env, CHOICES, 5).evaluate()
        return [found.returns.tolist(), found.lengths.tolist()]

    assert_same_under_any_default(flow)


@pytest.mark.parametrize("backend", ["auto", "scan", "compiled", "pad"])
@pytest.mark.parametrize("module", [LSTMModule, GRUModule])
def test_recurrent_modules_run_over_segments(module, backend):
    net = module(
        2, 6, num_layers=2, in_key="observation", out_key="features", recurrent_backend=backend
    )
    rows = net.make_tensordict_primer()(trajectories([5, 9, 1, 7], first_step=2))

    def flow():
        with set_recurrent_mode("recurrent"):
            found = net(rows.copy())
        found["features"].sum().backward()
        slope = next(net.parameters()).grad.clone()
        net.zero_grad()
        return [found.detach(), slope]

    assert_same_under_any_default(flow)


def rows_of(env, policy):
    """What a policy plays in an environment, with the truncations of its time limit."""
    made = TransformedEnv(GymEnv(env, max_episode_steps=7), InitTracker())
    made.set_seed(0)
    return made.rollout(40, policy, break_when_any_done=False).detach()


def critic(size):
    return ValueOperator(MLP(size, 1, num_cells=[8]))


def judge():
    return ValueOperator(MLP(4, 1, num_cells=[8]), ["observation", "action"])


def between():
    return copy.deepcopy(POLICIES["between bounds"][1])


CARTPOLE = rows_of("CartPole-v1", CHOICES)
SWINGS = rows_of("Pendulum-v1", between())
ACTOR = Actor(MLP(3, 1, num_cells=[8]), spec=PENDULUM)
LOSSES = {
    "clipped PPO": (ClipPPOLoss(CHOICES, critic(4)), CARTPOLE),
    "A2C": (A2CLoss(CHOICES, critic(4)), CARTPOLE),
    "DQN": (DQNLoss(VALUES, double_dqn=True), CARTPOLE),
    "SAC": (SACLoss(between(), judge(), action_spec=PENDULUM), SWINGS),
    "TD3": (TD3Loss(ACTOR, judge(), bounds=(-2.0, 2.0)), SWINGS),
    "IQL": (IQLLoss(between(), judge(), critic(3)), SWINGS),
    "CQL": (CQLLoss(between(), judge(), action_spec=PENDULUM, with_lagrange=True), SWINGS),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_computed(name):
    loss, rows = LOSSES[name]
    if name in ("clipped PPO", "A2C"):
        rows = GAE(gamma=0.9, lmbda=0.9, value_network=critic(4))(rows.copy())

    def flow():
        found = loss(rows.copy())
        total = sum(value for key, value in found.items() if key.startswith("loss"))
        total.backward()
        slopes = [one.grad.clone() for one in loss.parameters() if one.grad is not None]
        loss.zero_grad()
        return [found.detach(), slopes]

    assert_same_under_any_default(flow)


def test_what_is_not_finite_is_named():
    rows = SWINGS.clone()
    rows["next", "reward"][3] = math.nan
    loss = LOSSES["TD3"][0]

    def flow():
        with pytest.raises(ValueError, match="reward") as raised:
            loss(rows.copy())
        return str(raised.value)

    assert_same_under_any_default(flow)


@pytest.mark.parametrize("kind", [GAE, TDLambdaEstimator, VTrace])
def test_advantages_are_estimated(kind):
    options = {"lmbda": 0.9} if kind is not VTrace else {"actor_network": CHOICES}
    estimator = kind(gamma=0.9, value_network=critic(4), **options)
    assert_same_under_any_default(lambda: estimator(CARTPOLE.copy()).detach())


MODEL = TinyModel(9)


def test_completions_are_sampled_and_drawn_by_group():
    def flow():
        rows = sample_completions(
            MODEL, [[1, 2], [3], [4, 5, 6]], max_new_tokens=4, num_samples=2, eos_token_id=7
        )
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(99), sampler=PromptGroupSampler(num_groups=1), batch_size=16
        )
        buffer.extend(rows)
        scores = GRPOAdvantage()(place_rewards(rows.copy(), [1.0, 0.5, 0, 0.25, 2, 1]))
        shown = [rows, scores, padded(rows, 0)]
        return [one.exclude(TRAJ_IDS) for one in (*shown, buffer.sample())]

    assert_same_under_any_default(flow)


def test_rollouts_of_language_models_are_scored():
    model = copy.deepcopy(MODEL)
    model.config = SimpleNamespace(eos_token_id=1, pad_token_id=0)

    def score(input_ids, attention_mask):
        return ((input_ids == 5) & (attention_mask > 0)).sum(-1).float()

    ids = torch.tensor([[2, 3, 0], [4, 5, 6]])
    mask, last = torch.tensor([[1, 1, 0], [1, 1, 1]]), torch.tensor([1, 2])
    prompts = PromptData(ids, mask, last, batch_size=[2])

    def flow():
        rollouts = RolloutFromModel(model, model, score, max_new_tokens=4)
        controller = AdaptiveKLController(init_kl_coef=0.1, target=2.0, horizon=100)
        controller.update([0.5, 0.25])
        steps = rollouts.rollout_from_data(prompts)
        return [steps.exclude(TRAJ_IDS), controller.kl_coef]

    assert_same_under_any_default(flow)


def test_texts_are_tokenised_and_loaded(tmp_path_factory):
    examples = [{"prompt": letter * 3, "label": "x"} for letter in "abcdefgh"]
    pairs = [{"prompt": "2 + 2 =", "chosen": " 4", "rejected": one} for one in (" 5", " 7")]

    def flow():
        torch.manual_seed(2)
        loader = get_dataloader(
            2, 8, PromptData, "cpu", examples,
            root_dir=tmp_path_factory.mktemp("prompts"), tokenizer=ByteTokenizer(),
        )  # fmt: skip
        found = [next(loader).input_ids for _ in range(3)]
        data = PairwiseDataset.from_dataset(
            "train", pairs, 12, tmp_path_factory.mktemp("pairs"), tokenizer=ByteTokenizer()
        )
        found += [data.chosen_data.input_ids, data.rejected_data.input_ids]
        texts = TensorDict({"text": NonTensorStack("a", "bc")}, [2])
        tokenizer = TensorDictTokenizer(ByteTokenizer(), 4, key="text")
        return [
            *found,
            tokenizer({"text": ["a", "bc"]}),
            Tokenizer(["text"], ["tokens"], tokenizer=ByteTokenizer(), max_length=4)(texts)[
                "tokens"
            ],
        ]

    assert_same_under_any_default(flow)
