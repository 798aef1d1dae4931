import hashlib
import http.server
import json
import threading

import pytest
import torch

from rl_datasets import MinariExperienceReplay, to_minari
from rl_datasets.download import HubDataset, fetch, fetch_bucket, inside
from rl_datasets.openml import fetch_table
from rl_layout.testing import trajectories

BYTES = bytes(range(256)) * 40_000  # ten megabytes


class Server(http.server.ThreadingHTTPServer):
    """Files on the loopback interface; cuts the first answers short on request."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.files, self.cuts, self.asked, self.ranges = {}, 0, [], True
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"


class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.asked.append((self.path, self.headers.get("Range")))
        body = server.files.get(self.path)
        if body is None:
            self.send_error(404)
            return
        begin = 0
        if server.ranges and (given := self.headers.get("Range")):
            begin = int(given.removeprefix("bytes=").removesuffix("-"))
            if begin >= len(body):
                self.send_error(416)
                return
            self.send_response(206)
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body) - begin))
        self.end_headers()
        end = len(body)
        if server.cuts:
            server.cuts -= 1
            end = begin + (len(body) - begin) // 2
        self.wfile.write(body[begin:end])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as running:
        running.files["/one"] = BYTES
        yield running
        running.shutdown()


def test_a_file_is_downloaded_and_checked(server, tmp_path):
    sha = hashlib.sha256(BYTES).hexdigest()
    target = fetch(f"{server.address}/one", tmp_path / "a" / "one", sha256=sha, size=len(BYTES))
    assert target.read_bytes() == BYTES
    assert [path.name for path in target.parent.iterdir()] == ["one"]
    fetch(f"{server.address}/one", target)
    assert len(server.asked) == 1  # what is there is not asked for


def test_a_cut_connection_goes_on_where_it_was(server, tmp_path):
    server.cuts = 2
    assert fetch(f"{server.address}/one", tmp_path / "one").read_bytes() == BYTES
    half, rest = len(BYTES) // 2, len(BYTES) * 3 // 4
    assert [where for _, where in server.asked] == [None, f"bytes={half}-", f"bytes={rest}-"]


def test_a_download_of_an_earlier_process_goes_on(server, tmp_path):
    (tmp_path / "one.part").write_bytes(BYTES[:1000])
    assert fetch(f"{server.address}/one", tmp_path / "one").read_bytes() == BYTES
    assert server.asked == [("/one", "bytes=1000-")]


def test_a_file_that_was_whole_already_is_kept(server, tmp_path):
    (tmp_path / "one.part").write_bytes(BYTES)
    assert fetch(f"{server.address}/one", tmp_path / "one").read_bytes() == BYTES


def test_a_server_without_ranges_begins_anew(server, tmp_path):
    server.ranges = False
    (tmp_path / "one.part").write_bytes(b"something else")
    assert fetch(f"{server.address}/one", tmp_path / "one").read_bytes() == BYTES


def test_a_connection_that_brings_nothing_is_given_up(server, tmp_path):
    server.files["/one"], server.cuts = b"x", 99
    with pytest.raises(ConnectionError, match=r"was cut 5 times at byte 0"):
        fetch(f"{server.address}/one", tmp_path / "one")
    assert not (tmp_path / "one").exists()


def test_another_hash_or_size_is_refused_and_nothing_is_kept(server, tmp_path):
    with pytest.raises(ValueError, match=f"expected {'0' * 64}"):
        fetch(f"{server.address}/one", tmp_path / "one", sha256="0" * 64)
    with pytest.raises(ValueError, match=f"has {len(BYTES)} bytes, expected 3"):
        fetch(f"{server.address}/one", tmp_path / "one", size=3)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_gone_says_so(server, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing at .*/two \(status 404\)"):
        fetch(f"{server.address}/two", tmp_path / "two")


def test_other_addresses_are_refused(tmp_path):
    with pytest.raises(ValueError, match="http or https"):
        fetch(f"file://{tmp_path}/x", tmp_path / "y")
    with pytest.raises(ConnectionError, match="cannot be reached"):
        fetch("http://127.0.0.1:9/x", tmp_path / "y")


def test_the_address_of_a_file_of_the_hub_is_quoted():
    address = HubDataset("owner/name", endpoint="http://hub").address("a b.npz")
    assert address == "http://hub/datasets/owner/name/resolve/main/a%20b.npz"


def test_a_dataset_of_the_hub_is_downloaded_at_one_commit(server, tmp_path):
    large = b"large" * 100
    sha = hashlib.sha256(large).hexdigest()
    tree = [
        {"type": "directory", "path": "v0"},
        {"type": "file", "path": "v0/a.npz", "size": 500, "lfs": {"oid": sha}},
        {"type": "file", "path": "v0/read me.md", "size": 2},
        {"type": "file", "path": "v0/skipped", "size": 2},
    ]
    api = "/api/datasets/who/what"
    server.files = {
        f"{api}/revision/main": json.dumps({"sha": "c0ffee"}).encode(),
        f"{api}/tree/c0ffee/v0?recursive=true": json.dumps(tree).encode(),
        "/datasets/who/what/resolve/c0ffee/v0/a.npz": large,
        "/datasets/who/what/resolve/c0ffee/v0/read%20me.md": b"hi",
    }
    hub = HubDataset("who/what", endpoint=server.address)
    hub.fetch(tmp_path, "v0", wanted=lambda path: "skipped" not in path)
    assert (tmp_path / "v0" / "a.npz").read_bytes() == large
    assert (tmp_path / "v0" / "read me.md").read_bytes() == b"hi"
    server.files["/datasets/who/what/resolve/c0ffee/v0/a.npz"] = b"other" * 100
    with pytest.raises(ValueError, match="SHA-256"):
        hub.fetch(tmp_path / "again", "v0", wanted=lambda path: path.endswith("npz"))


def test_a_folder_of_a_bucket_is_downloaded(server, tmp_path):
    listing = "/storage/v1/b/robots/o?prefix=set%2F1%2F&pageToken="
    pages = [{"items": [{"name": "set/1/a", "size": "2"}], "nextPageToken": "t"}]
    pages.append({"items": [{"name": "set/1/b/c", "size": "3"}]})
    server.files = {
        listing: json.dumps(pages[0]).encode(),
        f"{listing}t": json.dumps(pages[1]).encode(),
    }
    server.files |= {"/robots/set/1/a": b"ab", "/robots/set/1/b/c": b"abc"}
    fetch_bucket("robots", "set/1/", tmp_path, endpoint=server.address)
    assert (tmp_path / "a").read_bytes() == b"ab"
    assert (tmp_path / "b" / "c").read_bytes() == b"abc"
    server.files = {listing: b"{}"}
    with pytest.raises(FileNotFoundError, match="nothing under set/1/"):
        fetch_bucket("robots", "set/1/", tmp_path, endpoint=server.address)


def test_a_table_of_openml_is_found_by_name_and_version(server, tmp_path):
    api = "/api/v1/json/data"
    listed = {"data": {"dataset": [{"did": 7}]}}
    about = {"data_set_description": {"url": f"{server.address}/some.arff"}}
    server.files = {
        f"{api}/list/data_name/adult/data_version/1": json.dumps(listed).encode(),
        f"{api}/7": json.dumps(about).encode(),
        "/some.arff": b"@data",
    }
    path = fetch_table("adult", 1, tmp_path, endpoint=server.address)
    assert (path.name, path.read_bytes()) == ("adult.arff", b"@data")


def served(server, folder, repository, path):
    """Serves a folder as one of a dataset of the hub."""
    files = sorted(one for one in folder.rglob("*") if one.is_file())
    names = [f"{path}/{one.relative_to(folder)}" for one in files]
    tree = [
        {"type": "file", "path": name, "size": one.stat().st_size}
        for name, one in zip(names, files, strict=True)
    ]
    api, place = f"/api/datasets/{repository}", f"/datasets/{repository}/resolve"
    server.files |= {
        f"{api}/revision/main": b'{"sha": "c0ffee"}',
        f"{api}/tree/c0ffee/{path}?recursive=true": json.dumps(tree).encode(),
        f"{place}/main/namespace_metadata.json": json.dumps({"datasets": ["demo/one-v0"]}).encode(),
    }
    for name, one in zip(names, files, strict=True):
        server.files[f"{place}/c0ffee/{name}"] = one.read_bytes()


def test_a_dataset_of_minari_is_downloaded_converted_and_opened(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    rows = trajectories([5, 3])
    folder = to_minari(rows, "demo/one-v0", root=tmp_path / "made")
    served(server, folder, "farama-minari/demo", "one-v0")
    options = {"root": tmp_path / "root", "verbose": False}
    server.cuts = 1  # the connection is cut once on the way
    data = MinariExperienceReplay("demo/one-v0", **options)
    assert torch.equal(data[:]["next", "observation"], rows["next", "observation"])
    found = sorted(path.name for path in data.data_path.iterdir())
    assert found == ["converting.lock", "files", "rows"]
    asked = len(server.asked)
    assert len(MinariExperienceReplay("demo/one-v0", **options)) == 8
    assert len(server.asked) == asked
    with pytest.raises(ValueError, match=r"no minari dataset 'demo/on-v0' .* mean 'demo/one-v0'"):
        MinariExperienceReplay("demo/on-v0", **options)
    with pytest.raises(FileNotFoundError, match="nothing at"):
        MinariExperienceReplay("else/one-v0", **options)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x"])
def test_names_that_lead_out_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="leads out"):
        inside(tmp_path, name)
