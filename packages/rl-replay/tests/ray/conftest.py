"""Two machines, the second played by another raylet on this one."""

import pathlib
import shutil
import sys
import tempfile

import pytest


@pytest.fixture(scope="module")
def cluster():
    """This machine, which is "here", and one that is "far" as far as Ray knows."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: rl-replay[ray]")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        home = tempfile.mkdtemp(prefix="ray")  # short: sockets are in there
        patch.setenv("HOME", home)
        patch.setenv("RAY_TMPDIR", home)  # a cluster notes its address in a folder "ray" there
        pathlib.Path(home, "ray").mkdir()
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        # what tests define is imported nowhere else
        folder = str(pathlib.Path(__file__).parent)
        files = {name: str(getattr(one, "__file__", "")) for name, one in sys.modules.items()}
        tests = [sys.modules[name] for name, file in files.items() if file.startswith(folder)]
        for module in tests:
            ray.cloudpickle.register_pickle_by_value(module)
        ray.shutdown()
        store = {"object_store_memory": 100 * 2**20, "num_cpus": 1}
        head = {"resources": {"here": 1}, "temp_dir": home, **store}
        found = Cluster(initialize_head=True, head_node_args=head)
        try:
            found.add_node(resources={"far": 1}, **store)
            ray.init(address=found.address, include_dashboard=False, log_to_driver=False)
            yield found
        finally:
            ray.shutdown()
            found.shutdown()
            for module in tests:
                ray.cloudpickle.unregister_pickle_by_value(module)
            shutil.rmtree(home, ignore_errors=True)
