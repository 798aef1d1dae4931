"""What an interpreter cannot tell: that the kernels compile for a Hopper multiprocessor."""

import os
import subprocess
import sys

PROGRAM = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from rl_value.scan.triton import gae_kernels, scan_kernels
from rl_value.scan.triton.linear_scan import TileSizes

sizes = TileSizes.of(4096)
chosen = {"ROWS": sizes.rows, "MANY": True, "BLOCK": sizes.block}
kinds = {"num_rows": "i32", "steps": "i32", "chunks": "i32", "gamma": "fp32", "decay": "fp32"}
kinds |= {"terminated": "*i1", "done": "*i1"}
warps = {"chunk_totals": 1, "carries": 8, "scan_chunks": 8, "gae_totals": 1, "gae_chunks": 8}
for name, count in warps.items():
    kernel = getattr(gae_kernels if name.startswith("gae") else scan_kernels, name)
    fixed = {key: chosen[key] for key in kernel.arg_names if key in chosen}
    signature = {key: kinds.get(key, "*fp32") for key in kernel.arg_names}
    signature |= dict.fromkeys(fixed, "constexpr")
    aligned = [at for at, key in enumerate(kernel.arg_names) if signature[key] == "*fp32"]
    attrs = {(at,): [["tt.divisibility", 16]] for at in aligned}
    source = ASTSource(kernel, signature, fixed, attrs)
    target = GPUTarget("cuda", 90, 32)
    made = triton.compile(source, target=target, options={"num_warps": count})
    assert made.metadata.shared < 48 * 1024, made.metadata.shared
    if name.startswith("gae"):
        continue
    vectors = "ld.global.v4" in made.asm["ptx"]
    assert vectors == (name == "scan_chunks"), name  # a mask of single rows would part the access
"""


def test_the_kernels_compile_for_hopper():
    plain = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=plain, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
