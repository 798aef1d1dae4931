import http.server
import threading

import pytest

import rl_datasets
from rl_datasets import d4rl, gen_dgrl, ogbench, openml

IDS = {
    "AtariDQN": "Pong/5",
    "D4RL": "hopper-medium-v2",
    "GenDGRL": "bigfish-1M_E",
    "LeRobot": "lerobot/pusht",
    "Minari": "mujoco/hopper/expert-v0",
    "OGBench": "antmaze-large-navigate-v0",
    "OpenML": "magic",
    "OpenX": "bridge/0.1.0",
    "Roboset": "DAPG(expert)/door_v2d-v1",
    "VD4RL": "main/walker_walk/random/64px",
}
FILES = {"D4RL": d4rl, "GenDGRL": gen_dgrl, "OGBench": ogbench}
HUB = ["LeRobot", "Minari", "Roboset", "VD4RL"]


def made(name, root, **options):
    kind = getattr(rl_datasets, f"{name}ExperienceReplay")
    return kind(IDS[name], root=root, verbose=False, **options)


class Gone(http.server.BaseHTTPRequestHandler):
    """A server that has nothing."""

    def do_GET(self):
        self.send_error(404)

    def log_message(self, *_):
        pass


@pytest.fixture
def address():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Gone) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("name", IDS)
def test_nothing_downloaded_says_which_folder_was_looked_at(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=rf"is not in {tmp_path}/.*, and download=False"):
        made(name, tmp_path, download=False)
    assert not list(tmp_path.rglob("*.slab"))


@pytest.mark.parametrize("name", [*FILES, *HUB, "OpenML"])
def test_a_source_that_is_gone_says_so_and_where_copies_are(tmp_path, name, address, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.setattr(openml.fetch_table, "__kwdefaults__", {"endpoint": address})
    for module in FILES.values():
        monkeypatch.setattr(module, "ADDRESS", address)
    with pytest.raises(FileNotFoundError, match=rf"nothing at {address}.*status 404") as caught:
        made(name, tmp_path)
    copies = getattr(rl_datasets, f"{name}ExperienceReplay").sources_of_copies
    assert copies
    assert copies in "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert not list(tmp_path.rglob("*.part"))
