"""Every task of the repository. `nox` runs what a push needs; `nox -l` lists the rest."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import nox
from packaging.requirements import Requirement

nox.needs_version = ">=2025.11"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "types", "docs", "tests", "integration", "slow", "ray", "examples"]

ROOT = Path(__file__).parent
PACKAGES = {
    path.parent.name: nox.project.load_toml(path)
    for path in sorted(ROOT.glob("packages/*/pyproject.toml"))
}
EXAMPLES = sorted(ROOT.glob("examples/*.py"))
BUILT: set[str] = set()  # what this process has made: shared folders, wheels of packages

HOUSE = nox.project.load_toml(ROOT / "pyproject.toml")["tool"]["house"]
HEAVY: list[str] = HOUSE["heavy"]
OF_EXTRAS: list[str] = HOUSE["of_extras"]

BY_FILE = ["-n", "2", "--dist", "loadfile"]  # tests in two processes
BY_TEST = ["-n", "2", "--dist", "worksteal"]
WHOLE_PATH = ["gymnasium", "matplotlib", "psutil"]  # what integration tests need in addition
WITH_TORCH = {"torch", "tensordict"}  # installed once for all sessions
RUNNERS = {"pytest", "pytest-xdist", "sybil", "hypothesis"}  # with scripts, in each environment

each_package = nox.parametrize("package", [nox.param(n, id=n, tags=[n]) for n in PACKAGES])


def module(name: str) -> str:
    """The import name of a package."""
    return name.replace("-", "_")


def declared(name: str) -> list[str]:
    """The distributions that a package declares."""
    return [Requirement(line).name for line in PACKAGES[name]["project"].get("dependencies", [])]


def extras(*names: str) -> set[str]:
    """The distributions that only extras of these packages bring."""
    lists = (PACKAGES[name]["project"].get("optional-dependencies", {}) for name in names)
    return {Requirement(line).name for each in lists for lines in each.values() for line in lines}


def closure(*names: str) -> list[str]:
    """These packages and ours below them, lowest first."""
    found: list[str] = []
    for name in names:
        found += [*closure(*(d for d in declared(name) if d in PACKAGES)), name]
    return list(dict.fromkeys(found))


def editable(names: list[str]) -> list[str]:
    """Install arguments that link to the source of these packages."""
    return [argument for name in names for argument in ("-e", f"packages/{name}")]


def needs(which: str, *names: str) -> tuple[list[str], list[str]]:
    """What these packages list for one kind of work: our packages by name, and everything else."""
    lines = [line for n in names for line in nox.project.dependency_groups(PACKAGES[n], which)]
    ours = [name for line in lines if (name := Requirement(line).name) in PACKAGES]
    return ours, list(dict.fromkeys(line for line in lines if Requirement(line).name not in ours))


def groups(which: str, *names: str) -> list[str]:
    """What these packages need for one kind of work that is not ours."""
    return needs(which, *names)[1]


def work(which: str, *names: str) -> list[str]:
    """Install arguments: these packages from source, and what one kind of work with them needs."""
    ours, others = needs(which, *names)
    return [*editable(closure(*names, *ours)), *others]


def install(session: nox.Session, *arguments: str, torch: bool = True) -> None:
    """Install with the versions that this repository is tested with.

    Only what a session imports is compiled, when it is imported: that halves the time. Sessions see
    one copy of torch and tensordict, so that 800 MB are installed and compiled once.
    """
    session.env["PYTHONDONTWRITEBYTECODE"] = ""
    if torch:
        see(session, shared_folder(session, "torch", *sorted(WITH_TORCH, reverse=True)))
    session.install("--no-compile", "-c", "constraints.txt", *arguments)
    bring_kernels(session)


def site_packages(session: nox.Session) -> Path:
    """Where the environment of a session holds what is installed."""
    return next(Path(session.virtualenv.location).glob("lib/python*/site-packages"))


def see(session: nox.Session, folder: Path) -> None:
    """Let a session import what a shared folder holds, and pip know of it."""
    (site_packages(session) / f"{folder.name}.pth").write_text(f"{folder}\n", encoding="utf-8")


def see_all_extras(session: nox.Session) -> None:
    """Let a session see what the tests of all packages need, installed once for all sessions."""
    lines = [*groups("test", *PACKAGES), *WHOLE_PATH]
    extras = [line for line in lines if Requirement(line).name not in WITH_TORCH | RUNNERS]
    see(session, shared_folder(session, "extras", *extras))


def bring_kernels(session: nox.Session) -> None:
    """Copy what numba compiled in earlier sessions next to the same sources of this one.

    It is loaded only where the bytes of its source file are the same.
    """
    kernels, packages = kernel_folder(session), site_packages(session)
    for path in kernels.glob("**/*.nb[ci]"):
        copy = packages / path.relative_to(kernels)
        if copy.parent.parent.is_dir():  # a package that is not installed stays away
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, copy)


def keep_kernels(session: nox.Session) -> None:
    """Keep what numba compiled of our packages for the sessions that follow."""
    kernels, packages = kernel_folder(session), site_packages(session)
    for path in packages.glob("rl_*/**/__pycache__/*.nb[ci]"):
        copy = kernels / path.relative_to(packages)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def kernel_folder(session: nox.Session) -> Path:
    """Where compiled kernels are kept: those of a run before may call what has changed since."""
    folder = session.cache_dir.resolve() / "kernels"
    if "kernels" not in BUILT:
        shutil.rmtree(folder, ignore_errors=True)
        BUILT.add("kernels")
    return folder


def install_wheels(session: nox.Session, ours: list[str], *others: str, torch: bool = True) -> None:
    """Install packages of ours from their wheels, as a user does, and others.

    An environment that stays holds our older wheels of the same version: they are replaced.
    """
    names = closure(*(Requirement(line).name for line in ours))
    folder = built(session, *names)
    install(session, "--find-links", str(folder), *ours, *others, torch=torch)
    if session.virtualenv.reuse_existing:
        again = [str(next(folder.glob(f"{module(name)}-*.whl"))) for name in names]
        install(session, "--force-reinstall", "--no-deps", *again, torch=torch)


def shared_folder(session: nox.Session, name: str, *distributions: str) -> Path:
    """A folder with distributions and what they bring, installed once in a run."""
    folder = session.cache_dir.resolve() / name
    if name not in BUILT:
        shutil.rmtree(folder, ignore_errors=True)
        quiet = ["-q", "--no-compile", "-c", "constraints.txt", "--target", str(folder)]
        session.run("python", "-m", "pip", "install", *quiet, *distributions)
        BUILT.add(name)
    return folder


def frees_disk(function: Callable[..., None]) -> Callable[..., None]:
    """Remove the environment of a session that passed: 30 of 1 to 3 GB fill a disk.

    Compiled kernels stay for the sessions that follow. `nox -r` keeps environments, to use them
    again.
    """

    @functools.wraps(function)
    def run(session: nox.Session, *arguments: str, **options: str) -> None:
        function(session, *arguments, **options)
        keep_kernels(session)
        if not session.virtualenv.reuse_existing:
            shutil.rmtree(session.virtualenv.location)

    return run


@nox.session
@frees_disk
def lint(session: nox.Session) -> None:
    """Check style, layers and what every package folder must hold; `-- --fix` mends style."""
    install(session, "ruff", "import-linter", "networkx", "pytest", "packaging", torch=False)
    session.env["PYTHONPATH"] = os.pathsep.join(
        ["tools", *(f"packages/{name}/src" for name in PACKAGES)]
    )
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", *([] if "--fix" in session.posargs else ["--check"]))
    contracts = str(Path(session.create_tmp()) / "contracts.toml")
    session.run("python", "tools/layers.py", contracts, *HEAVY)
    session.run("lint-imports", "--config", contracts, "--no-cache")
    session.run("pytest", "--confcutdir=tools", "tools/tests")
    session.run("python", "tools/contracts.py")


@nox.session
@frees_disk
def types(session: nox.Session) -> None:
    """Check the types of every package, strictly."""
    see_all_extras(session)
    install_wheels(session, list(PACKAGES), "mypy", *groups("test", *PACKAGES))
    session.run("mypy", *(f"packages/{name}/src" for name in PACKAGES))


@nox.session
@each_package
@frees_disk
def tests(session: nox.Session, package: str) -> None:
    """Test the wheel of one package: what users are shown with the package alone, then all.

    Where tests bring no extra of the package, what was shown alone would be shown the same again.
    """
    ours, others = needs("test", package)
    places = [f"packages/{package}"]
    if not session.virtualenv.reuse_existing:
        run_alone(session, package)
        names = {Requirement(line).name for line in [*ours, *others]} - RUNNERS
        if not extras(*closure(package)) & names:
            left = (path for name in OF_EXTRAS for path in ROOT.glob(f"{places[0]}/src/{name}.py"))
            places = [f"{places[0]}/tests", *(str(path.relative_to(ROOT)) for path in left)]
    install_wheels(session, [package, *ours], *others)
    split = BY_FILE if any("pytest-xdist" in line for line in others) else []
    run_tests(session, *places, split=split)


def run_alone(session: nox.Session, package: str) -> None:
    """Install a package as a user does, and run what users are shown without test extras."""
    needed = {line for name in closure(package) for line in declared(name)}
    install_wheels(session, [package], "pytest", "sybil", torch="torch" in needed)
    below = [name for name in closure(package) if name != package]
    heavy = [name for name in HEAVY if name not in needed]
    session.run("python", "tools/installed.py", package, *below, "--heavy", *heavy)
    ignored = [f"--ignore-glob=packages/*/src/{path}.py" for path in OF_EXTRAS]
    session.run("pytest", f"packages/{package}/README.md", f"packages/{package}/src", *ignored)


def run_tests(session: nox.Session, *places: str, split: Sequence[str] = ()) -> None:
    """Run tests, and then those alone that look at what all processes of the machine leave.

    A test of more than ten seconds, and one that needs Ray, have sessions of their own.
    """
    others = "not slow and not ray"
    session.run("pytest", *places, "-m", f"{others} and not alone", *split, *session.posargs)
    if files := marked("alone", *places):
        codes = [0, 5] if session.posargs else [0]  # with -k there may be none
        chosen = ["-m", f"{others} and alone", *session.posargs]
        session.run("pytest", *files, *chosen, success_codes=codes)


def marked(mark: str, *places: str) -> list[str]:
    """The files that hold a mark, and the folders of such a conftest: to read all takes longer."""
    found = (
        path
        for place in places
        for path in sorted((ROOT / place).rglob("*.py"))
        if f"mark.{mark}" in path.read_text(encoding="utf-8")
    )
    names = (path.parent if path.name == "conftest.py" else path for path in found)
    return [str(path.relative_to(ROOT)) for path in names]


def built(session: nox.Session, *names: str) -> Path:
    """The folder with the wheels of these packages; each is built once, with one hatchling."""
    folder = session.cache_dir.resolve() / "wheels"
    if not BUILT & set(PACKAGES):
        shutil.rmtree(folder, ignore_errors=True)
    missing = [name for name in names if name not in BUILT]
    if missing:
        paths = [f"packages/{name}" for name in missing]
        quiet = ["-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
        backend = {"PYTHONPATH": str(shared_folder(session, "hatchling", "hatchling"))}
        session.run("pip", "wheel", *quiet, *paths, env=backend)
    BUILT.update(missing)
    return folder


@nox.session
@frees_disk
def ray(session: nox.Session) -> None:
    """Run the tests that need a session of Ray, the page about clusters, and a short training."""
    names = ["rl-collect", "rl-replay"]
    ours, others = needs("test", *names)
    install_wheels(session, [*(f"{name}[ray]" for name in names), *ours], *others, *WHOLE_PATH)
    tests = marked("ray", *(f"packages/{name}" for name in names))
    session.run("pytest", *tests, "-m", "ray", *session.posargs)
    session.run("pytest", "docs/cluster.md", env={"RAY_AUTH_MODE": "disabled"})
    path = ROOT / install_example(session, "ppo_recurrent_cartpole")
    with tempfile.TemporaryDirectory() as folder, session.chdir(folder):
        options = ["--ray", "2", "--steps", "3000"]
        session.run("python", str(path), *options, env={"RAY_AUTH_MODE": "disabled"})


@nox.session
@frees_disk
def integration(session: nox.Session) -> None:
    """Run the pages with only what the packages declare, then the whole path with all extras."""
    install_wheels(session, list(PACKAGES), "pytest", "sybil")
    session.run("pytest", "README.md", "docs")
    see_all_extras(session)
    install(session, *groups("test", *PACKAGES), *WHOLE_PATH)
    run_tests(session, "integration_tests", "docs", "README.md", split=BY_TEST)


@nox.session
@frees_disk
def slow(session: nox.Session) -> None:
    """Run the tests of more than ten seconds, against the wheels of all packages."""
    see_all_extras(session)
    install_wheels(session, list(PACKAGES), *groups("test", *PACKAGES), *WHOLE_PATH)
    tests = marked("slow", "packages", "integration_tests")
    session.run("pytest", *tests, "-m", "slow", *BY_TEST, *session.posargs)


@nox.session(default=False)
def envpool(session: nox.Session) -> None:
    """Test EnvPool's environments with its wheel, which takes 700 MB with what it brings."""
    install(session, *work("test", "rl-envs"), "-e", "packages/rl-envs[envpool]")
    session.run("pytest", "packages/rl-envs/tests/gym/test_envpool.py", *session.posargs)


