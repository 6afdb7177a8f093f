import pytest
import torch

from pipeline.attention.eager import eager_attention
from pipeline.attention.reference import exact_attention


def inputs(n_queries, n_keys, dtype, leading=(2, 3)):
    generator = torch.Generator().manual_seed(0)
    lengths = (n_queries, n_keys, n_keys, n_queries)
    return [torch.randn(*leading, n, 16, generator=generator, dtype=torch.float64).to(dtype) for n in lengths]


def by_autograd(q, k, v, output_gradient, is_causal):
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    output = eager_attention(*leaves, is_causal)
    return [output, *torch.autograd.grad(output, leaves, output_gradient.double())]


@pytest.mark.parametrize("chunk_elements", [1, 7 * 24, 2**25])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("n_queries", "n_keys"), [(24, 24), (9, 24), (24, 9), (1, 1)])
def test_chunks_of_any_size_give_what_autograd_gives_of_the_whole_matrix(n_queries, n_keys, is_causal, chunk_elements):
    tensors = inputs(n_queries, n_keys, torch.float64)
    found = exact_attention(*tensors, is_causal, chunk_elements)
    expected = by_autograd(*tensors, is_causal)
    for actual, wanted in zip((found.output, found.dq, found.dk, found.dv), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-13)


def test_low_precision_inputs_are_taken_as_they_are_and_computed_in_fp64():
    tensors = inputs(24, 24, torch.bfloat16)
    found = exact_attention(*tensors, True)
    assert found.output.dtype == found.dk.dtype == torch.float64
    torch.testing.assert_close(found.dq, by_autograd(*tensors, True)[1], rtol=1e-12, atol=1e-13)


def test_no_more_of_the_score_matrix_is_there_than_was_allowed():
    tensors = inputs(64, 64, torch.float64, leading=(1,))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        exact_attention(*tensors, False, chunk_elements=8 * 64)
    softmaxes = [event.input_shapes[0] for event in profile.events() if event.name == "aten::_softmax"]
    assert softmaxes == [[8, 64]] * 8
