import http.server
import json
import threading
import urllib.parse

import pytest

import rl_datasets
from rl_datasets import d4rl, gen_dgrl, ogbench, openml
from rl_datasets.rlds import replay as openx

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


def made(name, root, dataset=None, **options):
    kind = getattr(rl_datasets, f"{name}ExperienceReplay")
    return kind(dataset or IDS[name], root=root, verbose=False, **options)


def tree(path):
    return [{"type": "file", "path": path, "size": 1}]


ROBOSET, VD4RL = "/api/datasets/jdvakil/RoboSet_Sim", "/api/datasets/conglu/vd4rl"
BUCKET = "/storage/v1/b/gresearch/o?prefix=robotics/"
ANSWERS = {  # of a server that has other datasets than are asked for
    "/api/datasets?author=lerobot&limit=1000": [{"id": "lerobot/aloha"}, {"id": "lerobot/pusht"}],
    f"{ROBOSET}/revision/main": {"sha": "c0ffee"},
    f"{ROBOSET}/tree/c0ffee?recursive=true": tree("DAPG(expert)/door_v2d-v1/seed_0.h5"),
    f"{VD4RL}/revision/main": {"sha": "c0ffee"},
    f"{VD4RL}/tree/c0ffee?recursive=true": tree("vd4rl/main/walker_walk/random/64px/a.npz"),
    f"{BUCKET}brigde/0.1.0/&pageToken=": {},
    f"{BUCKET}brigde/&delimiter=/": {},
    f"{BUCKET}&delimiter=/": {"prefixes": ["robotics/bridge/", "robotics/kuka/"]},
}
MISSPELT = {
    "LeRobot": ("lerobot/pushd", r"'lerobot/pushd' among 2: did you mean 'lerobot/pusht'"),
    "Roboset": ("DAPG(expert)/dor_v2d-v1", r"closest: \['DAPG\(expert\)/door_v2d-v1'\]"),
    "VD4RL": ("main/walker_wlk/random/64px", r"closest: \['vd4rl/main/walker_walk/random/64px'\]"),
    "OpenX": ("brigde/0.1.0", r"nothing under robotics/brigde/0.1.0/.*: \['robotics/bridge/'"),
}


class Gone(http.server.BaseHTTPRequestHandler):
    """A server that has none of the files that are asked for."""

    def do_GET(self):
        answer = self.server.answers.get(urllib.parse.unquote(self.path))
        if answer is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Gone) as running:
        running.answers = {}
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def address(server, monkeypatch):
    """The address of a server that everything is asked of."""
    place = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", place)
    for ask in (openml.fetch_table, openx.fetch_bucket):
        monkeypatch.setattr(ask, "__kwdefaults__", {"endpoint": place})
    for module in FILES.values():
        monkeypatch.setattr(module, "ADDRESS", place)
    return place


@pytest.mark.parametrize("name", IDS)
def test_nothing_downloaded_says_which_folder_was_looked_at(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=rf"is not in {tmp_path}/.*, and download=False"):
        made(name, tmp_path, download=False)
    assert not list(tmp_path.rglob("*.slab"))


@pytest.mark.parametrize("name", [*FILES, *HUB, "OpenML", "OpenX"])
def test_a_source_that_is_gone_says_so_and_where_copies_are(tmp_path, name, address):
    with pytest.raises(FileNotFoundError, match=rf"nothing at {address}.*status 404") as caught:
        made(name, tmp_path)
    copies = getattr(rl_datasets, f"{name}ExperienceReplay").sources_of_copies
    assert copies
    assert copies in "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("name", MISSPELT)
@pytest.mark.usefixtures("address")
def test_an_unknown_id_of_a_server_that_answers_names_the_closest(tmp_path, name, server):
    server.answers = ANSWERS
    dataset, message = MISSPELT[name]
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        made(name, tmp_path, dataset)
    assert not list(tmp_path.rglob("*.part"))
