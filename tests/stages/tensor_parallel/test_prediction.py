from dataclasses import replace

import pytest

from pipeline.formulas.feed_forward_parallel import Layer, cost
from pipeline.formulas.mesh import Block
from pipeline.formulas.parameters import parameter_count
from pipeline.formulas.sizes import SIZES
from pipeline.stages.tensor_parallel.cell import IMPLS, Cell
from pipeline.stages.tensor_parallel.prediction import PASSES, Rates, predicted, shares

CELL = Cell(world_size=4)
TOKENS, WIDTH, INNER = 8 * 2048, 2560, 10240
VOCAB = 10_000


def both_passes(impl, cell=CELL):
    return [predicted(impl, cell, VOCAB, phase) for phase in PASSES]


@pytest.mark.parametrize(("what", "impl"), [(what, impl) for what in IMPLS for impl in IMPLS[what] if impl != "none"])
def test_ranks_share_the_work_of_one_process_evenly(what, impl):
    cell = replace(CELL, what=what)
    for own, whole in zip(both_passes(impl, cell), both_passes("none", cell), strict=True):
        assert own.flops == pytest.approx(whole.flops / 4)
        assert own.activation_bytes + own.weight_bytes > 0
        assert whole.activation_bytes == whole.weight_bytes == 0


def test_a_block_includes_the_courses_feed_forward_layer():
    layer = Layer(Block(WIDTH, INNER, 3), TOKENS, 1, 1)
    for phase in PASSES:
        x, y = shares("fsdp_tensor", 4)
        course, ours = cost(layer, phase, x, y), predicted("fsdp_tensor", CELL, VOCAB, phase)
        # Attention's four matrices are a third of SwiGLU's three, and its output is as large.
        assert ours.weight_bytes == pytest.approx(course.weight_bytes * (1 + 4 * WIDTH / (3 * INNER)))
        assert ours.activation_bytes == 2 * course.activation_bytes
        assert ours.flops > course.flops * (1 + 4 * WIDTH / (3 * INNER))  # and attention's own products


def test_times_are_work_over_rates_and_the_ring_sends_twice_as_much_backward():
    fsdp, context = both_passes("fsdp"), both_passes("context")
    keys_and_values = 2 * 2 * TOKENS * WIDTH * 3 / 4
    assert [each.activation_bytes for each in context] == [keys_and_values, 2 * keys_and_values]
    assert [each.weight_bytes for each in context] == [each.weight_bytes for each in fsdp]
    work, rates = predicted("context", CELL, VOCAB, "forward"), Rates(1e12, 1e9, 2e9)
    assert work.compute_ms(rates) == pytest.approx(work.flops / 1e9)
    sent_ms = work.activation_bytes / 1e6 + work.weight_bytes / 2e6
    assert work.communication_ms(rates) == pytest.approx(sent_ms)


def test_fp32_sends_twice_as_much_and_fsdp_sends_each_matrix_three_times_per_step():
    fp32 = both_passes("fsdp_tensor", replace(CELL, precision="fp32"))
    for half, full in zip(both_passes("fsdp_tensor"), fp32, strict=True):
        assert full.activation_bytes == 2 * half.activation_bytes
        assert full.weight_bytes == 2 * half.weight_bytes
        assert full.flops == half.flops
    works = both_passes("fsdp", replace(CELL, what="step"))
    norms = WIDTH * (2 * 32 + 1)
    matrices = parameter_count(SIZES["2.7B"], VOCAB) - norms
    assert sum(each.weight_bytes for each in works) == pytest.approx(3 * 2 * matrices * 3 / 4)
