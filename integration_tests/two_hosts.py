"""Two hosts on one machine: a cluster of Ray, ranks of torchrun, and a firewall between them.

Run with `nox -s two_hosts`, as root, with iproute2 and nftables. Each host is a network namespace
with an address of its own; the second one has its own processes, shared memory and files of Ray
as well. Prints what each case came to; the exit status is 1 where one failed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl_collect import DistributedSyncCollector, RayCollector
from rl_envs.testing import CountingEnv, EpisodeStepEnv
from rl_layout import check_layout
from rl_replay import LazyTensorStorage, RayReplayBuffer, SliceSampler
from rl_workers import WorkerDied

HOSTS = {"rl_one": "10.77.0.1", "rl_two": "10.77.0.2"}
FIRST, SECOND = HOSTS
PORTS = range(20_000, 20_010)
STARTS_WITHIN_S = 120
HERE, FAR = ({"num_cpus": 1, "resources": {place: 1}} for place in HOSTS)
SESSION = {
    "address": f"{HOSTS[FIRST]}:6379",
    "_node_ip_address": HOSTS[FIRST],
    "log_to_driver": False,
}
EPISODES = functools.partial(EpisodeStepEnv, [(7, "terminated"), (4, "truncated")])
NFT = "nft add table inet t; nft add chain inet t i '{ type filter hook input priority 0; }'"


def shell(text: str) -> None:
    """Run commands."""
    subprocess.run(["sh", "-ec", text], check=True)


@contextlib.contextmanager
def hosts() -> Iterator[None]:
    """Two namespaces that see each other, and nothing else."""
    try:
        shell(f"ip netns add {FIRST}; ip netns add {SECOND}")
        shell(f"ip link add {FIRST} type veth peer name {SECOND}")
        for name, address in HOSTS.items():
            shell(f"ip link set {name} netns {name}; ip -n {name} addr add {address}/24 dev {name}")
            shell(f"ip -n {name} link set {name} up; ip -n {name} link set lo up")
        yield
    finally:
        for name in HOSTS:
            shell(f"ip netns pids {name} | xargs -r kill -9; ip netns del {name}")


@contextlib.contextmanager
def firewall(verdict: str) -> Iterator[None]:
    """On the first host, for what the second one sends to the ports of batches; run there."""
    rule = f"iifname {FIRST} tcp dport {PORTS.start}-{PORTS.stop - 1} {verdict}"
    shell(f"{NFT}; nft add rule inet t i {rule}")
    try:
        yield
    finally:
        shell("nft delete table inet t")


def start_ray(home: str) -> list[subprocess.Popen[bytes]]:
    """A node of Ray on each host."""
    common = "--num-cpus=2 --object-store-memory=100000000 --block"
    head = f"ray start --head --port=6379 --include-dashboard=false --temp-dir={home} {common}"
    other = f"ray start --address={SESSION['address']} {common}"
    own = f"mount -t tmpfs tmpfs /dev/shm; mount -t tmpfs tmpfs {home}; exec "
    found = []
    for name, text in {FIRST: head, SECOND: other}.items():
        text = f"{text} --node-ip-address={HOSTS[name]} --resources='{{\"{name}\": 2}}'"
        apart = ["unshare", "--mount", "--pid", "--fork", "--mount-proc"] if name == SECOND else []
        command = ["sh", "-c", (own if apart else "exec ") + text]
        path = Path(home, f"{name}.log")
        with path.open("wb") as log:
            inside = ["ip", "netns", "exec", name, *apart, *command]
            found.append(subprocess.Popen(inside, stdout=log, stderr=log))
        end = time.monotonic() + STARTS_WITHIN_S
        while b"runtime started" not in path.read_bytes():
            if time.monotonic() > end or found[-1].poll() is not None:
                raise TimeoutError(f"{name}: {path.read_text()}")
            time.sleep(0.5)
    return found


def collector(**options: Any) -> RayCollector:
    """A worker on each host."""
    places = {"remote_configs": [HERE, FAR], "ray_init_config": SESSION, "ports": PORTS}
    return RayCollector([EPISODES] * 2, frames_per_batch=2000, **places, **options)


def batches_and_buffers() -> None:
    """Batches come by the connection; a buffer on either host takes rows of both."""
    with collector(sync=True) as found:
        assert found.stats()["routes"] == ["socket", "blocks"]
        assert not check_layout(found.next()).findings
    storage = functools.partial(LazyTensorStorage, 16_000, lossless=True)
    parts = {"storage": storage, "sampler": SliceSampler(slice_len=4), "batch_size": 32}
    for place in (HERE, FAR):
        with RayReplayBuffer(remote_config=place | {"num_cpus": 0}, **parts) as buffer:
            assert buffer.is_attached == (place is HERE)
            with collector(sync=True, replay_buffer=buffer, total_frames=4000) as found:
                list(found)
            assert len(buffer) == 4000
            assert len(buffer.sample()) == 32
            assert not check_layout(buffer[:].exclude("index")).findings


def refused_connections() -> None:
    """Ray brings what cannot come by the connection, and a warning names the port."""
    for verdict in ("reject with tcp reset", "drop"):
        with firewall(verdict), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with collector(sync=True) as found:
                assert found.stats()["routes"] == ["socket", "ray"]
                assert found.next().shape == (2, 1000)
        assert any(f"{HOSTS[FIRST]}:{PORTS.start}" in str(one.message) for one in told)


def cut_connection() -> None:
    """The other worker continues, and the error names the port."""
    with collector(min_workers=2) as found, firewall("drop"):
        longest_s, message, end = 0.0, "", time.monotonic() + 120
        try:
            while (begin := time.monotonic()) < end:
                found.next()
                longest_s = max(longest_s, time.monotonic() - begin)
        except WorkerDied as error:
            message = str(error)
        assert f"{HOSTS[FIRST]}:{PORTS.start}" in message
        print(f"  longest wait for a batch meanwhile: {longest_s:.1f} s", flush=True)
        assert longest_s < 15


def learner() -> None:
    """All cases of Ray, on the first host."""
    for case in (batches_and_buffers, refused_connections, cut_connection):
        print(case.__doc__.splitlines()[0], flush=True)
        case()


def rank() -> None:
    """What torchrun runs on both hosts."""
    options = {"frames_per_batch": 3000, "total_frames": 9000}
    with DistributedSyncCollector(lambda: CountingEnv(5), **options) as found:
        assert sum(batch.numel() for batch in found) == 9000
    print("ranks of torchrun on both hosts: 9000 steps", flush=True)


def main() -> int:
    """Run all cases."""
    me = [sys.executable, str(Path(__file__).resolve())]
    with tempfile.TemporaryDirectory(prefix="ray") as home, hosts():
        os.environ |= {"HOME": home, "RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}
        nodes = start_ray(home)
        codes = [subprocess.call(["ip", "netns", "exec", FIRST, *me, "learner"])]
        for one in nodes:
            one.terminate()
            one.wait()
        torchrun = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2"]
        torchrun += [f"--master-addr={HOSTS[FIRST]}", "--master-port=29500"]
        ranks = [
            subprocess.Popen(
                [
                    *("ip", "netns", "exec", name, "env", f"GLOO_SOCKET_IFNAME={name}"),
                    *(sys.executable, *torchrun, f"--node-rank={number}", me[1], "rank"),
                ]
            )
            for number, name in enumerate(HOSTS)
        ]
        codes += [one.wait() for one in ranks]
    return int(any(codes))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        {"learner": learner, "rank": rank}[sys.argv[1]]()
    elif os.geteuid() or not all(shutil.which(name) for name in ("ip", "nft", "unshare")):
        sys.exit("this needs root, iproute2, nftables and util-linux.")
    else:
        sys.exit(main())
