"""What every test session shares: documentation examples as tests, hypothesis profiles, markers."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser
from sybil.parsers.rest import SkipParser as DocstringSkipParser
from sybil.sybil import SybilCollection

try:
    import hypothesis
except ModuleNotFoundError:  # examples are tested without what only tests need
    pass
else:
    # a busy machine takes long to draw data: no reason to fail
    common = {"deadline": None, "suppress_health_check": (hypothesis.HealthCheck.too_slow,)}
    hypothesis.settings.register_profile("dev", max_examples=50, **common)
    hypothesis.settings.register_profile("ci", max_examples=100, derandomize=True, **common)
    hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


PAGES = ("examples", "extending", "contributing", "decisions")  # with code that runs as tests


def _lacks(*modules: str) -> bool:
    """Whether an extra that a page shows is not installed."""
    return any(find_spec(name) is None for name in modules)


def _begin_page(namespace: dict[str, Any]) -> None:
    """Give a page what it asks for, and let it be warned of everything."""
    namespace["lacks"] = _lacks
    _forget_warnings()


def _forget_warnings() -> None:
    """Forget what the process has warned of once."""
    contradiction = sys.modules.get("rl_layout.segments.contradiction")
    if contradiction is not None:
        contradiction.warned.clear()


_collect_examples = SybilCollection(
    [
        Sybil(
            parsers=[PythonCodeBlockParser(), SkipParser()],
            patterns=["README.md", "docs/*.md", *(f"docs/{folder}/*.md" for folder in PAGES)],
            setup=_begin_page,
        ),
        Sybil(
            parsers=[DocTestParser(), DocstringSkipParser()],
            patterns=[
                f"{above}src/{below}*.py"  # ** is one folder before Python 3.13
                for above in ("", "*/", "packages/*/")
                for below in ("*/", "*/*/", "*/*/*/")
            ],
        ),
    ]
).pytest()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the examples of a page or a module."""
    if "src" in file_path.parts and file_path.suffix == ".py":
        # Sybil forgets the modules that it was first to import, and tests would get a second copy
        import_module(file_path.parts[file_path.parts.index("src") + 1].removesuffix(".py"))
    return _collect_examples(file_path, parent)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Start every test from the same generator state, with nothing warned of or compiled yet."""
    import torch

    torch.manual_seed(0)
    _forget_warnings()
    if (dynamo := sys.modules.get("torch._dynamo")) is not None:
        dynamo.reset()  # torch compiles a function eight times in a process, then it refuses


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Take the word None out of tensordict's variables: programs that a test starts cannot read it.

    tensordict 0.14 writes it where one of its operations ends that had set a mode for itself.
    """
    for name in ("LAZY_LEGACY_OP", "CAPTURE_NONTENSOR_STACK", "LIST_TO_STACK"):
        if os.environ.get(name) == "None":
            del os.environ[name]


BY_CHANCE = (  # what rows that hypothesis draws may be warned of
    ".* show under 'next' what the row after them shows",
    "each of the .* trajectories in this buffer has one row",
)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let warnings pass that drawn rows, or a thread of the test runner, may cause."""
    if "PYTEST_XDIST_WORKER" in os.environ:  # Python 3.12 warns of a fork while that thread runs
        item.add_marker(pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"))
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        for message in BY_CHANCE:
            item.add_marker(pytest.mark.filterwarnings(f"ignore:{message}"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need a device that is not there, unless the device is demanded."""
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting or os.environ.get("RL_REQUIRE_GPU") == "1":
        return
    import torch

    if not torch.cuda.is_available():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))
