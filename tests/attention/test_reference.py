import pytest
import torch

from pipeline.attention.eager import eager_attention
from pipeline.attention.reference import exact_attention, natural_scales

from .reference import assert_equal, random_inputs, results


def inputs(n_queries, n_keys, dtype=torch.float64, leading=(2, 3)):
    return random_inputs((*leading, n_queries, 16), n_keys, dtype)


SHAPES = [(24, 24, True, 1), (9, 24, True, 7 * 24), (24, 9, True, 7 * 24), (24, 9, False, 1), (1, 1, True, 2**25)]
every_shape = pytest.mark.parametrize(("n_queries", "n_keys", "is_causal", "chunk_elements"), SHAPES)


@every_shape
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_chunks_of_any_size_match_autograd_in_fp64(dtype, n_queries, n_keys, is_causal, chunk_elements):
    tensors = inputs(n_queries, n_keys, dtype)
    exact = exact_attention(*tensors, is_causal, chunk_elements)
    by_autograd = results(eager_attention, *(tensor.double() for tensor in tensors), is_causal)
    assert_equal((exact.output, exact.dq, exact.dk, exact.dv), by_autograd, rtol=1e-12, atol=1e-13)


@every_shape
def test_natural_scales_sum_the_absolute_values_of_products(n_queries, n_keys, is_causal, chunk_elements):
    q, k, v, do = (x[0, 0] for x in inputs(n_queries, n_keys))
    scores = torch.stack([(q * key).sum(-1) for key in k], dim=1) / 4  # √head_dim
    future = torch.arange(n_keys) > torch.arange(n_queries)[:, None]
    weights = torch.softmax(scores.masked_fill(future, -torch.inf) if is_causal else scores, dim=-1)
    values = torch.einsum("ij,jd->ijd", weights, v)  # their sum over keys is the output
    # The products that sum to a score's gradient, weight · (do · v - do · output).
    of_output = (do[:, None, None] * values[:, None]).flatten(2, 3).expand(-1, n_keys, -1)
    parts = torch.cat([do[:, None] * v, -of_output], -1) * weights[..., None] / 4
    expected = {
        "output": values.abs().sum(1),
        "dq": torch.einsum("ijs,jd->ijsd", parts, k).abs().sum((1, 2)),
        "dk": torch.einsum("ijs,id->ijsd", parts, q).abs().sum((0, 2)),
        "dv": torch.einsum("ij,id->ijd", weights, do).abs().sum(0),
    }
    exact = exact_attention(q[None], k[None], v[None], do[None], is_causal, chunk_elements)
    for quantity, wanted in expected.items():
        torch.testing.assert_close(getattr(exact, f"scale_{quantity}")[0], wanted, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(torch.einsum("ijs,jd->id", parts, k), exact.dq[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("kv_heads", "is_causal"), [(1, False), (2, True), (3, True)])
def test_shared_heads_of_keys_give_the_same_as_copies_of_them(kv_heads, is_causal):
    q, _, _, do = inputs(24, 24, leading=(2, 6))
    _, k, v, _ = inputs(24, 24, leading=(2, kv_heads))
    exact = exact_attention(q, k, v, do, is_causal)
    of_copies = exact_attention(q, *[x.repeat_interleave(6 // kv_heads, dim=1) for x in (k, v)], do, is_causal)
    for name in ("output", "dq", "scale_output", "scale_dq"):
        torch.testing.assert_close(getattr(exact, name), getattr(of_copies, name), rtol=1e-12, atol=1e-13)
    for name in ("dk", "dv", "scale_dk", "scale_dv"):
        summed = getattr(of_copies, name).unflatten(1, (kv_heads, -1)).sum(2)
        torch.testing.assert_close(getattr(exact, name), summed, rtol=1e-12, atol=1e-13)


def test_errors_of_weights_cause_errors_of_the_predicted_size():
    q, k, v, do = (x[0, 0] for x in inputs(9, 24, torch.float64))
    v, do = v.abs(), do.abs()  # so that their products do not cancel
    weights = torch.softmax(q @ k.mT / 4, dim=-1)
    errors = torch.full_like(weights, 1e-3)
    output, _, _, dv = natural_scales(weights, q, k, v, do, errors)
    torch.testing.assert_close(output, (weights + errors) @ v - weights @ v)
    torch.testing.assert_close(dv, (weights + errors).mT @ do - weights.mT @ do)


def test_the_error_of_a_vanishing_gradient_is_relative_to_its_natural_scale():
    q, k, v, do = inputs(5, 1, torch.float32)
    exact = exact_attention(q, k, v, do, False)
    assert exact.dk.norm() < 1e-12 * exact.scale_dk.norm()
    assert exact.relative_error("dk", 1e-3 * exact.scale_dk) == pytest.approx(1e-3)
    assert exact.relative_error("output", 1.1 * exact.output) == pytest.approx(0.1)


def test_no_more_than_chunk_elements_of_the_score_matrix_exist_at_once():
    tensors = inputs(64, 64, leading=(1,))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        exact_attention(*tensors, False, chunk_elements=8 * 64)
    softmaxes = [event.input_shapes[0] for event in profile.events() if event.name == "aten::_softmax"]
    assert softmaxes == [[8, 64]] * 8