@nox.session(default=False)
@frees_disk
def simulators(session: nox.Session) -> None:
    """Test environments of other libraries with their wheels, and the page about them."""
    extras = "atari,minigrid,pettingzoo,popgym"
    install(session, *work("test", "rl-envs"), "-e", f"packages/rl-envs[{extras}]", "gymnax", "six")
    folder = "packages/rl-envs/tests"
    tests = ["agents", *(f"gym/test_{name}.py" for name in ("missions", "popgym", "atari"))]
    session.run("pytest", *(f"{folder}/{name}" for name in tests))
    session.run("pytest", "docs/other-environments.md")  # JAX warns where a process forks later
    # dm_control fails with the mujoco 4 of the others
    session.install("--no-compile", "shimmy==2.0.1", "dm_control==1.0.50", "mujoco==3.17.0")
    session.run("pytest", f"{folder}/gym/test_dm_control.py", env={"MUJOCO_GL": "disabled"})


@nox.session(default=False)
def soak(session: nox.Session) -> None:
    """Collect, sample and train for five minutes: nothing may grow, and nothing may be left."""
    install(session, *editable(list(PACKAGES)), "gymnasium", "psutil")
    session.run("python", "integration_tests/soak.py", *session.posargs)


@nox.session(default=False)
def two_hosts(session: nox.Session) -> None:
    """Collect over two hosts, network namespaces with a firewall between; needs root and nft."""
    install(session, *editable(list(PACKAGES)), "gymnasium", "ray")
    session.run("python", "integration_tests/two_hosts.py")


