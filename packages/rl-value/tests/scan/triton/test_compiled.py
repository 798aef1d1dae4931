"""What an interpreter cannot tell: that the kernels compile for a Hopper multiprocessor."""

import os
import subprocess
import sys

PROGRAM = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from rl_value.scan.triton import scan_kernels
from rl_value.scan.triton.linear_scan import TileSizes

tiles = TileSizes.of(100, 1)  # few rows, which compile sooner
fixed = {"ROWS": tiles.rows, "COLUMNS": tiles.columns}
kinds = {"num_rows": "i32", "num_columns": "i32", "chunks": "i32"}
for kernel in (scan_kernels.chunk_totals, scan_kernels.scan_chunks):
    chosen = {**fixed, "GROUP": tiles.group}
    chosen = {key: chosen[key] for key in kernel.arg_names if key in chosen}
    signature = {key: kinds.get(key, "*fp32") for key in kernel.arg_names}
    signature |= dict.fromkeys(chosen, "constexpr")
    options = {"num_warps": 4, "enable_fp_fusion": True}
    source = ASTSource(kernel, signature, chosen)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert 0 < made.metadata.shared < 48 * 1024, made.metadata.shared
"""


def test_the_kernels_compile_for_hopper():
    plain = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=plain, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
