"""Compile the backward kernel of RMSNorm for several GPUs, in another process, as this one may interpret kernels."""

import json
import os
import subprocess
import sys

import pytest

KIB = 1024
SHARED_KIB = {80: 163, 86: 99, 90: 227}  # that a program may use, by compute capability
WIDTHS = (2050, 4096, 4097, 8192)
COMPILE = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from pipeline.attention.triton.gpu import Gpu
from pipeline.model.fused.triton import rms_norm

def shared_bytes(capability, shared_kib, width, dtype, adds):
    gpu = Gpu("", "nvidia", (capability // 10, capability % 10), 100, shared_kib * 1024)
    _, rows_ahead = rms_norm._backward_grid(10_000, width, {"fp32": 4, "bf16": 2}[dtype], 2 + adds, gpu)
    kernel = rms_norm.rms_norm_backward_kernel
    constants = {"BLOCK": triton.next_power_of_2(width), "ADD": adds, "STAGES": 1 + rows_ahead}
    if not adds:
        constants["addend_ptr"] = None
    kinds = {"rows": "i32", "width": "i32", "eps": "fp32", "dw_parts_ptr": "*fp32"}
    signature = {n: "constexpr" if n in constants else kinds.get(n, f"*{dtype}") for n in kernel.arg_names}
    aligned = {n for n, kind in signature.items() if kind.startswith("*") or (n == "width" and width % 16 == 0)}
    attributes = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(kernel.arg_names) if n in aligned}
    source = ASTSource(kernel, signature=signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": rms_norm._warps(width)}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).metadata.shared

print(json.dumps([shared_bytes(*words) for words in json.loads(sys.argv[1])]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED_KIB)
def test_the_rows_that_rms_norm_loads_ahead_fit_into_shared_memory(capability):
    cases = [
        (capability, SHARED_KIB[capability], width, dtype, adds)
        for width in WIDTHS
        for dtype in ("fp32", "bf16")
        for adds in (False, True)
    ]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    words = [sys.executable, "-c", COMPILE, json.dumps(cases)]
    found = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    for case, shared_bytes in zip(cases, json.loads(found.stdout), strict=True):
        assert 0 < shared_bytes <= SHARED_KIB[capability] * KIB, case