@nox.session(default=False)
def faults(session: nox.Session) -> None:
    """Kill, interrupt and fuzz for five minutes in all, or `-- --seconds 60`; print the figures."""
    install(session, *editable(list(PACKAGES)), *groups("test", *PACKAGES), "gymnasium")
    session.run("python", "tools/run_faults.py", *session.posargs)


@nox.session
@frees_disk
def examples(session: nox.Session) -> None:
    """Run every example with only what it declares; `-- NAME --steps 9` runs one with options."""
    install_examples(session, EXAMPLES, "packaging")
    session.run("python", "tools/run_examples.py", *session.posargs)


def install_examples(session: nox.Session, paths: list[Path], *more: str) -> None:
    """Install what examples declare, ours from wheels, and more."""
    lines = [line for path in paths for line in nox.project.load_toml(path)["dependencies"]]
    ours = [line for line in dict.fromkeys(lines) if Requirement(line).name in PACKAGES]
    others = [line for line in dict.fromkeys(lines) if line not in ours]
    install_wheels(session, ours, *others, *more)


def install_example(session: nox.Session, script: str) -> str:
    """Install what an example declares, and return its path."""
    path = f"examples/{script}.py"
    install_examples(session, [ROOT / path])
    return path


@nox.session(default=False)
def demo(session: nox.Session) -> None:
    """Train a recurrent agent until it balances a pole whose speed it cannot see."""
    path = install_example(session, "ppo_recurrent_cartpole")
    session.run("python", path, *session.posargs)


