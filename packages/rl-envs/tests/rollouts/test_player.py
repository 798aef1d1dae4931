import gymnasium
import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule

from rl_envs import (
    GymEnv,
    GymVectorEnv,
    Pendulums,
    SerialEnv,
    TransformedEnv,
)
from rl_envs.rollouts import RolloutPlayer, RolloutRequest, column_steps
from rl_envs.testing import CountingEnv, EpisodeStepEnv, GroupsEnv, MultiAgentEnv
from rl_envs.testing.plain_rollout import plain_rollout
from rl_specs import Binary, Bounded
from rl_transforms import (
    ActionMask,
    InitTracker,
    NextObservationDelta,
    RewardSum,
    StepCounter,
)

ENDINGS = [(2, "terminated"), (3, "truncated"), (1, "terminated")]


def short(max_steps=7):
    return GymEnv("CartPole-v1", max_episode_steps=max_steps)


ENVS = {
    "one": lambda: EpisodeStepEnv(ENDINGS),
    "rows": lambda: EpisodeStepEnv(ENDINGS, batch_size=(2,)),
    "groups": GroupsEnv,
    "agents": lambda: MultiAgentEnv(3, ENDINGS),
    "gym": short,
    "serial": lambda: SerialEnv(3, [short, lambda: short(4), lambda: short(5)]),
    "vector": lambda: GymVectorEnv("CartPole-v1", 3, max_episode_steps=7),
    "transformed": lambda: TransformedEnv(short(), StepCounter(5), RewardSum(), InitTracker()),
    "serial of transformed": lambda: SerialEnv(2, lambda: TransformedEnv(short(), StepCounter(5))),
    "tensors": lambda: Pendulums(3, max_steps=4),
    "deltas": lambda: TransformedEnv(SerialEnv(2, short), NextObservationDelta(), RewardSum()),
    "deltas of tensors": lambda: TransformedEnv(Pendulums(3, max_steps=4), NextObservationDelta()),
}
STOPS = {
    "any": {},
    "all": {"break_when_any_done": False, "break_when_all_done": True},
    "never": {"break_when_any_done": False},
}


def equal(one, other):
    keys = set(one.keys(True, True))
    return keys == set(other.keys(True, True)) and all(
        torch.equal(one[key], other[key]) for key in keys
    )


def alternating(env):
    """A module whose actions depend on the observation alone."""
    torch.manual_seed(3)
    names = list(env.full_action_spec.keys(True, True))
    choices = [[env.full_action_spec.rand()[name] for name in names] for _ in range(2)]
    seen = next(key for key, _ in env.layout.observation if key[-1] == "observation")
    act = lambda seen: tuple(choices[int(seen.sum().item() * 1e4) % 2])  # noqa: E731
    return TensorDictModule(act, [seen], names)


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("make", ENVS.values(), ids=ENVS)
def test_every_kind_of_steps_plays_what_the_plain_loop_does(make, stop):
    batches = []
    for rollout in (
        lambda env, act: env.rollout(11, act, **STOPS[stop]),
        lambda env, act: plain_rollout(env, act, 11, stop=stop),
    ):
        env = make()
        env.set_seed(5)
        batches.append(rollout(env, alternating(env)))
    for one in getattr(env, "transforms", ()):
        batches[1] = one.rows(batches[1]) if one.rows_only else batches[1]
    assert equal(*batches)


@pytest.mark.parametrize("policy", ["random", "plan", "callable"])
@pytest.mark.parametrize("make", ENVS.values(), ids=ENVS)
def test_a_player_of_several_batches_plays_those_of_rollouts(make, policy):
    played = []
    for is_kept in (True, False):
        env = make()
        env.set_seed(5)
        act = None if policy == "random" else alternating(env)
        if policy == "callable":
            act = act.__call__
        torch.manual_seed(7)
        player = RolloutPlayer(env, act, is_kept=is_kept)
        request = RolloutRequest(6, break_when_any_done=False)
        batches = [player.play(request)]
        for _ in range(3):
            if is_kept:
                root = player.root_after(batches[-1])
            else:
                last = batches[-1][..., -1] if env.reached is None else env.reached
                root = env.maybe_reset(env.next_root(last)).select(*shown(env))
            batches.append(player.play(request, root))
        # rows that are done are reset, which a player of kept columns has done already
        player.root_after(batches[-1])
        batches.append(player.play(request))
        played.append(batches)
    assert all(equal(one, other) for one, other in zip(*played, strict=True))


def shown(env):
    return [key for key, _ in env.layout.shown]


