import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_envs import GymEnv, GymVectorEnv, ParallelEnv, SerialEnv
from rl_envs.gym.info import InfoPart, batch_entry_of
from rl_envs.testing import check_conformance
from rl_specs import Binary, Unbounded

NAMES = ["light", "speed", "is_on", ("inner", "steps")]
TOTAL = {("inner", "total"): Unbounded((), dtype=torch.float64), "light": Unbounded(())}


class Lamp(gymnasium.Env):
    """Grows brighter by 10 a step, and tells most of it in its info."""

    observation_space = spaces.Box(0, 255, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, num_steps=3, render_mode=None):
        self.num_steps, self.render_mode = num_steps, render_mode

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.light = 0, int(self.np_random.integers(5))
        return self._show(), {"light": self.light, "name": "lamp"}

    def step(self, action):
        self.steps, self.light = self.steps + 1, self.light + 10
        over = self.steps == self.num_steps
        info = {"light": self.light, "speed": np.full(3, self.steps / 2, "f4"), "is_on": True}
        info["inner"] = {"steps": self.steps} | ({"total": 0.5 * self.steps} if over else {})
        return self._show(), 1.0, over, False, info

    def _show(self):
        return np.array([self.light, 7], np.float32)


@pytest.fixture
def name():
    gymnasium.register("Lamp-v0", Lamp, max_episode_steps=20)
    yield "Lamp-v0"
    del gymnasium.registry["Lamp-v0"]


def test_entries_lie_beside_the_observations():
    batch = GymEnv(Lamp(), info_keys=NAMES).rollout(3)
    assert torch.equal(batch["light"], batch["observation"][:, 0].long())
    assert torch.equal(batch["next", "light"], batch["next", "observation"][:, 0].long())
    assert batch["next", "speed"].tolist() == [[0.5] * 3, [1.0] * 3, [1.5] * 3]
    assert batch["next", "inner", "steps"].tolist() == [1, 2, 3]
    assert batch["next", "is_on"].tolist() == [True] * 3


def test_missing_info_entries_are_zero():
    batch = GymEnv(Lamp(), info_keys=NAMES).rollout(7, break_when_any_done=False)
    assert batch["speed"][:, 0].tolist() == [0, 0.5, 1, 0, 0.5, 1, 0]
    assert batch["is_on"].tolist() == [False, True, True, False, True, True, False]
    assert batch["inner", "steps"].tolist() == [0, 1, 2, 0, 1, 2, 0]
    batch = GymEnv(Lamp(), info_keys=TOTAL).rollout(7, break_when_any_done=False)
    assert batch["next", "inner", "total"].tolist() == [0, 0, 1.5, 0, 0, 1.5, 0]


def test_dtypes_and_shapes_are_those_of_the_entries():
    spec = GymEnv(Lamp(), info_keys=NAMES).observation_spec
    assert (spec["light"].dtype, spec["light"].shape) == (torch.int64, ())
    assert (spec["speed"].dtype, spec["speed"].shape) == (torch.float32, (3,))
    assert isinstance(spec["is_on"], Binary)
    assert spec["is_on"].dtype == torch.bool
    given = GymEnv(Lamp(), info_keys={"light": Unbounded((), dtype=torch.float64)})
    assert given.rollout(2)["light"].dtype == torch.float64


def test_every_promise_is_kept():
    check_conformance(lambda: GymEnv(Lamp(), info_keys=NAMES))
    check_conformance(lambda: GymEnv("Pendulum-v1", info_keys={"none": Unbounded(())}))


@pytest.mark.parametrize("keys", [NAMES, TOTAL], ids=["names", "specs"])
@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("kind", ["sync", "async", "made", "parallel"])
def test_vectors_show_what_a_serial_env_does(name, kind, mode, keys):
    makes = {
        "made": lambda: GymVectorEnv(
            SyncVectorEnv([lambda: Lamp(3), lambda: Lamp(4)], autoreset_mode=mode), info_keys=keys
        ),
        "parallel": lambda: ParallelEnv(
            2, lambda: GymEnv(Lamp(3), info_keys=keys), mp_start_method="fork"
        ),
    }
    if kind == "parallel" and mode != AutoresetMode.DISABLED:
        return  # it has none

    def by_name():
        context = {"vector_kwargs": {"context": "fork"}} if kind == "async" else {}
        return GymVectorEnv(
            name, 2, vectorization_mode=kind, autoreset_mode=mode, info_keys=keys, **context
        )

    lengths = (3, 4) if kind == "made" else (3, 3)
    serial = SerialEnv(2, [lambda n=n: GymEnv(Lamp(n), info_keys=keys) for n in lengths])
    batches = []
    for env in (makes.get(kind, by_name)(), serial):
        env.set_seed(5)
        torch.manual_seed(2)
        batches.append(env.rollout(9, break_when_any_done=False))
        env.close()
    one, other = batches
    assert set(one.keys(True, True)) == set(other.keys(True, True))
    assert all(torch.equal(one[key], other[key]) for key in one.keys(True, True))


def test_an_entry_that_is_not_there_is_named():
    with pytest.raises(KeyError, match=r"'lite' came neither .* only \['inner', 'is_on', 'light'"):
        GymEnv(Lamp(), info_keys=["lite"])
    with pytest.raises(KeyError, match=r"'inner', 'total'\) came neither .* give its spec"):
        GymEnv(Lamp(), info_keys=[("inner", "total")])


def test_an_entry_that_never_comes_is_warned_of_once():
    env = GymEnv(Lamp(), info_keys={"lite": Unbounded(()), "light": Unbounded(())})
    with pytest.warns(UserWarning, match=r"no \['lite'\] in a whole episode"):
        env.rollout(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not env.rollout(3)["lite"].any()


def test_entries_that_are_no_numbers_are_refused():
    with pytest.raises(TypeError, match="'name' holds no numbers but 'lamp'"):
        GymEnv(Lamp(), info_keys="name")


def test_numbers_are_never_cut():
    env = GymEnv(Lamp(), info_keys={("inner", "total"): Unbounded((), dtype=torch.int64)})
    with pytest.raises(TypeError, match=r"'total'\): expected int64, got float64"):
        env.rollout(3)
    env = GymEnv(Lamp(), info_keys={"speed": Unbounded((2,))})
    with pytest.raises(ValueError, match=r"'speed': expected shape \(2,\), got \(3,\)"):
        env.rollout(3)


def test_names_of_observations_are_refused():
    with pytest.raises(ValueError, match=r"\['observation'\] are names of observations"):
        GymEnv(Lamp(), info_keys={"observation": Unbounded(())})
    with pytest.raises(ValueError, match=r"entries \['reward'\], which mean something else"):
        GymEnv(Lamp(), info_keys={"reward": Unbounded(())})


def test_rows_that_a_mask_leaves_out_are_zero():
    part = InfoPart({"speed": Unbounded((2,))}, list, batch_entry_of, 3)
    speed = np.array([[1, 2], [3, 4], [5, 6]], "f4")
    shown = part.shown(None, {"speed": speed, "_speed": np.array([True, False, True])})
    assert shown["speed"].tolist() == [[1, 2], [0, 0], [5, 6]]
    assert speed[1].tolist() == [3, 4]
    assert part.shown(None, {"speed": speed})["speed"].tolist() == speed.tolist()  # without a mask
    assert not part.shown(None, {})["speed"].any()
