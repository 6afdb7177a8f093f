"""Check that Gluon's private names still work, by compiling without a GPU and without Triton's interpreter."""

import os
import subprocess
import sys

import pytest

from pipeline.attention.triton.kernel_sets import has_gluon

COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language.nvidia.hopper import tma
from pipeline.compat.gluon_private import tma_reduce_add

@gluon.jit
def kernel(pointer):
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([16, 16], gl.float32)
    tile = gl.allocate_shared_memory(gl.float32, [16, 16], LAYOUT)
    there = tma.make_tensor_descriptor(pointer, [64, 16], [16, 1], [16, 16], LAYOUT)
    tma_reduce_add(there, [16, 0], tile)
    tma.store_wait(0)

source = GluonASTSource(kernel, signature={"pointer": "*fp32"}, constexprs={})
print(triton.compile(source, target=GPUTarget("cuda", 90, 32), options={}).asm["ptx"])
"""


@pytest.mark.skipif(not has_gluon(), reason="Triton has no Gluon")
def test_tma_reduce_add_compiles_to_an_asynchronous_bulk_add(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(COMPILE)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    found = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add" in found.stdout
