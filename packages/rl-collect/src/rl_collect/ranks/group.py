"""The group of ranks that a script belongs to, and the machine that a rank is on."""

from __future__ import annotations

import hashlib
import os
import pathlib
from datetime import timedelta
from typing import Any

import torch.distributed as dist

_UNLIMITED = timedelta(days=365)  # a worker may wait for its next batch as long as it likes
_HOW = "start it by `torchrun --nproc-per-node=3 script.py`, by srun, or use MultiCollector"


class RankGroup:
    """All ranks of a script, in a group of their own; the first one is the learner."""

    def __init__(self) -> None:
        if not dist.is_available():
            raise RuntimeError("this build of torch has no torch.distributed: use MultiCollector.")
        self._is_ours = not dist.is_initialized()
        if self._is_ours:
            missing = [name for name in ("RANK", "WORLD_SIZE") if name not in os.environ]
            if missing:
                msg = f"this script is no rank ({' and '.join(missing)} are not set): {_HOW}."
                raise ValueError(msg)
            dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        if self.size < 2:
            self.close()
            msg = f"one rank is the learner, and no other is there to play: {_HOW}."
            raise ValueError(msg)
        # gloo, whatever the script's own group is: batches and weights travel on the CPU
        self.handle: Any = dist.new_group(backend="gloo", timeout=_UNLIMITED)

    def close(self) -> None:
        """Leave the group, and the script's own if it was made here."""
        if self._is_ours:
            if dist.is_initialized():
                dist.destroy_process_group()
        elif dist.is_initialized():
            dist.destroy_process_group(self.handle)


def machine() -> str:
    """A name of this machine; two launchers of one machine are taken for two machines."""
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    parts = boot.strip(), os.readlink("/proc/self/ns/pid"), os.environ.get("GROUP_RANK", "0")
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]
