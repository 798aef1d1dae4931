from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_specs import Bounded, Categorical, Composite, MultiOneHot, OneHot
from rl_transforms import NoopReset


def test_first_choice_is_the_default_noop():
    spec = Composite(move=Categorical(4, (2,)), agents={"turn": OneHot(3, (2, 3))}, shape=(2,))
    made = NoopReset().actions(spec)
    assert {key: value.tolist() for key, value in made.items()} == {
        "move": [0, 0],
        ("agents", "turn"): [[True, False, False]] * 2,
    }


def test_noop_action_replaces_the_first_choice():
    still = torch.tensor([0.0, 0.5])
    spec = Composite(action=Bounded(-1, 1, (3, 2)), shape=(3,))
    made = NoopReset(noop_action=still).actions(spec)
    assert made["action"].tolist() == [[0.0, 0.5]] * 3
    both = Composite(a=Categorical(3), b=Bounded(-1, 1, (2,)))
    assert NoopReset(noop_action={"b": still}).actions(both)["a"].item() == 0


def test_invalid_noop_actions_and_places_are_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        NoopReset(0)
    with pytest.raises(ValueError, match="cannot sit in a buffer"):
        NoopReset().check_place("buffer")
    several = Composite(action=MultiOneHot([2, 3], (5,)))
    with pytest.raises(ValueError, match=r"'action' does nothing.*MultiOneHot. Pass noop_action="):
        NoopReset().transform_action_spec(several)
    wide = Composite(action=Bounded(-1, 1, (2,)))
    for wrong in (torch.zeros(3), torch.zeros(2, dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"expected \[2\] or the last of these"):
            NoopReset(noop_action=wrong).transform_action_spec(wide)
    with pytest.raises(ValueError, match="is outside"):
        NoopReset(noop_action=torch.full((2,), 2.0)).transform_action_spec(wide)
    with pytest.raises(ValueError, match="no action 'jump'"):
        NoopReset(noop_action={"jump": torch.zeros(2)}).transform_action_spec(wide)


def test_forward_returns_rows_unchanged():
    rows = TensorDict({}, [3])
    assert NoopReset()(rows) is rows


def test_seed_that_is_no_whole_number_is_refused():
    with pytest.raises(TypeError, match="seed: expected a whole number, got a tensor"):
        NoopReset().seed(torch.zeros(2))