@nox.session(default=False)
def seeds(session: nox.Session) -> None:
    """Train the agent of `demo` from ten seeds drawn now; nine must solve the task."""
    path = install_example(session, "ppo_recurrent_cartpole")
    session.run("python", "tools/solved_seeds.py", path, *session.posargs)


@nox.session
@frees_disk
def docs(session: nox.Session) -> None:
    """Build the documentation; a broken reference is an error."""
    see_all_extras(session)
    tools = ["sphinx", "myst-parser", "furo", *groups("test", *PACKAGES)]
    install_wheels(session, list(PACKAGES), *tools)
    session.run("sphinx-build", "-W", "-n", "-q", "-j", "2", "docs", "docs/_build")


@nox.session(default=False)
@each_package
def bench(session: nox.Session, package: str) -> None:
    """Print the speed of one package next to its peers; take the machine for yourself."""
    run_benchmarks(session, package)


@nox.session(name="bench-compare", default=False)
@each_package
def bench_compare(session: nox.Session, package: str) -> None:
    """Hold benchmarks against the last record of such a machine; `-- --keep` keeps the new one."""
    run_benchmarks(session, package, "tools/bench_compare.py")


def run_benchmarks(session: nox.Session, package: str, *tool: str) -> None:
    """Run each benchmark of a package, by a tool where one is given."""
    install(session, *work("bench", package))
    for path in sorted(Path("packages", package, "benchmarks").glob("*.py")):
        session.run("python", *tool, str(path), *session.posargs, env={"PYTHONPATH": "tools"})


