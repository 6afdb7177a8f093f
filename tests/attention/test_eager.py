import pytest
import torch

from pipeline.attention.eager import eager_attention

from .reference import assert_equal, by_formula, random_inputs, results


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("n_queries", "n_keys"), [(24, 24), (9, 24), (24, 9), (1, 1)])
def test_output_and_gradients_equal_the_formula_in_fp64(n_queries, n_keys, is_causal):
    inputs = random_inputs((2, 3, n_queries, 16), n_keys, torch.float64)
    expected = results(lambda *given: by_formula(*given)[0], *inputs, is_causal)
    assert_equal(results(eager_attention, *inputs, is_causal), expected, rtol=1e-7, atol=1e-7)
