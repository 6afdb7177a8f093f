import pytest

from pipeline.formulas.operations import BACKWARD, FORWARD, WHOLE, Widths, flops, moved_bytes, product_flops
from pipeline.formulas.parameters import block_parameter_count
from pipeline.formulas.sizes import SIZES, OwnSize
from pipeline.subjects.naming import OPERATIONS

WIDTHS = Widths(SIZES["2.7B"], batch_size=4, seq_len=1024, vocab_size=10_000)
N, D, F = 4096, 2560, 10240
SHARED = Widths(OwnSize(64, 128, 1, 8, 2), 1, 16, 100)
BLOCK = block_parameter_count(WIDTHS.size)


@pytest.mark.parametrize(
    ("operation", "phase", "widths", "element_bytes", "moved"),
    [
        ("rms_norm", FORWARD, WIDTHS, 2, 2 * (4 * N * D + D)),
        ("rms_norm", WHOLE, WIDTHS, 2, 2 * (8 * N * D + 3 * D)),  # eight tensors and the weight
        ("swiglu", FORWARD, WIDTHS, 2, 2 * 3 * N * F),
        ("swiglu", BACKWARD, WIDTHS, 2, 2 * 5 * N * F),
        ("rotary", FORWARD, SHARED, 4, 4 * 2 * 16 * (64 + 16) + 4 * 16 * 8),  # queries and fewer keys, read and written
        ("linear_cross_entropy", FORWARD, WIDTHS, 2, 2 * (N + 10_000) * D + 8 * N),
        ("adamw", WHOLE, WIDTHS, 4, 4 * 7 * BLOCK),  # four tensors are read and three written
    ],
)
def test_moved_bytes_are_those_of_the_tensors_read_and_written(operation, phase, widths, element_bytes, moved):
    assert moved_bytes(operation, phase, widths, element_bytes) == moved


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_whole_is_the_sum_of_forward_and_backward(operation):
    assert flops(operation, WHOLE, WIDTHS) == sum(flops(operation, phase, WIDTHS) for phase in (FORWARD, BACKWARD))
    if operation != "adamw":
        parts = [moved_bytes(operation, phase, WIDTHS, 2) for phase in (FORWARD, BACKWARD)]
        assert moved_bytes(operation, WHOLE, WIDTHS, 2) == sum(parts)
        assert min(parts) > 0


def test_only_the_head_has_product_flops_twice_as_many_in_backward():
    found = [product_flops("linear_cross_entropy", phase, WIDTHS) for phase in (FORWARD, BACKWARD, WHOLE)]
    assert found == [count * N * D * 10_000 for count in (2, 4, 6)]
    assert flops("linear_cross_entropy", WHOLE, WIDTHS) == found[2]
    assert {product_flops(name, WHOLE, WIDTHS) for name in OPERATIONS if name != "linear_cross_entropy"} == {0}


def test_flops_are_proportional_to_the_elements_of_an_operation():
    assert flops("rms_norm", WHOLE, WIDTHS) == 15 * N * D
    assert flops("rotary", FORWARD, SHARED) == 3 * 16 * (64 + 16)
    assert flops("swiglu", BACKWARD, WIDTHS) == 11 * N * F
    assert flops("adamw", WHOLE, WIDTHS) == 14 * BLOCK
