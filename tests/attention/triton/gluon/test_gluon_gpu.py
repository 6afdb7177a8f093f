"""Compare the Gluon kernels on a Hopper GPU with fp64 and with the plain kernels, at inputs that get them."""

import itertools
import math
from functools import partial

import pytest
import torch

from pipeline.attention import FlashAttentionTriton, flash_attention
from pipeline.attention.triton.autograd import planned_by
from pipeline.attention.triton.gluon.tiles import backward_tiles
from pipeline.attention.triton.kernel_sets import has_gluon, kernels_of
from pipeline.attention.triton.tiles import PLAIN

from ...reference import (
    assert_as_exact_as_torchs_fp32_kernel,
    assert_fp32_is_exact,
    assert_rounded_at_most,
    random_inputs,
    results,
    uncancelled_inputs,
)

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0) and has_gluon()
pytestmark = [pytest.mark.gpu(shared=True), pytest.mark.skipif(not IS_HOPPER, reason="no Hopper GPU, or no Gluon")]

# Multiples of every tile, of none, fewer queries than keys, more, and long enough for the tiles for many keys.
LENGTHS = [(1024, 1024), (1030, 1035), (520, 777), (777, 520), (2050, 2050)]
HEAD_DIMS = [40, 64, 72, 80, 88, 96, 104, 128]
DTYPES = [torch.bfloat16, torch.float16]
REPEATS = 250


def inputs_of(n_queries, n_keys, head_dim, dtype=torch.bfloat16, matrices=(2, 36), draw=random_inputs):
    """Draw inputs for which Gluon's kernels are chosen."""
    inputs = draw((*matrices, n_queries, head_dim), n_keys, dtype, "cuda")
    kernels = kernels_of(*inputs[:3], True)
    assert kernels.forward.name == kernels.backward.name == "gluon", kernels
    return inputs


def poison_free_memory():
    """Fill free memory, in which outputs will be allocated, with NaN."""
    torch.cuda.empty_cache()
    poison = [torch.full((2**25,), math.nan, device="cuda") for _ in range(8)]
    poison += [torch.full((2**shift,), math.nan, device="cuda") for shift in range(8, 25)]
    del poison


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [*HEAD_DIMS, 200, 256])
def test_output_and_gradients_are_fp32_sums_rounded_at_most_twice(head_dim, dtype):
    for (n_queries, n_keys), is_causal in itertools.product(LENGTHS, (False, True)):
        inputs = inputs_of(n_queries, n_keys, head_dim, dtype, matrices=(1, 40))
        poison_free_memory()
        assert_rounded_at_most(2, FlashAttentionTriton.apply, *inputs, is_causal)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_sums_over_many_tiles_are_kept_in_fp32(head_dim):
    inputs = inputs_of(8192, 8192, head_dim, torch.float16, (1, 3), uncancelled_inputs)
    assert_rounded_at_most(2, FlashAttentionTriton.apply, *inputs, False)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_large_logits_do_not_overflow(head_dim, dtype):
    for n_keys in (1023, 2049):
        q, k, v, do = inputs_of(n_keys, n_keys, head_dim, dtype, (1, 16))
        assert_rounded_at_most(2, FlashAttentionTriton.apply, 10 * q, 10 * k, v, do, True)
        # Keys past the end have score 0, far above all scores here.
        assert_rounded_at_most(2, FlashAttentionTriton.apply, 5 * q.abs(), -5 * k.abs(), v, do, False)


def test_3d_inputs_match_4d_inputs_with_one_head():
    inputs = inputs_of(1030, 1035, 128, matrices=(72, 1))
    four = results(FlashAttentionTriton.apply, *inputs, True)
    three = results(FlashAttentionTriton.apply, *(tensor[:, 0] for tensor in inputs), True)
    for index in (0, 2, 3):  # dq is summed in no fixed order
        assert torch.equal(three[index], four[index][:, 0])


@pytest.mark.parametrize(
    ("length", "head_dim"), [(1040, 64), (2050, 64), (1040, 128), (1040, 80), (1040, 96), (1040, 256)]
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_results_are_bitwise_repeatable_except_dq_without_its_own_kernel(length, head_dim, is_causal):
    q, k, v, do = inputs_of(length, length, head_dim)
    first = named_results(q, k, v, do, is_causal)
    for _ in range(REPEATS):
        again = named_results(q, k, v, do, is_causal)
        differing = {name for name in first if not torch.equal(first[name], again[name])}
        assert differing <= (set() if backward_tiles(head_dim).query else {"dq"})
    plain = named_results(q, k, v, do, is_causal, planned_by(PLAIN).apply)
    for name, found in first.items():
        torch.testing.assert_close(found, plain[name], rtol=2e-2, atol=2e-2 * plain[name].abs().max().item())


def named_results(q, k, v, do, is_causal, attend=FlashAttentionTriton.apply):
    """Return output, log-sum-exp and gradients by name."""
    inputs = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    o = attend(*inputs, is_causal)
    (lse,) = [kept for kept in o.grad_fn.saved_tensors if kept.shape == q.shape[:-1]]
    dq, dk, dv = torch.autograd.grad(o, inputs, do)
    return {"o": o.detach(), "lse": lse, "dq": dq, "dk": dk, "dv": dv}


@pytest.mark.parametrize(("head_dim", "kernels"), [(128, "plain"), (256, "gluon")])
def test_dq_is_repeatable_with_deterministic_algorithms(head_dim, kernels):
    q, k, v, do = inputs_of(1040, 1040, head_dim)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert kernels_of(q, k, v, True).backward.name == kernels
        first = named_results(q, k, v, do, True)
        assert all(torch.equal(named_results(q, k, v, do, True)["dq"], first["dq"]) for _ in range(20))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("head_dim", "dtype"), [(64, torch.bfloat16), (128, torch.bfloat16), (128, torch.float32)])
