"""Print the shape of the code: what one call passes through, and what each package holds.

    python tools/shape.py              both tables
    python tools/shape.py --calls      only the calls
    python tools/shape.py --packages   only the packages
    python tools/shape.py --files GAE.forward    the files that one call opens, with the functions

A call is recorded by `sys.setprofile` after three that warm it up.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import contracts

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def sources(package: Path) -> list[Path]:
    """The modules of a package."""
    return sorted((package / "src").rglob("*.py"))


def docstring(node: ast.AST) -> ast.Expr | None:
    """The statement that is a definition's docstring."""
    body = getattr(node, "body", None)
    if not isinstance(body, list) or not body or not isinstance(body[0], ast.Expr):
        return None
    value = body[0].value
    is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return body[0] if is_text else None


def span(node: ast.Expr) -> range:
    """The lines of a statement."""
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def code_and_comments(text: str, tree: ast.Module) -> tuple[int, int]:
    """Lines that hold code, and lines that hold a comment."""
    documented = {n for node in ast.walk(tree) if (d := docstring(node)) for n in span(d)}
    skipped = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    code, comments = set(), set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        lines = range(token.start[0], token.end[0] + 1)
        if token.type == tokenize.COMMENT:
            comments.update(lines)
        elif token.type not in skipped:
            code.update(lines)
    return len(code - documented), len(comments)


def exported(package: Path) -> set[str]:
    """The names that a package exports, and those of its documented public modules."""
    module, sources = module_of(package), package / "src"
    own = [f"{module}.{name}" for name in contracts.house("documented")]
    files = {contracts.file_of(name, sources) for name in (*own, *contracts.house("public"))}
    init = sources / module / "__init__.py"
    return set().union(*(contracts.offered(path) for path in {init, *files} if path.is_file()))


def module_of(package: Path) -> str:
    """The import name of a package."""
    return package.name.replace("-", "_")


def internal_docstrings(tree: ast.Module, public: set[str]) -> int:
    """Lines of docstrings on names that are not exported; a method counts with its class."""
    lines = 0
    for node in tree.body:
        if isinstance(node, Definition) and node.name not in public:
            lines += sum(len(span(d)) for inner in ast.walk(node) if (d := docstring(inner)))
    return lines


def type_names(tree: ast.Module) -> Iterator[str]:
    """Classes of a module, and its aliases of types."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            name = ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])
            if name[:1].isupper() and not name.isupper() and name.isidentifier():
                yield name


def print_packages() -> None:
    """Print a row for each package, then circles and type names with several homes."""
    homes: dict[str, list[str]] = defaultdict(list)
    names = ("files", "code", "comments/100", "internal docs", "circles", "private", "in tests")
    print(f"{'package':<16}" + "".join(f"{name:>14}" for name in names))
    found, total = contracts.circles(contracts.PACKAGES), Counter[str]()
    for package in PACKAGES:
        row, public = Counter[str](), exported(package)
        is_seam = module_of(package) == contracts.OF_OTHERS
        for path in sources(package):
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text)
            code, comments = code_and_comments(text, tree)
            private = 0 if is_seam else len([*contracts.private_reads(tree)])
            row.update(files=1, code=code, comments=comments, private=private)
            row.update(docs=internal_docstrings(tree, public))
            for name in type_names(tree):
                homes[name].append(str(path.relative_to(package / "src").with_suffix("")))
        for path in (package / "tests").rglob("*.py"):
            row["tests"] += len([*contracts.private_reads(ast.parse(path.read_text("utf-8")))])
        row["circles"] = sum(part[0].startswith(module_of(package) + ".") for part in found)
        print_row(package.name, row)
        total.update(row)
    print_row("all", total)
    for part in found:
        print(f"circle of {len(part)}: {', '.join(part)}")
    twice = {name: where for name, where in homes.items() if len(where) > 1}
    print(f"{len(twice)} type names with more than one home: {', '.join(sorted(twice))}")


def print_row(name: str, row: Counter[str]) -> None:
    """Print the figures of one package."""
    share = 100 * row["comments"] / max(1, row["code"])
    rest = [row[key] for key in ("docs", "circles", "private", "tests")]
    cells = [row["files"], row["code"], f"{share:.1f}", *rest]
    print(f"{name:<16}" + "".join(f"{cell:>14}" for cell in cells))


@cache
def folders() -> tuple[str, ...]:
    """Where our packages are imported from: sources, or what is installed."""
    specs = [find_spec(module_of(package)) for package in PACKAGES]
    return tuple([str(Path(spec.origin).parent) for spec in specs if spec and spec.origin])


class Calls:
    """What happens in one call: ours, and calls into tensordict."""

    def __init__(self) -> None:
        self.functions: Counter[tuple[str, int]] = Counter()
        self.tensordict = self.depth = self._now = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Count a call or a return, as `sys.setprofile` wants it."""
        name = frame.f_code.co_filename
        if name.startswith(folders()):
            self._now += {"call": 1, "return": -1}.get(event, 0)
            self.depth = max(self.depth, self._now)
            if event == "call":
                self.functions[name, frame.f_code.co_firstlineno] += 1
        elif event == "call" and "/tensordict/" in name:
            self.tensordict += 1

    def cells(self) -> list[int]:
        """Calls, functions, files, depth, calls into tensordict."""
        files = {name for name, _ in self.functions}
        calls = self.functions.total()
        return [calls, len(self.functions), len(files), self.depth, self.tensordict]


