import pytest

from pipeline.formulas.faster_products import linear_flops, predicted_gain
from pipeline.formulas.flops import attention_forward_flops, train_step_flops
from pipeline.formulas.parameters import head_matrix_elements
from pipeline.formulas.sizes import SIZES

SIZE, BATCH, CONTEXT, VOCABULARY = SIZES["2.7B"], 4, 1024, 10_000


def test_linear_flops_are_those_of_a_step_without_attention_and_head():
    head = 6 * BATCH * CONTEXT * head_matrix_elements(SIZE, VOCABULARY)
    attention = 3 * SIZE.num_layers * attention_forward_flops(SIZE, BATCH, CONTEXT)
    whole = train_step_flops(SIZE, VOCABULARY, BATCH, CONTEXT)
    assert linear_flops(SIZE, BATCH, CONTEXT) == whole - head - attention


@pytest.mark.parametrize(("flops", "gain"), [(0, 1.0), (4 * 10**12, 1 / 0.75), (10**14, 2.0)])
def test_products_that_run_twice_as_fast_save_half_of_their_time(flops, gain):
    assert predicted_gain(flops, 10.0, 800.0, 1600.0) == pytest.approx(gain)