def test_kernels_are_captured_into_a_cuda_graph_and_replayed(head_dim, dtype):
    q, k, v, do = inputs_of(1040, 1040, head_dim, dtype)
    expected = named_results(q, k, v, do, True)
    inputs = [torch.zeros_like(tensor).requires_grad_() for tensor in (q, k, v)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = FlashAttentionTriton.apply(*inputs, True)
        gradients = torch.autograd.grad(o, inputs, do)
    with torch.no_grad():
        for given, tensor in zip(inputs, (q, k, v), strict=True):
            given.copy_(tensor)
    for _ in range(3):
        graph.replay()
    assert torch.equal(o, expected["o"])
    assert torch.equal(gradients[1], expected["dk"])
    torch.testing.assert_close(gradients[0], expected["dq"], rtol=2e-2, atol=1e-3)


def test_concurrent_streams_do_not_disturb_each_other():
    cases = [inputs_of(1040, 1040, head_dim) for head_dim in (64, 128)]
    expected = [named_results(*case, True) for case in cases]
    streams = [torch.cuda.Stream() for _ in cases]
    torch.cuda.synchronize()
    for _ in range(20):
        found = []
        for stream, case in zip(streams, cases, strict=True):
            with torch.cuda.stream(stream):
                found.append(named_results(*case, True))
        torch.cuda.synchronize()
        for a, b in zip(found, expected, strict=True):
            assert all(torch.equal(a[name], b[name]) for name in ("o", "lse", "dk", "dv"))


@pytest.mark.parametrize("head_dim", [40, 64, 96, 128])
def test_fp32_is_as_exact_as_its_roundings_allow(head_dim):
    for (n_queries, n_keys), is_causal in itertools.product(LENGTHS[:4], (False, True)):
        inputs = inputs_of(n_queries, n_keys, head_dim, torch.float32)
        poison_free_memory()
        assert_fp32_is_exact(FlashAttentionTriton.apply, *inputs, is_causal)


def test_fp32_of_one_long_head_is_as_exact_as_its_roundings_allow():
    inputs = inputs_of(12800, 12800, 64, torch.float32, (1, 1))
    assert_fp32_is_exact(FlashAttentionTriton.apply, *inputs, True)


@pytest.mark.parametrize("scale", [1.0, 5.0])
@pytest.mark.parametrize("head_dim", [40, 64, 96, 128])
def test_fp32_is_as_exact_as_torchs_own_kernel_also_with_large_logits(head_dim, scale):
    factor = 1.15 if (head_dim, scale) == (128, 5.0) else 1.1  # dv, causal: 1.102 on an H200
    for is_causal in (False, True):
        q, k, v, do = inputs_of(1030, 1030, head_dim, torch.float32)
        inputs = (scale * q, scale * k, v, do)
        assert_as_exact_as_torchs_fp32_kernel(FlashAttentionTriton.apply, *inputs, is_causal, factor)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_fp32_keys_past_the_end_do_not_reach_gradients(head_dim):
    q, k, v, do = inputs_of(1030, 1030, head_dim, torch.float32)
    # Their score of 0 is far above all others here.
    for tensor in results(FlashAttentionTriton.apply, 5 * q.abs(), -5 * k.abs(), v, do, False):
        assert tensor.isfinite().all()


@pytest.mark.parametrize(("length", "head_dim"), [(1040, 64), (1040, 40), (1040, 128), (1040, 96), (300, 64)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_fp32_is_bitwise_repeatable_including_dq(length, head_dim, is_causal):
    assert_repeatable(inputs_of(length, length, head_dim, torch.float32, (4, 36)), is_causal)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(("n_queries", "n_keys"), [(520, 777), (777, 520)])
def test_fp32_is_bitwise_repeatable_if_tiles_have_one_block_or_none(n_queries, n_keys, head_dim):
    assert_repeatable(inputs_of(n_queries, n_keys, head_dim, torch.float32), True)


def assert_repeatable(inputs, is_causal):
    first = named_results(*inputs, is_causal)
    for _ in range(REPEATS):
        again = named_results(*inputs, is_causal)
        assert not {name for name in first if not torch.equal(first[name], again[name])}


def test_fp32_3d_inputs_match_4d_inputs_with_one_head():
    inputs = inputs_of(1030, 1035, 128, torch.float32, matrices=(72, 1))
    four = results(FlashAttentionTriton.apply, *inputs, True)
    three = results(FlashAttentionTriton.apply, *(tensor[:, 0] for tensor in inputs), True)
    assert all(torch.equal(a, b[:, 0]) for a, b in zip(three, four, strict=True))


def test_fp32_shared_keys_match_copied_keys():
    q, _, _, do = random_inputs((2, 32, 1030, 128), 1030, torch.float32, "cuda")
    _, k, v, _ = random_inputs((2, 8, 1030, 128), 1035, torch.float32, "cuda")
    shared = results(partial(flash_attention, is_causal=True, enable_gqa=True), q, k, v, do)
    copied = results(FlashAttentionTriton.apply, q, *(x.repeat_interleave(4, 1) for x in (k, v)), do, True)
    assert torch.equal(shared[0], copied[0])
    assert torch.equal(shared[1], copied[1])
    for found, of_copies in zip(shared[2:], copied[2:], strict=True):
        expected = of_copies.unflatten(1, (8, 4)).sum(2)
        assert (found - expected).norm() <= 1e-6 * expected.norm()
