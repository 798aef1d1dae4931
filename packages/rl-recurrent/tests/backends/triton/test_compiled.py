"""What an interpreter cannot tell: that the kernels compile, and fit on a Hopper multiprocessor."""

import json
import os
import subprocess
import sys

SHARED = 227 * 1024  # bytes of shared memory that one program may have
CASES = [
    ("lstm_kernels", "backward_resident", 128, 100, "bf16"),
    ("lstm_kernels", "forward_streamed", 128, 100, "tf32x3"),
]
PROGRAM = """
import importlib, json, sys
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from rl_recurrent.backends.triton.launch import Frame, make_plan

kinds = dict.fromkeys(("num_segments", "begin", "end"), "i32")
kinds |= dict.fromkeys(("order", "first", "length"), "*i64")

def shared_bytes(module, name, size, count, precision):
    kernel = getattr(importlib.import_module(f"rl_recurrent.backends.triton.{module}"), name)
    plan = make_plan(size, count, precision, torch.float32)
    options = Frame(None, None, None, None, plan).options()
    compiler = {key: options.pop(key) for key in ("num_warps", "num_stages", "enable_fp_fusion")}
    options |= {"H": size, "KEEP": True, "CELL_USED": True}
    fixed = {key: options[key] for key in kernel.arg_names if key in options}
    operand = {"w_hh": "*bf16" if precision == "bf16" else "*fp32"}
    signature = {key: {**kinds, **operand}.get(key, "*fp32") for key in kernel.arg_names}
    signature |= dict.fromkeys(fixed, "constexpr")
    pointers = [i for i, kind in enumerate(signature.values()) if kind.startswith("*")]
    aligned = {(i,): [["tt.divisibility", 16]] for i in pointers}
    source = ASTSource(kernel, signature, fixed, aligned)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=compiler)
    return made.metadata.shared

print(json.dumps([shared_bytes(*case) for case in json.loads(sys.argv[1])]))
"""


def test_largest_kernels_compile_for_hopper_and_fit_its_shared_memory():
    plain = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", PROGRAM, json.dumps(CASES)]
    done = subprocess.run(command, env=plain, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert all(0 < size <= SHARED for size in json.loads(done.stdout)), done.stdout
