import pytest

from pipeline.formulas.operations import BACKWARD, FORWARD, WHOLE, Widths, flops, moved_bytes, product_flops
from pipeline.formulas.parameters import block_parameter_count
from pipeline.formulas.sizes import SIZES, OwnSize
from pipeline.subjects.naming import OPERATIONS

WIDTHS = Widths(SIZES["2.7B"], batch_size=4, seq_len=1024, vocab_size=10_000)
N, D, F = 4096, 2560, 10240


def test_a_norm_with_its_sum_moves_eight_tensors_and_its_weight():
    assert moved_bytes("rms_norm", WHOLE, WIDTHS, 2) == 2 * (8 * N * D + 3 * D)
    assert moved_bytes("rms_norm", FORWARD, WIDTHS, 2) == 2 * (4 * N * D + D)


def test_swiglu_moves_three_tensors_and_five():
    assert moved_bytes("swiglu", FORWARD, WIDTHS, 2) == 2 * 3 * N * F
    assert moved_bytes("swiglu", BACKWARD, WIDTHS, 2) == 2 * 5 * N * F


def test_rotary_moves_queries_and_the_fewer_keys_both_ways():
    shared = Widths(OwnSize(64, 128, 1, 8, 2), 1, 16, 100)
    assert moved_bytes("rotary", FORWARD, shared, 4) == 4 * 2 * 16 * (64 + 16) + 4 * 16 * 8


def test_an_optimizer_reads_four_tensors_and_writes_three():
    assert moved_bytes("adamw", WHOLE, WIDTHS, 4) == 4 * 7 * block_parameter_count(WIDTHS.size)


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name != "adamw"])
def test_both_phases_move_what_each_does(operation):
    parts = [moved_bytes(operation, phase, WIDTHS, 2) for phase in (FORWARD, BACKWARD)]
    assert moved_bytes(operation, WHOLE, WIDTHS, 2) == sum(parts)
    assert min(parts) > 0


def test_only_the_head_multiplies_and_backward_twice_as_much():
    forward, backward, whole = (product_flops("linear_cross_entropy", p, WIDTHS) for p in (FORWARD, BACKWARD, WHOLE))
    assert (forward, backward, whole) == (2 * N * D * 10_000, 4 * N * D * 10_000, 6 * N * D * 10_000)
    assert {product_flops(name, WHOLE, WIDTHS) for name in OPERATIONS if name != "linear_cross_entropy"} == {0}


def test_between_products_there_is_about_one_flop_a_byte_and_in_the_head_hundreds():
    per_byte = {name: flops(name, WHOLE, WIDTHS) / moved_bytes(name, WHOLE, WIDTHS, 2) for name in OPERATIONS}
    head = per_byte.pop("linear_cross_entropy")
    assert all(0.5 < work < 2 for work in per_byte.values())
    assert head > 1000


@pytest.mark.parametrize("operation", OPERATIONS)
def test_both_phases_compute_what_each_does(operation):
    assert flops(operation, WHOLE, WIDTHS) == sum(flops(operation, phase, WIDTHS) for phase in (FORWARD, BACKWARD))


def test_flops_follow_the_numbers_that_an_operation_is_done_for():
    shared = Widths(OwnSize(64, 128, 1, 8, 2), 1, 16, 100)
    assert flops("rotary", FORWARD, shared) == 3 * 16 * (64 + 16)
    assert flops("swiglu", BACKWARD, WIDTHS) == 11 * N * F
    assert flops("adamw", WHOLE, WIDTHS) == 14 * block_parameter_count(WIDTHS.size)
