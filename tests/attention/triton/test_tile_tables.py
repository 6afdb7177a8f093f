"""Which GPU gets which tables of tiles; an H200's tiles; the results by the others', in Triton's interpreter."""

from dataclasses import astuple, replace

import pytest
import torch

from pipeline.attention.triton.autograd import planned_by
from pipeline.attention.triton.gpu import KIB
from pipeline.attention.triton.tile_tables import AMD_TILES, HOPPER_TILES, SMALL_TILES, tables_for
from pipeline.attention.triton.tiles import PLAIN
from tools.tuning.every_gpu import GPUS

from ..reference import assert_fp32_is_exact, assert_rounded_at_most, random_inputs

TABLES = {"99 KB": SMALL_TILES, "64 KB, AMD": AMD_TILES}
WIDTHS = (16, 32, 64, 128, 256)
# An H200's, timed there: width, number of keys, then block of queries, of keys, warps, stages and registers of the
# forward kernel, of that of dk and dv, of that of dq, and of the one for short sequences.
H200_BF16 = """
 16   100  64,128,4,2      64,64,4,3      -             64,64,4,2
 16   512  64,64,4,3       64,64,4,3      -             64,64,4,2
 16  4096  64,128,4,3      64,64,4,3      -             64,64,4,2
 32   100  64,128,4,2      64,64,4,2,128  -             64,64,4,2
 32   512  64,64,4,3       64,64,4,2,128  -             64,64,4,2
 32  4096  64,128,4,3      64,64,4,2,128  -             64,64,4,2
 64   100  64,128,4,2      64,64,4,3,168  64,64,4,3     64,64,4,2
 64   512  64,64,4,3       64,64,4,3,168  64,64,4,3     64,64,4,2
 64  4096  64,128,4,2,168  64,64,4,3,168  64,64,4,3     64,64,4,2
 64 16384  64,128,4,3,168  128,64,4,2     128,64,4,3    64,64,4,2
128   100  64,128,4,2      64,64,4,2      128,64,8,3    64,64,8,2
128   512  64,64,4,3       64,64,4,2      128,64,8,3    64,64,8,2
128  4096  64,128,4,1,168  64,64,4,2      128,64,8,3    64,64,8,2
128 16384  64,128,4,1,168  64,64,4,2      128,64,8,3    64,64,8,2
256   100  128,64,8,2      32,64,8,2      64,32,8,2     32,64,8,1
256  4096  128,64,8,2      32,64,8,2      64,32,8,2     32,64,8,1
"""
H200_FP32 = """
 16  4096  64,64,4,2       64,64,4,2      -             32,32,4,1
 32  4096  64,64,4,2       64,64,4,2      -             32,32,4,1
 64   100  128,64,8,3      64,32,4,2      -             32,32,4,1
 64 16384  128,64,8,3      64,32,4,2      -             32,32,4,1
128  4096  128,64,8,1      32,32,4,1      -             32,32,8,1
256  4096  64,32,4,1       32,16,8,1      16,32,8,1     16,16,8,1
"""


def written(tiles):
    return "-" if tiles is None else ",".join(str(number) for number in astuple(tiles) if number is not None)


@pytest.mark.parametrize(
    ("dtype", "table"), [(torch.bfloat16, H200_BF16), (torch.float16, H200_BF16), (torch.float32, H200_FP32)]
)
def test_an_h200_gets_the_tiles_that_were_timed_there(dtype, table):
    tables = tables_for(GPUS["sm_90"])
    for line in table.split("\n")[1:-1]:
        width, n_keys, *expected = line.split()
        backward = PLAIN.backward(dtype, int(width), int(n_keys), tables)
        found = (
            PLAIN.forward(dtype, int(width), int(n_keys), tables),
            backward.key_value,
            backward.query,
            backward.short,
        )
        assert list(map(written, found)) == expected, line


def test_the_tables_of_every_gpu_fit_into_its_shared_memory():
    assert {name: tables_for(gpu).shared_bytes // KIB for name, gpu in GPUS.items()} == {
        "sm_80": 99,
        "sm_86": 99,
        "sm_89": 99,
        "sm_90": 227,
        "sm_100": 99,
        "sm_120": 99,
        "gfx942": 64,
    }
    assert all(tables_for(gpu).shared_bytes <= gpu.shared_bytes for gpu in GPUS.values())


def test_with_less_of_it_a_gpu_gets_smaller_tiles():
    assert tables_for(replace(GPUS["sm_90"], shared_bytes=100 * KIB)) is SMALL_TILES
    assert tables_for(replace(GPUS["sm_86"], shared_bytes=64 * KIB)) is AMD_TILES


@pytest.mark.parametrize("tables", TABLES)
def test_every_width_has_tiles_and_amds_limit_no_registers(tables):
    tables = TABLES[tables]
    for table in (tables.forward, tables.forward_fp32, tables.backward, tables.backward_fp32):
        assert tuple(table) == tuple(HOPPER_TILES.forward) == WIDTHS
    assert "max_registers=1" not in repr(AMD_TILES)  # an option that Triton refuses for them


@pytest.mark.parametrize("tables", TABLES)
@pytest.mark.parametrize("head_dim", [16, 80, 256])
@pytest.mark.parametrize("longest_short_sequence", [0, 1024], ids=["kernels apart", "one kernel"])
def test_small_tiles_give_the_same_forward_and_backward(longest_short_sequence, head_dim, tables):
    choices = replace(PLAIN, tables=TABLES[tables], longest_short_sequence=longest_short_sequence)
    attend = planned_by(choices).apply
    in_fp32 = random_inputs((1, 1, 70, head_dim), 150, torch.float32)
    assert_fp32_is_exact(attend, *in_fp32, True)
    # The interpreter cuts to bf16 where a GPU rounds: twice the error of results and weights, rounded once each.
    assert_rounded_at_most(4, attend, *(tensor.bfloat16() for tensor in in_fp32), True)
