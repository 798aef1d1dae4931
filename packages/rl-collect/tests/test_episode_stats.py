"""Returns and lengths, against a loop that adds them up."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rl_collect.episode_stats import Episodes


@given(st.data())
def test_any_division_into_batches_gives_what_a_loop_gives(data):
    num_envs = data.draw(st.integers(1, 4))
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    size = num_envs * sum(sizes)
    over = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    over = over.reshape(num_envs, -1)
    reward = np.arange(size).reshape(num_envs, -1, 1) % 7
    total, length, ended = [0] * num_envs, [0] * num_envs, []
    for t in range(over.shape[1]):
        for b in range(num_envs):
            total[b] += reward[b, t, 0]
            length[b] += 1
            if over[b, t]:
                ended.append((total[b], length[b]))
                total[b] = length[b] = 0
    episodes, start = Episodes((num_envs,)), 0
    for steps in sizes:
        part = slice(start, start + steps)
        episodes.add(reward[:, part], over[:, part])
        start += steps
    state = episodes.state_dict()
    assert state["recent"] == [list(one) for one in ended[-100:]]
    assert episodes.finished == len(ended)
    assert state["return"].tolist() == total
    assert state["length"].tolist() == length


def test_the_means_are_of_the_last_hundred():
    episodes = Episodes(())
    assert np.isnan(episodes.mean_return)
    assert np.isnan(episodes.mean_length)
    episodes.add(np.full((30, 1), 9.0), np.ones(30, dtype=bool))
    episodes.add(np.full((100, 1), 2.0), np.ones(100, dtype=bool))
    assert (episodes.mean_return, episodes.mean_length, episodes.finished) == (2, 1, 130)


def test_forgotten_episodes_count_for_nothing():
    episodes = Episodes((2,))
    episodes.add(np.ones((2, 3, 1)), np.zeros((2, 3), dtype=bool))
    episodes.forget(np.array([True, False]))
    episodes.add(np.ones((2, 1, 1)), np.ones((2, 1), dtype=bool))
    assert episodes.state_dict()["recent"] == [[1, 1], [4, 4]]


def test_a_saved_one_goes_on():
    episodes, other = Episodes((2,)), Episodes((2,))
    episodes.add(np.ones((2, 3, 2)), np.array([[False, True, False], [False] * 3]))
    other.load_state_dict(episodes.state_dict())
    for one in (episodes, other):
        one.add(np.ones((2, 1, 2)), np.ones((2, 1), dtype=bool))
        assert one.state_dict()["recent"] == [[4, 2], [4, 2], [8, 4]]


def test_arrays_of_short_batches_may_be_changed_before_they_are_added_up():
    episodes, reward, over = Episodes((1,)), np.ones((1, 1, 1)), np.zeros((1, 1), dtype=bool)
    for _ in range(5):
        episodes.add(reward, over)
    reward[...], over[...] = 7, True
    episodes.add(np.ones((1, 1, 2)), np.ones((1, 1), dtype=bool))  # of another shape, too
    assert episodes.state_dict()["recent"] == [[7, 6]]
    assert (episodes.finished, episodes.mean_return) == (1, 7)
