"""Options of actors, and the resources that they reserve; no session is begun."""

import pytest

from rl_workers.ray_cluster import configs_of, wanted_by


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