@nox.session(default=False)
def interpret(session: nox.Session) -> None:
    """Test the Triton kernels on the CPU, by Triton's interpreter; plain `nox` does so as well."""
    folders = sorted(path.relative_to(ROOT) for path in ROOT.glob("packages/*/tests/**/triton"))
    install(session, *work("test", *(folder.parts[1] for folder in folders)))
    session.run("pytest", *map(str, folders), *session.posargs, env={"TRITON_INTERPRET": "1"})


@nox.session(default=False)
@each_package
def gpu(session: nox.Session, package: str) -> None:
    """Run the tests of one package that need a CUDA device; no device is a failure here."""
    install(session, *work("test", package))
    session.run("pytest", f"packages/{package}", "-m", "gpu", env={"RL_REQUIRE_GPU": "1"})


@nox.session(default=False)
def shape(session: nox.Session) -> None:
    """Print what one call passes through, and what each package holds."""
    install(session, *editable(list(PACKAGES)), "gymnasium", "grimp", "networkx")
    session.run("python", "tools/shape.py", *session.posargs)


@nox.session(default=False)
def wheels(session: nox.Session) -> None:
    """Build a wheel of every package into `dist`, for `pip install --find-links dist NAME`."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    shutil.copytree(built(session, *PACKAGES), ROOT / "dist")


@nox.session(default=False, venv_backend="none")
def versions(session: nox.Session) -> None:
    """List the packages, their versions, their layers and the ones that they depend on."""
    for name, project in PACKAGES.items():
        row = [name, project["project"]["version"], str(project["tool"]["house"]["layer"])]
        sys.stdout.write("  ".join([*row, ", ".join(closure(name)[:-1]) or "-"]) + "\n")
