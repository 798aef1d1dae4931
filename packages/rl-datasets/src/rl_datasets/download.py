"""Downloads: files by address, and those of a dataset on the Hugging Face hub."""

from __future__ import annotations

import difflib
import hashlib
import http.client
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_datasets.progress import progress_bar

HUB = "https://huggingface.co"
BUCKETS = "https://storage.googleapis.com"
_PIECE = 1 << 20
_ATTEMPTS = 5
_CUT = (http.client.IncompleteRead, ConnectionError, TimeoutError)
_GONE = (401, 403, 404, 410)


def fetch(
    url: str, target: Path, *, sha256: str | None = None, size: int | None = None, bar: bool = True
) -> Path:
    """Download a file, continuing where a connection was cut, in this call or an earlier one."""
    # An unfinished download has the suffix `.part`; it gets its name once it is complete.
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"downloads go over http or https, got {url!r}.")
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    with progress_bar(size, target.name, "B", shown=bar) as progress:
        _receive(url, part, progress.update)
    found = part.stat().st_size
    if size is not None and found != size:
        part.unlink()
        raise ValueError(f"{url} has {found} bytes, expected {size}: the file was changed.")
    if sha256 is not None and (got := _hash(part)) != sha256.lower():
        part.unlink()
        raise ValueError(
            f"{url} has the SHA-256 {got}, expected {sha256}: the file was changed or damaged; "
            "nothing of it was kept."
        )
    return part.replace(target)


@dataclass(frozen=True)
class HubFile:
    """A file of a dataset on the hub."""

    path: str  # in the repository
    size: int
    sha256: str | None  # None for small files, which the hub knows by another hash


@dataclass(frozen=True)
class HubDataset:
    """A dataset on the hub, at one revision."""

    # name: Its owner and name, as `"owner/name"`.
    # revision: A branch, a tag or a commit.
    # endpoint: The address of the hub; `$HF_ENDPOINT` if it is set.

    name: str
    revision: str = "main"
    endpoint: str = field(default_factory=lambda: os.environ.get("HF_ENDPOINT", HUB))

    def address(self, path: str) -> str:
        """The address of a file."""
        quoted = urllib.parse.quote(path)
        return f"{self.endpoint}/datasets/{self.name}/resolve/{self.revision}/{quoted}"

    def pinned(self) -> HubDataset:
        """The dataset at the commit that its revision is now."""
        found = fetch_json(f"{self.endpoint}/api/datasets/{self.name}/revision/{self.revision}")
        return HubDataset(self.name, str(found["sha"]), self.endpoint)

    def siblings(self) -> list[str]:
        """The names of the datasets that its owner has on the hub; none if it has no owner."""
        owner = urllib.parse.quote(self.name.partition("/")[0])
        try:
            entries, _ = _answer(f"{self.endpoint}/api/datasets?author={owner}&limit=1000")
        except FileNotFoundError:
            return []
        return [str(entry["id"]) for entry in entries]

    def files(self, prefix: str = "") -> list[HubFile]:
        """The files whose paths begin with a folder."""
        folder = f"/{urllib.parse.quote(prefix)}" if prefix else ""
        url: str | None = (
            f"{self.endpoint}/api/datasets/{self.name}/tree/{self.revision}{folder}?recursive=true"
        )
        found: list[HubFile] = []
        while url is not None:
            entries, links = _answer(url)
            following = re.search(r'<([^>]+)>;\s*rel="next"', links)
            url = following and following[1]
            for entry in entries:
                if entry["type"] == "file":
                    large = entry.get("lfs") or {}
                    found.append(HubFile(entry["path"], entry["size"], large.get("oid")))
        return found

    def fetch(
        self, folder: Path, prefix: str = "", *, wanted: Callable[[str], bool] | None = None
    ) -> None:
        """Download the files below a folder of the dataset, each checked by size and hash."""
        dataset = self.pinned()
        for file in dataset.files(prefix):
            if wanted is None or wanted(file.path):
                target = inside(folder, file.path)
                fetch(dataset.address(file.path), target, sha256=file.sha256, size=file.size)

    def fetch_folder(self, folder: Path, prefix: str, suffix: str) -> None:
        """Download the files of one folder of the dataset that have a suffix."""
        dataset = self.pinned()
        files = [file for file in dataset.files() if file.path.endswith(suffix)]
        chosen = [file for file in files if file.path.startswith(f"{prefix}/")]
        if not chosen:
            close = _closest(prefix, {file.path.rpartition("/")[0] for file in files})
            raise FileNotFoundError(f"{self.name} has no folder {prefix!r}; the closest: {close}.")
        for file in chosen:
            target = inside(folder, file.path.removeprefix(f"{prefix}/"))
            fetch(dataset.address(file.path), target, sha256=file.sha256, size=file.size)


