"""Options of actors, and the resources that they reserve; no session is begun."""

import pytest

from rl_workers.ray_cluster import configs_of, join_cluster, wanted_by


def test_each_worker_has_its_options():
    assert configs_of(None, 2) == [{"num_cpus": 1}] * 2
    assert configs_of([{"num_gpus": 1}, {"num_cpus": 3}], 2) == [
        {"num_cpus": 1, "num_gpus": 1},
        {"num_cpus": 3},
    ]
    with pytest.raises(ValueError, match="a list of 2, one for each worker"):
        configs_of([{}], 2)
    assert wanted_by({"num_cpus": 2, "num_gpus": 0, "resources": {"far": 1}}) == {
        "CPU": 2,
        "far": 1,
    }


@pytest.mark.parametrize("wrong", [3, [{}], [1, 2], "ab"])
def test_options_that_are_none_are_refused(wrong):
    with pytest.raises(ValueError, match="remote_configs must be options of Ray actors"):
        configs_of(wrong, 2)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_cpus": "two"}, "a number of CPU, as 1 or 0.5: got 'two'"),
        ({"num_gpus": -1}, "0 or more GPU: got -1"),
        ({"resources": {"far": [1]}}, r"a number of far, .* got \[1\]"),
        ({"resources": ["far"]}, r"amounts by name, as {'far': 1}: got \['far'\]"),
    ],
)
def test_resources_that_are_no_amounts_are_refused(config, message):
    with pytest.raises((TypeError, ValueError), match=message):
        wanted_by(config)


def test_arguments_of_a_session_have_names():
    with pytest.raises(TypeError, match=r"ray_init_config must be arguments of ray\.init by name"):
        join_cluster(None, "127.0.0.1:6379")
