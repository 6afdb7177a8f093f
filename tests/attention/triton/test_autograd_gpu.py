"""Test what only a GPU can show of the Triton kernels: compiled code, more than 2^31 elements, races."""

import itertools
from dataclasses import replace

import pytest
import torch
from triton import knobs

from pipeline.attention import FlashAttentionTriton
from pipeline.attention.reference import exact_attention
from pipeline.attention.triton import backward_plan, forward_plan
from pipeline.attention.triton.autograd import planned_by
from pipeline.attention.triton.problem import problem_of
from pipeline.attention.triton.tile_tables import SMALL_TILES
from pipeline.attention.triton.tiles import PLAIN
from pipeline.formulas.sizes import SIZES
from pipeline.model.step import build_training_step

from ..reference import (
    FP32_RELATIVE_ERROR,
    assert_as_exact_as_torchs_fp32_kernel,
    assert_fp32_is_exact,
    assert_rounded_at_most,
    attention_errors,
    random_inputs,
    relative_errors,
    results,
    uncancelled_inputs,
)

pytestmark = pytest.mark.gpu(shared=True)

LENGTHS = [(1, 1), (17, 17), (113, 203), (239, 1), (799, 3), (1023, 1024), (2048, 2048)]
# Too long for the one kernel for short sequences; the others load the few through pointers or descriptors.
FEW_OF_MANY = [(33, 1500), (1500, 33), (600, 1500)]
HEAD_DIMS = [8, 16, 32, 64, 80, 96, 128, 200, 256]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
REPEATS = 250


def _assert_exact(*inputs_and_is_causal, attend=FlashAttentionTriton.apply):
    """Assert that sums are kept in fp32 and that, for other dtypes, results and weights are rounded once."""
    if inputs_and_is_causal[0].dtype == torch.float32:
        assert_fp32_is_exact(attend, *inputs_and_is_causal)
    else:
        assert_rounded_at_most(2, attend, *inputs_and_is_causal)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_output_and_gradients_are_as_exact_as_the_dtype_allows(head_dim, dtype):
    lengths = [*LENGTHS, *(FEW_OF_MANY if head_dim in (32, 64, 128) else [])]
    for (n_queries, n_keys), is_causal in itertools.product(lengths, (False, True)):
        inputs = random_inputs((2, 2, n_queries, head_dim), n_keys, dtype, "cuda")
        _assert_exact(*inputs, is_causal)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [32, 64, 80, 128])
def test_grids_too_long_to_be_cut_into_chunks_are_as_exact(head_dim, dtype):
    for (n_queries, n_keys), is_causal in itertools.product([(1040, 1040), (1030, 1035)], (False, True)):
        inputs = random_inputs((2, 60, n_queries, head_dim), n_keys, dtype, "cuda")
        _assert_exact(*inputs, is_causal)
    assert _backward_plan(*inputs).key_value.chunks == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_sums_over_many_tiles_are_kept_in_fp32(head_dim, dtype):
    inputs = uncancelled_inputs((1, 2, 8192, head_dim), 8192, dtype, "cuda")
    assert_rounded_at_most(2, FlashAttentionTriton.apply, *inputs, False)


@pytest.mark.parametrize(
    ("n_queries", "n_keys", "is_causal"),
    [(113, 203, False), (1023, 1024, False), (2048, 2048, False), (2048, 2048, True), (203, 203, True)],
)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_fp32_is_as_exact_as_torchs_own_kernel(head_dim, n_queries, n_keys, is_causal):
    # Causal only for equal lengths: otherwise torch's mask is different. In much shorter sequences chance decides which
    # of two kernels is closer. Wider heads have longer sums, which are up to 1.6 times less exact.
    inputs = random_inputs((2, 2, n_queries, head_dim), n_keys, torch.float32, "cuda")
    factor = 1.1 if head_dim <= 128 else 2.0
    assert_as_exact_as_torchs_fp32_kernel(FlashAttentionTriton.apply, *inputs, is_causal, factor)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_the_tiles_of_gpus_with_99_kb_of_shared_memory_are_as_exact(head_dim, dtype):
    attend = planned_by(replace(PLAIN, tables=SMALL_TILES)).apply
    # These cover one kernel, few queries with many keys, chunks, and descriptors.
    for (n_queries, n_keys), is_causal in itertools.product([(113, 203), (33, 1500), (1040, 1040)], (False, True)):
        inputs = random_inputs((2, 2, n_queries, head_dim), n_keys, dtype, "cuda")
        _assert_exact(*inputs, is_causal, attend=attend)


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_logits_do_not_overflow(dtype):
    inputs = random_inputs((1, 2, 1023, 64), 1023, dtype, "cuda", scale=10.0)
    if dtype == torch.float32:
        assert_as_exact_as_torchs_fp32_kernel(FlashAttentionTriton.apply, *inputs, True)
    else:
        assert_rounded_at_most(2, FlashAttentionTriton.apply, *inputs, True)