def fetch_bucket(bucket: str, prefix: str, folder: Path, *, endpoint: str = BUCKETS) -> None:
    """Download the files below a prefix of a public bucket of Google Cloud, under their names."""
    token, files = "", []
    while True:
        query = urllib.parse.urlencode({"prefix": prefix, "pageToken": token})
        page = fetch_json(f"{endpoint}/storage/v1/b/{bucket}/o?{query}")
        files += page.get("items", [])
        if not (token := page.get("nextPageToken", "")):
            break
    if not files:
        close = _closest(prefix, _neighbours(f"{endpoint}/storage/v1/b/{bucket}/o", prefix))
        raise FileNotFoundError(
            f"there is nothing under {prefix} in the bucket {bucket}; the closest: {close}."
        )
    for file in files:
        if name := file["name"].removeprefix(prefix):
            address = f"{endpoint}/{bucket}/{urllib.parse.quote(file['name'])}"
            fetch(address, inside(folder, name), size=int(file["size"]))


def _neighbours(listing: str, prefix: str) -> list[str]:
    """The sibling folders of a missing folder of a bucket, or of its nearest parent with any."""
    while prefix := prefix.rstrip("/").rpartition("/")[0]:
        query = urllib.parse.urlencode({"prefix": f"{prefix}/", "delimiter": "/"})
        try:
            if found := fetch_json(f"{listing}?{query}").get("prefixes", []):
                return [str(name) for name in found]
        except FileNotFoundError:
            return []
    return []


def _closest(name: str, names: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(name, list(names), n=3, cutoff=0.3)


def inside(folder: Path, name: str) -> Path:
    """The path of a name that an archive or a server gave, which must not lead out of a folder."""
    target = folder / name
    if not target.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{name!r} leads out of {folder}: refused.")
    return target


def _receive(url: str, part: Path, count: Callable[[int], object]) -> None:
    """Appends what is missing of a file; tries again while each attempt brings something."""
    attempts = 0
    count(part.stat().st_size if part.exists() else 0)
    while True:
        have = part.stat().st_size if part.exists() else 0
        try:
            if _append(url, part, have, count):
                return
        except _CUT as error:
            attempts = 0 if part.exists() and part.stat().st_size > have else attempts + 1
            if attempts >= _ATTEMPTS:
                raise ConnectionError(
                    f"{url}: the connection was cut {attempts} times at byte {have}: {error}. "
                    "Call again to continue there."
                ) from error


def _append(url: str, part: Path, have: int, count: Callable[[int], object]) -> bool:
    """One request; whether the file is whole now."""
    headers = {"Range": f"bytes={have}-"} if have else {}
    try:
        answer = _open(url, headers)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing is missing
            return True
        raise
    with answer:
        partial = answer.status == 206
        expected = answer.headers.get("Content-Length")
        with part.open("ab" if partial else "wb") as file:
            got = 0
            while piece := answer.read(_PIECE):
                file.write(piece)
                got += len(piece)
                count(len(piece))
        if expected is not None and got < int(expected):
            raise ConnectionError(f"{got} of {expected} bytes came")
    return True


def _open(url: str, headers: dict[str, str] | None = None) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers={"User-Agent": "rl-datasets", **(headers or {})})
    try:
        answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        error.close()  # it is an answer too
        if error.code in _GONE:
            raise FileNotFoundError(
                f"the server has nothing at {url} (status {error.code})."
            ) from error
        if error.code >= 500:
            raise ConnectionError(f"the server failed at {url} (status {error.code}).") from error
        raise
    except urllib.error.URLError as error:
        raise ConnectionError(f"{url} cannot be reached: {error.reason}.") from error
    return answer


def fetch_json(url: str) -> dict[str, Any]:
    """The JSON object that a short request brings."""
    found: dict[str, Any] = _answer(url)[0]
    return found


def _answer(url: str) -> tuple[Any, str]:
    """What a short request brings, as JSON, and the links to what follows."""
    attempt = 1
    while True:
        try:
            with _open(url) as answer:
                return json.load(answer), str(answer.headers.get("Link", ""))
        except _CUT as error:
            if attempt == _ATTEMPTS:
                raise ConnectionError(f"{url}: no answer in {attempt} attempts: {error}") from error
            attempt += 1


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