def test_batches_of_one_player_share_no_memory():
    env = SerialEnv(2, short)
    player = RolloutPlayer(env)
    request = RolloutRequest(4, break_when_any_done=False)
    first = player.play(request)
    kept = first.clone()
    second = player.play(request)
    assert equal(first, kept)
    assert not torch.equal(first["next", "observation"], second["next", "observation"])


def test_columns_are_made_once_for_batches_of_one_size(monkeypatch):
    made = []
    columns = column_steps.Columns
    monkeypatch.setattr(
        column_steps, "Columns", lambda *args, **kwargs: made.append(1) or columns(*args, **kwargs)
    )
    player = RolloutPlayer(TransformedEnv(SerialEnv(2, short), RewardSum()))
    for num_steps in (4, 4, 4, 3, 3):
        assert player.play(RolloutRequest(num_steps, break_when_any_done=False)).shape == (
            2,
            num_steps,
        )
    assert len(made) == 2
    monkeypatch.setattr(column_steps, "KEPT_BYTES", 100)
    for _ in range(2):
        player.play(RolloutRequest(5, break_when_any_done=False))
    assert len(made) == 4  # larger columns are not copied


@pytest.mark.parametrize("is_kept", [True, False])
def test_values_of_every_batch_of_a_player_are_checked(is_kept):
    env = SerialEnv(2, lambda: GymEnv(Flagged()))
    player = RolloutPlayer(env, is_kept=is_kept)
    request = RolloutRequest(2, break_when_any_done=False)
    player.play(request)
    env.envs[1].env.observation_of = lambda steps: 10 * steps
    with pytest.raises(ValueError, match="'observation' is outside its spec"):
        player.play(request)
    env.check_values = False
    assert player.play(request)["next", "observation"].max() == 20


def test_a_player_checks_values_against_the_specs_of_now():
    env = short()
    player = RolloutPlayer(env)
    request = RolloutRequest(3, break_when_any_done=False)
    player.play(request)
    env.observation_spec = Bounded(7.0, 8.0, (4,))
    with pytest.raises(ValueError, match="'observation' is outside its spec"):
        player.play(request)


def test_a_player_follows_specs_that_change():
    env = TransformedEnv(short())
    player = RolloutPlayer(env)
    request = RolloutRequest(3, break_when_any_done=False)
    player.play(request)
    env.append_transform(StepCounter(2))
    assert player.play(request)["next", "truncated"].flatten().tolist() == [False, True, False]


def test_a_player_makes_calls_of_a_policy_whose_parts_were_replaced():
    choose = [torch.tensor([True, False]), torch.tensor([False, True])]
    policy = TensorDictModule(torch.nn.Identity(), ["observation"], ["seen"])
    both = torch.nn.ModuleList([policy])
    player = RolloutPlayer(
        short(), lambda root: both[0](root).set("action", choose[len(both[0].out_keys) - 1])
    )
    request = RolloutRequest(3, break_when_any_done=False)
    assert player.play(request)["action"][:, 0].all()
    both[0] = TensorDictModule(lambda seen: (seen, seen), ["observation"], ["seen", "more"])
    batch = player.play(request)
    assert batch["action"][:, 1].all()
    assert torch.equal(batch["more"], batch["seen"])


def chosen(number):
    return lambda seen: (torch.tensor([number == 0, number == 1]), seen)