def recorded(act: Callable[[], object]) -> Calls:
    """Record one call after three that warm it up."""
    for _ in range(3):
        act()
    calls = Calls()
    sys.setprofile(calls)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls


Act = tuple[str, Callable[[], object]]


def acts() -> Iterator[Act]:
    """One call of each path that a user takes at every step."""
    yield from acts_of_buffers()
    yield from acts_of_learning()


def acts_of_buffers() -> Iterator[Act]:
    """Writes and samples of replay buffers."""
    from rl_layout.synthetic import trajectories
    from rl_replay import LazyTensorStorage, ReplayBuffer, SliceSampler

    batch = trajectories([50, 30, 20])
    rows = batch[0]
    kinds = {
        "": ReplayBuffer(storage=LazyTensorStorage(10_000), batch_size=32),
        " lossless": ReplayBuffer(storage=LazyTensorStorage(10_000, lossless=True)),
        " shared": ReplayBuffer(storage=LazyTensorStorage(10_000), shared=True),
    }
    for name, buffer in kinds.items():
        yield f"ReplayBuffer.extend{name}", lambda buffer=buffer: buffer.extend(batch)
        if not name:
            yield "ReplayBuffer.add", lambda buffer=buffer: buffer.add(rows)
            yield "ReplayBuffer.sample uniform", buffer.sample
    slices = ReplayBuffer(
        storage=LazyTensorStorage(10_000), sampler=SliceSampler(num_slices=4), batch_size=32
    )
    slices.extend(batch)
    yield "ReplayBuffer.sample slices", slices.sample


def acts_of_learning() -> Iterator[Act]:
    """A step of an environment, a batch of a collector, and what a learner computes of it."""
    import torch
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule

    from rl_collect import Collector
    from rl_envs import GymEnv, SerialEnv
    from rl_layout import set_recurrent_mode
    from rl_policies import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
    from rl_recurrent import GRUModule
    from rl_value import GAE

    env = GymEnv("CartPole-v1")
    root = env.rand_action(env.reset())
    yield "GymEnv.step", lambda: env.step(root)
    layers = MLP(in_features=4, out_features=2, num_cells=[32, 32])
    actor = ProbabilisticActor(
        TensorDictModule(layers, ["observation"], ["logits"]),
        in_keys=["logits"],
        spec=env.action_spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    vector = SerialEnv(4, lambda: GymEnv("CartPole-v1"))
    collector = Collector(vector, actor, frames_per_batch=8, total_frames=10_000)
    batches = iter(collector)
    yield "Collector.next", lambda: next(batches)
    critic = ValueOperator(MLP(in_features=4, out_features=1, num_cells=[32]), ["observation"])
    collected = next(batches)
    gae = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    yield "GAE.forward", lambda: gae(collected.clone())
    gru = GRUModule(input_size=4, hidden_size=8, in_key="observation", out_key="embedding")
    flat = TensorDict(
        observation=torch.rand(100, 4),
        is_init=torch.arange(100).unsqueeze(-1) % 25 == 0,
        recurrent_state=torch.zeros(100, 1, 8),
        batch_size=[100],
    )

    def unroll() -> object:
        with set_recurrent_mode(True):
            return gru(flat.clone())

    yield "GRUModule.forward", unroll
    collector.shutdown()


def print_calls() -> None:
    """Print what one call of each path passes through inside our packages."""
    names = ("calls", "functions", "files", "depth", "tensordict")
    print(f"{'one call of':<30}" + "".join(f"{name:>11}" for name in names))
    for name, act in acts():
        print(f"{name:<30}" + "".join(f"{cell:>11}" for cell in recorded(act).cells()))


def print_files(wanted: str) -> None:
    """Print the files that one call opens, and how often it calls which line of each."""
    # recorded while its collector or environment is open, which the next one closes
    calls = next((recorded(act) for name, act in acts() if name == wanted), None)
    if calls is None:
        raise SystemExit(f"there is no {wanted!r}: --calls lists the names.")
    lines: dict[str, list[str]] = defaultdict(list)
    for (name, line), count in sorted(calls.functions.items()):
        top = next(folder for folder in folders() if name.startswith(folder))
        place = Path(name).relative_to(Path(top).parent)
        lines[str(place)].append(f"{function_at(name, line)} x{count}")
    for name, functions in sorted(lines.items()):
        print(f"{name}: {', '.join(functions)}")


def function_at(path: str, line: int) -> str:
    """The name of the function whose code begins at a line, after its decorators."""
    for text in Path(path).read_text(encoding="utf-8").splitlines()[line - 1 :]:
        words = text.split("(")[0].split()
        if words and words[0] in ("def", "class"):
            return words[1]
        if not text.lstrip().startswith("@"):
            break
    return f"line {line}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print the shape of the code.")
    parser.add_argument("--calls", action="store_true", help="only what one call passes through")
    parser.add_argument("--packages", action="store_true", help="only what each package holds")
    parser.add_argument("--files", metavar="CALL", help="the files that one call opens")
    options = parser.parse_args()
    if options.files:
        print_files(options.files)
        raise SystemExit
    if options.calls or not options.packages:
        print_calls()
    if options.packages or not options.calls:
        print_packages()