@pytest.mark.parametrize(("num_heads", "is_chunked"), [(2, True), (72, False)])
@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_repeats_are_bitwise_equal_except_dq_without_its_own_kernel(head_dim, dtype, num_heads, is_chunked):
    q, k, v, do = random_inputs((2, num_heads, 1040, head_dim), 1040, dtype, "cuda")
    plan = _backward_plan(q, k, v, do)
    assert (plan.key_value.chunks > 1) == is_chunked
    first = results(FlashAttentionTriton.apply, q, k, v, do, True)
    exact = [True, plan.query is not None, True, True]
    rounding = 0 if dtype == torch.float32 else torch.finfo(dtype).eps  # the fp32 sum is rounded once
    for _ in range(REPEATS):
        again = results(FlashAttentionTriton.apply, q, k, v, do, True)
        for a, b, is_exact in zip(again, first, exact, strict=True):
            tolerance = 0 if is_exact else 4 * torch.finfo(torch.float32).eps + rounding
            torch.testing.assert_close(a, b, rtol=0, atol=tolerance * b.abs().max().item())


def _backward_plan(q, k, v, do):
    strides = (tensor.stride() for tensor in (q, k, v, do))
    return backward_plan.backward_plan(problem_of(q, k, v, True), *strides)


def test_fp32_is_fp32_unless_torchs_own_switch_allows_tf32(tf32_switch):
    inputs = random_inputs((1, 2, 512, 64), 512, torch.float32, "cuda")
    exact = exact_attention(*inputs, False)
    found = attention_errors(results(FlashAttentionTriton.apply, *inputs, False), exact)
    if tf32_switch.allows_tf32:
        assert (found > 1e-4).all()  # TF32 has 11 significant bits
    else:
        assert (found <= FP32_RELATIVE_ERROR).all()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than 2 GPUs")
@pytest.mark.parametrize("backward_in_a_thread_of_its_own", [True, False])
@pytest.mark.parametrize("seq_len", [200, 2048])
def test_inputs_may_be_on_another_gpu_than_the_current_one(seq_len, backward_in_a_thread_of_its_own):
    forward_plan.forward_plan.cache_clear()
    backward_plan.backward_plan.cache_clear()
    inputs = random_inputs((1, 2, seq_len, 64), seq_len, torch.bfloat16, "cuda:1")
    assert torch.cuda.current_device() == 0
    with torch.autograd.set_multithreading_enabled(backward_in_a_thread_of_its_own):
        assert_rounded_at_most(2, FlashAttentionTriton.apply, *inputs, True)
    assert torch.cuda.current_device() == 0


def test_launch_hooks_see_every_launch():
    inputs = random_inputs((1, 2, 2048, 64), 2048, torch.bfloat16, "cuda")
    results(FlashAttentionTriton.apply, *inputs, True)
    names = []
    hook = lambda metadata: names.append(metadata.get()["name"])  # noqa: E731
    knobs.runtime.launch_enter_hook.add(hook)
    try:
        results(FlashAttentionTriton.apply, *inputs, True)
    finally:
        knobs.runtime.launch_enter_hook.remove(hook)
    kernels = ["forward", "combine", "delta", "key_value", "sum", "query", "sum"]
    assert names == [f"{kernel}_kernel" for kernel in kernels]


@pytest.mark.gpu  # not shared: it takes a third of the memory
def test_tensors_may_have_more_than_two_to_the_31_elements():
    batch, seq_len, head_dim = 2, 2**23, 128
    if torch.cuda.mem_get_info()[0] < 60e9:
        pytest.skip("needs 60 GB of free GPU memory")
    q = torch.randn(batch, 64, head_dim, device="cuda", dtype=torch.bfloat16)
    k, v = torch.randn(2, batch, seq_len + 1, head_dim, device="cuda", dtype=torch.bfloat16).unbind()
    assert k.numel() > 2**31
    output = FlashAttentionTriton.apply(q, k, v, False)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(output, expected, rtol=2e-2, atol=2e-4)


@pytest.mark.parametrize("size", [SIZES["small"], replace(SIZES["2.7B"], num_layers=2)], ids=["small", "head_dim 80"])
def test_model_gradients_eager_and_compiled_are_as_exact_as_the_plain_formulas(size):
    exact = _gradients(size, precision="fp32")
    plain = relative_errors(_gradients(size, precision="bf16"), exact)
    for compiled in (False, True):
        found = relative_errors(_gradients(size, precision="bf16", attention="flash", compiled=compiled), exact)
        assert (found <= 2 * plain).all(), (found / plain).tolist()


def _gradients(size, **how):
    step = build_training_step(size, vocab_size=1000, context_length=128, batch_size=2, device="cuda", **how)
    step.forward()
    step.backward()
    return [parameter.grad.double() for parameter in step.model.parameters()]
