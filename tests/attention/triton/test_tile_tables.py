import math
from dataclasses import replace

import pytest
import torch

from pipeline.attention.triton.autograd import planned_by
from pipeline.attention.triton.gpu import KIB
from pipeline.attention.triton.tile_tables import AMD_TILES, HOPPER_TILES, SMALL_TILES, tables_for
from pipeline.attention.triton.tiles import IN_USE, PLAIN
from tools.tuning.every_gpu import GPUS

from ..reference import assert_fp32_is_exact, assert_rounded_at_most, random_inputs
from ..small_tiles import IN_CHUNKS

TABLES = {"99 KB": SMALL_TILES, "64 KB, AMD": AMD_TILES}


def test_the_tables_of_every_gpu_fit_into_its_shared_memory():
    of_99_kb = ("sm_80", "sm_86", "sm_89", "sm_100", "sm_120")
    expected = dict.fromkeys(of_99_kb, 99) | {"sm_90": 227, "gfx942": 64}
    assert {name: tables_for(gpu).shared_bytes // KIB for name, gpu in GPUS.items()} == expected
    assert all(tables_for(gpu).shared_bytes <= gpu.shared_bytes for gpu in GPUS.values())


def test_a_gpu_with_less_shared_memory_gets_smaller_tiles():
    assert tables_for(replace(GPUS["sm_90"], shared_bytes=100 * KIB)) is SMALL_TILES
    assert tables_for(replace(GPUS["sm_86"], shared_bytes=64 * KIB)) is AMD_TILES


@pytest.mark.parametrize("tables", [HOPPER_TILES, *TABLES.values()], ids=["Hopper", *TABLES])
def test_every_width_has_tiles_and_amd_tiles_do_not_limit_registers(tables):
    for table in (tables.forward, tables.forward_fp32, tables.backward, tables.backward_fp32):
        assert tuple(table) == (16, 32, 64, 128, 256)
    text = repr(AMD_TILES)
    assert text.count("max_registers=") == text.count("max_registers=None") > 0  # Triton refuses this option on AMD


@pytest.mark.parametrize(
    ("tables", "head_dim", "longest_short_sequence"),
    [("99 KB", 16, 0), ("99 KB", 256, 0), ("99 KB", 80, 1024), ("64 KB, AMD", 80, 0), ("64 KB, AMD", 256, 1024)],
)
def test_smaller_tiles_are_as_exact_forward_and_backward(longest_short_sequence, head_dim, tables):
    choices = replace(PLAIN, tables=TABLES[tables], longest_short_sequence=longest_short_sequence)
    attend = planned_by(choices).apply
    in_fp32 = random_inputs((1, 1, 70, head_dim), 150, torch.float32)
    assert_fp32_is_exact(attend, *in_fp32, True)
    # The interpreter truncates to bf16 where a GPU rounds: twice the error of results and weights, rounded once each.
    assert_rounded_at_most(4, attend, *(tensor.bfloat16() for tensor in in_fp32), True)


@pytest.mark.parametrize("chunking", [getattr(IN_USE, name) for name in IN_CHUNKS])
@pytest.mark.parametrize(("tiles", "length"), [(1, 16384), (100, 4096), (527, 65536), (1056, 65536), (3, 100)])
def test_chunks_are_tile_aligned_and_as_few_as_fill_the_gpu(chunking, tiles, length):
    chunk = IN_USE.chunk_length(chunking, tiles, length, 64, multiprocessors=132)
    wanted = chunking.programs_per_sm * 132
    if tiles >= wanted or length < chunking.shortest:
        assert chunk == length
    else:
        assert chunk == length or chunk % max(64, chunking.min_length) == 0
        assert tiles * math.ceil(length / chunk) < wanted + tiles


@pytest.mark.parametrize(
    ("tiles", "length", "chunk"), [(16, 1024, 128), (17, 1024, 256), (64, 1024, 256), (8, 2048, 256), (1, 16384, 256)]
)
def test_keys_are_cut_finer_only_if_that_gives_one_wave_of_few_chunks(tiles, length, chunk):
    assert IN_USE.chunk_length(IN_USE.forward_chunks, tiles, length, 64, multiprocessors=132) == chunk


@pytest.mark.parametrize(("n_keys", "block"), [(64, 64), (65, 128), (128, 128), (129, 64), (1023, 64), (1024, 128)])
def test_few_keys_get_small_tiles_unless_one_tile_holds_them_all(n_keys, block):
    assert IN_USE.forward(torch.bfloat16, 64, n_keys).block_keys == block


@pytest.mark.parametrize(
    ("head_dim", "length", "forward", "backward"),
    [(64, 1023, False, False), (64, 1024, True, True), (65, 1, False, True), (128, 1023, False, True)],
)
def test_few_rows_are_loaded_through_pointers_except_by_wide_backward_tiles(head_dim, length, forward, backward):
    assert IN_USE.forward_gains_by_tma(length) == forward
    assert IN_USE.backward_gains_by_tma(head_dim, length) == backward
