import pytest
import torch

from pipeline.attention.eager import eager_attention
from pipeline.ranges import listening

from .reference import assert_equal, by_formula, random_inputs, results


def formula(q, k, v, is_causal):
    return by_formula(q, k, v, is_causal)[0]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("n_queries", "n_keys"), [(24, 24), (9, 24), (24, 9), (1, 1)])
def test_output_and_gradients_equal_the_formula_in_fp64(n_queries, n_keys, is_causal):
    inputs = random_inputs((2, 3, n_queries, 16), n_keys, torch.float64)
    found, expected = (results(function, *inputs, is_causal) for function in (eager_attention, formula))
    assert_equal(found, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_rounding_error_is_that_of_the_dtype(dtype, tolerance):
    q, k, v, _ = random_inputs((2, 3, 64, 16), 64, dtype)
    output = eager_attention(q, k, v, True)
    assert output.dtype == dtype
    torch.testing.assert_close(
        output.double(), formula(q.double(), k.double(), v.double(), True), rtol=0, atol=tolerance
    )


def test_ranges_name_the_phases_in_order():
    names = []

    def listen(name):
        names.append(name)
        return torch.profiler.record_function(name)

    with listening(listen):
        eager_attention(*random_inputs((2, 3, 4, 16), 4, torch.float32)[:3], True)
    assert names == ["attention scores", "mask", "softmax", "final matmul"]
