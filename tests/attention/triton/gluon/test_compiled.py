"""Compile the Gluon kernels for Hopper at the tiles in use, in another process, as this one may interpret kernels."""

import json
import os
import subprocess
import sys

import pytest

from pipeline.attention.triton.gluon.parts import tiles as parts_tiles
from pipeline.attention.triton.gluon.tiles import BACKWARD, FORWARD, FORWARD_SHORT
from pipeline.attention.triton.kernel_sets import has_gluon
from tools.tuning.candidates import MOST_SPILLS, SHARED_BYTES_PER_PROGRAM

pytestmark = pytest.mark.skipif(not has_gluon(), reason="Triton has no Gluon")

# Arguments: kernel, tile width, head_dim, dtype, causal, query heads per key head, whether the last tile is partial.
COMPILE = """
import dataclasses, json, sys
from pipeline.attention.triton.gluon import launches
from pipeline.attention.triton.gluon.parts import launches as parts
from pipeline.attention.triton.gluon.parts import tiles as parts_tiles
from pipeline.attention.triton.gluon.pieces import FIRST_NAMED_BARRIER
from pipeline.attention.triton.gluon.tiles import FORWARD, FORWARD_SHORT, backward_tiles
from tools.tuning.compiled import compile_gluon_for_hopper

def report(kernel, width, head_dim, dtype, is_causal, per_kv, has_part_tile):
    shared = (is_causal, per_kv, head_dim)
    backward = backward_tiles(head_dim)
    if kernel == "backward":
        specialization = launches.backward_kernel(backward, *shared, has_part_tile, is_causal and per_kv > 1)
    elif kernel == "query":
        specialization = launches.query_kernel(backward.query, *shared)
    elif kernel == "fp32_forward":
        specialization = parts.forward_kernel(parts_tiles.FORWARD[width], *shared)
    elif kernel == "fp32_key_value":
        specialization = parts.key_value_kernel(parts_tiles.BACKWARD[width], *shared)
    elif kernel == "fp32_query":
        specialization = parts.query_kernel(parts_tiles.BACKWARD[width].query, *shared)
    else:
        tiles = {"forward": FORWARD, "forward_short": FORWARD_SHORT}[kernel][width]
        specialization = launches.forward_kernel(tiles, *shared)
    compiled, constants, options = specialization
    if kernel == "fp32_key_value" or (kernel == "backward" and backward.query):
        constants["dq_sum_ptr"] = None
    return compile_gluon_for_hopper(compiled, constants, options, dtype)

reports = [dataclasses.asdict(report(*words)) for words in json.loads(sys.argv[1])]
print(json.dumps([FIRST_NAMED_BARRIER.value, reports]))
"""
# Tile widths, and head_dims that get each: the largest, the smallest, and some whose columns are multiplied in parts.
TABLES = {
    "forward": {64: (64, 40), 128: (128, 104, 96, 80, 72), 256: (256, 136)},
    "forward_short": {width: (width, width // 2 + 8) for width in FORWARD_SHORT},
    "backward": {64: (64, 40), 80: (80, 72), 96: (96, 88), 128: (128, 104), 256: (256, 136)},
    "query": {256: (256, 136)},
    **{f"fp32_{name}": {64: (64, 40), 128: (128, 72)} for name in ("forward", "key_value", "query")},
}
EVERY = [
    (kernel, width, head_dim, dtype, is_causal, per_kv, has_part_tile)
    for kernel, table in TABLES.items()
    for width, head_dims in table.items()
    for head_dim in head_dims
    for dtype in (("fp32",) if kernel.startswith("fp32") else ("bf16", "fp16"))
    for is_causal in (True, False)
    for per_kv in (1, 4)
    for has_part_tile in ((True, False) if kernel == "backward" and width < 256 else (False,))
]


def test_the_kernels_are_compiled_at_every_width():
    assert TABLES["forward"].keys() == FORWARD.keys()
    assert TABLES["backward"].keys() == BACKWARD.keys()
    assert TABLES["fp32_forward"].keys() == parts_tiles.FORWARD.keys()
    assert TABLES["fp32_key_value"].keys() == parts_tiles.BACKWARD.keys()


@pytest.mark.slow
@pytest.mark.parametrize("kernel", TABLES)
def test_kernels_of_all_tiles_fit_keep_tensor_cores_busy_and_hardly_spill(kernel):
    compiled = [words for words in EVERY if words[0] == kernel]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    words = [sys.executable, "-c", COMPILE, json.dumps(compiled)]
    found = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    first_own_barrier, reports = json.loads(found.stdout)
    for words, report in zip(compiled, reports, strict=True):
        assert report["shared_bytes"] <= SHARED_BYTES_PER_PROGRAM, (words, report)
        assert report["wgmma"] > 3 * report["wgmma_waits"] > 0, (words, report)
        assert report["mma_sync"] == 0, (words, report)
        assert report["touched_early"] == 0, (words, report)
        if kernel == "backward":  # which has named barriers of its own
            assert report["barriers"] <= first_own_barrier, (words, report)
        if kernel == "forward_short":
            assert report["programs_per_sm"] >= FORWARD_SHORT[words[1]].programs_per_sm, (words, report)
        # The spills are scalars of two warpgroups, which each keep two sums, scores and their gradients in registers.
        most = 3 * MOST_SPILLS if kernel in ("backward", "query", "fp32_key_value", "fp32_query") else 16
        assert report["spill_instructions"] <= most, (words, report)