CHANGES = {
    "function": lambda module: setattr(module, "module", chosen(1)),
    "keys": lambda module: setattr(module, "out_keys", ["action", "other"]),
    "forward": lambda module: setattr(
        module, "forward", lambda root: root.set("action", chosen(1)(None)[0])
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_player_follows_a_module_that_is_changed_in_place(name):
    module = TensorDictModule(chosen(0), ["observation"], ["action", "seen"])
    player, request = RolloutPlayer(short(), module), RolloutRequest(3, break_when_any_done=False)
    batch = player.play(request)
    assert batch["action"][:, 0].all()
    assert "seen" in batch
    CHANGES[name](module)
    batch = player.play(request)
    assert batch["action"][:, 0 if name == "keys" else 1].all()
    assert ("seen" in batch) == (name == "function")
    assert ("other" in batch) == (name == "keys")


def test_a_root_after_a_batch_owns_its_memory():
    env = TransformedEnv(SerialEnv(2, short), RewardSum(), StepCounter())
    player = RolloutPlayer(env)
    batch = player.play(RolloutRequest(5, break_when_any_done=False))
    root = player.root_after(batch)
    assert set(root.keys()) == {key for (key,) in shown(env)}
    kept = root.clone()
    batch.zero_()
    assert equal(root, kept)
    with pytest.raises(TypeError, match="batch: expected a batch that was played, got"):
        player.root_after(3)


class Flagged(gymnasium.Env):
    """Shows its step, and ends every third."""

    observation_space = gymnasium.spaces.Box(0, 9, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    observation_of = staticmethod(lambda steps: steps)

    def reset(self, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, "float32"), {}

    def step(self, action):
        self.steps += 1
        shown = np.full(1, self.observation_of(self.steps), "float32")
        return shown, 1.0, self.steps == 3, False, {}


def test_flags_of_a_root_do_not_stay_for_the_batch_after_a_reset():
    env = GymEnv(Flagged())
    player = RolloutPlayer(env)
    request = RolloutRequest(2, break_when_any_done=False)
    player.play(request)
    root = env.reset()
    root["truncated"] = torch.tensor([True])  # as a StepCounter without update_done leaves it
    assert player.play(request, root)["truncated"].flatten().tolist() == [True, False]
    assert player.play(request)["truncated"].flatten().tolist() == [False, False]


@pytest.mark.parametrize(
    ("make", "request_", "told"),
    [
        (short, RolloutRequest(3), "in place"),
        (lambda: SerialEnv(2, short), RolloutRequest(3), "in place"),
        (lambda: TransformedEnv(short(), StepCounter()), RolloutRequest(3), "in place"),
        (
            short,
            RolloutRequest(3, callback=print),
            "tensordicts: a callback sees each step",
        ),
        (CountingEnv, RolloutRequest(3), "through tensordicts: CountingEnv writes no rows itself"),
        (lambda: Pendulums(2), RolloutRequest(3, break_when_any_done=False), "on tensors"),
        (lambda: Pendulums(2), RolloutRequest(3), "and the host reads its values"),
    ],
    ids=["gym", "serial", "transformed", "callback", "own", "tensors", "breaks"],
)
def test_a_player_explains_how_steps_are_taken(make, request_, told):
    assert told in RolloutPlayer(make()).explain(request_)


def test_random_actions_of_a_player_obey_masks():
    class Masked(CountingEnv):
        def _show(self):
            return super()._show().set("action_mask", torch.tensor([True, False]))

    env = Masked()
    spec = env.observation_spec.clone()

    spec.set("action_mask", Binary(shape=(2,), dtype=torch.bool))
    env.observation_spec = spec
    player = RolloutPlayer(TransformedEnv(env, ActionMask()))
    assert player.play(RolloutRequest(5))["action"][:, 0].all()


NEVER = {"break_when_any_done": False}


@pytest.mark.parametrize("name", ["gym", "serial", "vector"])
@pytest.mark.parametrize("acts", [True, False])
def test_batches_that_continue_without_a_root_are_those_that_are_given_it(name, acts):
    batches = {}
    for is_given in (True, False):
        env = ENVS[name]()
        env.set_seed(0)
        player = RolloutPlayer(env, alternating(env) if acts else None)
        torch.manual_seed(1)
        batches[is_given] = [player.play(RolloutRequest(5, **NEVER))]
        for _ in range(4):
            request = RolloutRequest(5, **NEVER, continues=True)
            assert player.can_continue(request)
            root = player.next_root() if is_given else None
            batches[is_given].append(player.play(request, root))
    assert all(equal(*pair) for pair in zip(batches[True], batches[False], strict=True))
    ends = torch.cat([batch["next", "done"] for batch in batches[True]], -2)
    assert ends.any()


@pytest.mark.parametrize("name", ["transformed", "tensors", "groups"])
def test_a_player_holds_no_root_that_transforms_add_to_or_that_has_no_columns(name):
    player = RolloutPlayer(ENVS[name]())
    player.play(RolloutRequest(3, **NEVER))
    assert not player.holds_root
    with pytest.raises(RuntimeError, match="the columns hold no root"):
        player.next_root()


def test_a_root_in_columns_of_another_length_is_not_continued():
    player = RolloutPlayer(short())
    player.play(RolloutRequest(3, **NEVER))
    assert not player.can_continue(RolloutRequest(4, **NEVER, continues=True))
    assert not player.can_continue(RolloutRequest(3, **NEVER))


def test_a_batch_of_a_player_counts_as_a_move():
    env = short()
    player = RolloutPlayer(env)
    player.play(RolloutRequest(3, **NEVER))
    before = env.moves
    player.play(RolloutRequest(3, **NEVER, continues=True))
    assert env.moves > before
