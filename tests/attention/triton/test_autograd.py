"""Test the Triton kernels: in Triton's interpreter on a CPU, compiled on a GPU."""

import contextlib
import functools
import itertools
import math
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from pipeline.attention import FlashAttentionTriton
from pipeline.attention.reference import exact_attention
from pipeline.attention.triton import autograd, running
from pipeline.attention.triton.backward_plan import backward_plan
from pipeline.attention.triton.forward_plan import forward_plan
from pipeline.attention.triton.problem import problem_of
from pipeline.tf32 import float32_products

from ..layouts import OFFSETS, PLACES, laid_out
from ..reference import (
    FP32_RELATIVE_ERROR,
    assert_equal,
    assert_fp32_is_exact,
    assert_rounded_at_most,
    attention_errors,
    random_inputs,
    results,
    uncancelled_inputs,
)
from ..small_tiles import IN_CHUNKS, with_small_tiles

LENGTHS = [(1, 1, True), (1, 17, False), (17, 1, True), (64, 128, True), (113, 150, True), (150, 113, False)]
# Between powers of two, and below the smallest tile.
ODD_HEAD_DIMS = [8, 40, 80]
# Results are rounded to the inputs' dtype, and weights before they are multiplied.
ROUNDINGS = 2
# The interpreter truncates fp32 to bf16 where a GPU rounds to nearest: twice the error.
BF16_ROUNDINGS = 2 * ROUNDINGS
either_dq = pytest.mark.parametrize("dq_has_its_own_kernel", [False, True])


@pytest.mark.parametrize(("n_queries", "n_keys", "is_causal"), LENGTHS)
def test_output_and_gradients_are_sums_in_fp32_rounded_twice(n_queries, n_keys, is_causal):
    inputs = random_inputs((1, 2, n_queries, 16), n_keys, torch.float16)
    assert_rounded_at_most(ROUNDINGS, FlashAttentionTriton.apply, *inputs, is_causal)


@pytest.mark.parametrize("head_dim", [16, 64, 256, *ODD_HEAD_DIMS])
def test_every_head_dimension_is_as_exact_as_its_dtype_allows(head_dim):
    in_fp32 = random_inputs((1, 1, 70, head_dim), 150, torch.float32)
    assert_fp32_is_exact(FlashAttentionTriton.apply, *in_fp32, True)
    in_bf16 = [tensor.bfloat16() for tensor in in_fp32]
    assert_rounded_at_most(BF16_ROUNDINGS, FlashAttentionTriton.apply, *in_bf16, True)


@either_dq
@pytest.mark.parametrize(("head_dim", "is_causal"), [(16, True), (8, False), (40, True), (80, False)])
def test_many_tiles_agree_whichever_kernel_computes_dq(head_dim, is_causal, dq_has_its_own_kernel):
    inputs = random_inputs((1, 2, 33, head_dim), 40, torch.float32)
    assert_fp32_is_exact(with_small_tiles(dq_has_its_own_kernel), *inputs, is_causal)


@pytest.mark.parametrize(
    ("n_queries", "n_keys", "dq_has_its_own_kernel"), [(32, 1000, False), (32, 1000, True), (1000, 32, True)]
)
def test_sums_over_many_tiles_are_kept_in_fp32(n_queries, n_keys, dq_has_its_own_kernel):
    inputs = uncancelled_inputs((1, 1, n_queries, 16), n_keys, torch.float16)
    assert_rounded_at_most(ROUNDINGS, with_small_tiles(dq_has_its_own_kernel), *inputs, False)


@either_dq
@pytest.mark.parametrize("head_dim", [16, 40])
def test_tensor_descriptors_load_the_same_tiles(head_dim, dq_has_its_own_kernel):
    inputs = random_inputs((1, 2, 33, head_dim), 40, torch.float16)
    ways = [with_small_tiles(dq_has_its_own_kernel, **choices) for choices in ({}, {"min_length_for_tma": 1})]
    through_pointers, through_descriptors = (results(way, *inputs, True) for way in ways)
    assert_equal(through_descriptors, through_pointers)


@either_dq
@pytest.mark.parametrize(("head_dim", "n_queries", "n_keys", "is_causal"), [(16, 17, 170, False), (40, 100, 33, True)])
def test_chunks_combine_to_the_whole_result(head_dim, n_queries, n_keys, dq_has_its_own_kernel, is_causal):
    # Two to six chunks, up to more than are loaded at once.
    inputs = random_inputs((1, 2, n_queries, head_dim), n_keys, torch.float32)
    planned_before = forward_plan.cache_info().misses
    assert_fp32_is_exact(with_small_tiles(dq_has_its_own_kernel, **IN_CHUNKS), *inputs, is_causal)
    assert forward_plan.cache_info().misses == planned_before + 1


def test_missing_keys_do_not_overflow_beside_large_negative_logits():
    # 33 keys: the second tile of 32 lacks all but one, and the missing keys' zeros are far above every real score.
    q, k, v, do = random_inputs((1, 1, 40, 16), 33, torch.float16)
    q, k = q.abs() * 7, -k.abs() * 7
    assert_rounded_at_most(ROUNDINGS, with_small_tiles(False), q, k, v, do, False)


def test_expanded_inputs_and_gradients_give_the_same_results():
    q, k, v, do = random_inputs((2, 3, 20, 16), 20, torch.float32)
    v = v[:, :1].expand(-1, 3, -1, -1)
    do = do[..., :1].expand(-1, -1, -1, 16)
    expected = results(FlashAttentionTriton.apply, q, k, v.contiguous(), do.contiguous(), True)
    assert_equal(results(FlashAttentionTriton.apply, q, k, v, do, True), expected)


# Errors of correct results, in any order of sums; a number read from the wrong place is off by its whole size.
ALLOWED = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: FP32_RELATIVE_ERROR}
# On a GPU: one kernel; chunks; descriptors in both passes, and tiles wider than head_dim; Gluon for bf16 on Hopper.
GPU_SHAPES = [((2, 45, 64), 70), ((2, 2, 45, 64), 70), ((2, 2, 1100, 64), 1100), ((2, 60, 1030, 40), 1035)]
GPU_SHAPES += [((2, 36, 1030, head_dim), 1035) for head_dim in (64, 128, 256)]
AS_PLANNED = FlashAttentionTriton.apply
PLACED = [
    (AS_PLANNED, (2, 12, 16), 20, torch.float32, "cpu"),
    (with_small_tiles(True, min_length_for_tma=1), (2, 2, 12, 16), 20, torch.float16, "cpu"),
    *(
        pytest.param(AS_PLANNED, *shape, dtype, "cuda", marks=pytest.mark.gpu(shared=True))
        for shape, dtype in itertools.product(GPU_SHAPES, (torch.bfloat16, torch.float32))
    ),
]
WHERE = ("attend", "shape", "n_keys", "dtype", "device")


@functools.cache
def inputs_and_exact_results(shape, n_keys, dtype, device):
    inputs = random_inputs(shape, n_keys, dtype, device)
    return inputs, exact_attention(*inputs, True)


@pytest.mark.parametrize(WHERE, PLACED)
def test_tensors_may_have_different_layouts_and_any_addresses_at_once(attend, shape, n_keys, dtype, device):
    inputs, exact = inputs_and_exact_results(shape, n_keys, dtype, device)
    for first in range(len(PLACES)):  # each tensor gets each place, with the others elsewhere
        places = [PLACES[(first + 4 * index) % len(PLACES)] for index in range(4)]
        laid = [laid_out(tensor, *place) for tensor, place in zip(inputs, places, strict=True)]
        found = attention_errors(results(attend, *laid, True), exact)
        assert (found <= ALLOWED[dtype]).all(), (places, found.tolist())


@pytest.mark.parametrize(WHERE, PLACED[1:])
def test_hooks_may_return_saved_tensors_in_any_layout_even_the_output(attend, shape, n_keys, dtype, device):
    """`torch.autograd.graph.save_on_cpu` returns contiguous copies, whatever the strides were."""
    inputs, exact = inputs_and_exact_results(shape, n_keys, dtype, device)
    inputs = [laid_out(tensor, "sequence before heads") for tensor in inputs]
    for layout, offset in PLACES:
        packed = partial(laid_out, layout=layout, offset=offset)
        with torch.autograd.graph.saved_tensors_hooks(packed, lambda kept: kept):
            found = attention_errors(results(attend, *inputs, True), exact)
        assert (found <= ALLOWED[dtype]).all(), (layout, offset, found.tolist())


def test_fp32_is_one_tf32_product_if_torchs_switch_allows_it_by_either_api(tf32_switch):
    q, k, v, do = random_inputs((1, 12, 16), 12, torch.float32)
    assert problem_of(q, k, v, True).one_tf32_product == tf32_switch.allows_tf32
    assert not problem_of(q.half(), k.half(), v.half(), True).one_tf32_product
    assert_fp32_is_exact(FlashAttentionTriton.apply, q, k, v, do, True)  # the interpreter has no TF32


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("allowed", [False, True])
def test_the_backward_pass_multiplies_fp32_as_the_forward_pass_did(allowed, is_compiled, monkeypatch):
    backward = Mock(wraps=autograd.run_backward)
    monkeypatch.setattr(autograd, "run_backward", backward)
    q, k, v, do = random_inputs((1, 12, 16), 12, torch.float32)
    attend = FlashAttentionTriton.apply
    torch.compiler.reset()
    compiled = torch.compile(lambda *given: attend(*given, True), fullgraph=True, backend="aot_eager")
    inputs = [tensor.requires_grad_() for tensor in (q, k, v)]
    with float32_products(tf32=allowed):
        output = compiled(*inputs) if is_compiled else attend(*inputs, True)
    with float32_products(tf32=not allowed):
        torch.autograd.grad(output, inputs, do)
    assert [call.args[0].one_tf32_product for call in backward.call_args_list] == [allowed]


def test_plans_made_in_inference_mode_work_in_training():
    inputs = random_inputs((1, 2, 52, 16), 52, torch.float32)
    with torch.inference_mode():
        expected = FlashAttentionTriton.apply(*inputs[:3], True)
    assert_equal(results(FlashAttentionTriton.apply, *inputs, True)[:1], [expected.clone()])


@pytest.fixture
def current(monkeypatch):
    """Fake several GPUs: return a list that ends with the current one; tensors are on the one they report."""
    gpus = [0]

    @contextlib.contextmanager
    def device_of(tensor):
        gpus.append(tensor.get_device())
        try:
            yield
        finally:
            gpus.pop()

    monkeypatch.setattr(running, "current_device_index", lambda: gpus[-1])
    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    return gpus


@pytest.mark.parametrize("gpu", [0, 1])
def test_kernels_are_loaded_on_the_device_of_their_inputs(current, gpu):
    """Making a plan loads its kernels on the current device, which may not be the inputs'."""

    def plan(_problem):
        raise InterruptedError(current[-1])

    there = SimpleNamespace(get_device=lambda: gpu)
    with pytest.raises(InterruptedError, match=str(gpu)):
        autograd.run_forward(SimpleNamespace(gpu=gpu), there, there, there, plan)
    assert current == [0]


def test_the_backward_operator_loads_its_kernels_on_the_inputs_device(current, monkeypatch):
    """Autograd sets the device for its own calls, as the tests on two GPUs show, but not for an operator's."""
    planned_on, backward = [], autograd.run_backward

    def planner(*given):
        planned_on.append(current[-1])
        return backward_plan(*given)

    monkeypatch.setattr(autograd, "run_backward", partial(backward, planner=planner))
    q, k, v, do = random_inputs((1, 1, 20, 16), 20, torch.float32)
    o, lse = torch.ops.llm_systems_pipeline.flash_attention_forward(q, k, v, True)
    torch.ops.llm_systems_pipeline.flash_attention_backward(q, k, v, o, lse, do, True)
    assert planned_on == [q.get_device()]
    assert current == [0]


@pytest.mark.parametrize("head_dim", [16, 40])
def test_nothing_is_read_or_written_beyond_the_tensors(head_dim):
    """The memory around the tensors is NaN: reading it would show in the results, writing would change it."""
    clean = random_inputs((1, 2, 45, head_dim), 45, torch.float32)
    expected = results(FlashAttentionTriton.apply, *clean, True)
    padded = [torch.full((1, 2, 128, 2 * head_dim), math.nan) for _ in clean]
    views = [buffer[:, :, 40:85, :head_dim].copy_(tensor) for buffer, tensor in zip(padded, clean, strict=True)]
    assert_equal(results(FlashAttentionTriton.apply, *views, True), expected)
    for buffer in padded:
        assert all(beyond.isnan().all() for beyond in (buffer[:, :, :40], buffer[:, :, 85:], buffer[..., head_dim:]))


VIEWED = [(20, 1, torch.float32, "cpu", "aot_eager")]
VIEWED += [
    pytest.param(*given, "cuda", "inductor", marks=pytest.mark.gpu(shared=True))
    for given in itertools.product((200, 1100), OFFSETS, (torch.bfloat16, torch.float32))
]


@pytest.mark.parametrize(("seq_len", "offset", "dtype", "device", "backend"), VIEWED)
def test_compiled_views_of_wider_tensors_are_as_exact(seq_len, offset, dtype, device, backend):
    q, k, v, do = random_inputs((2, 2, seq_len, 96), seq_len, dtype, device)
    columns = slice(offset, offset + 64)

    def attend_by_columns(q, k, v, is_causal):
        """Attend; the padding makes the output's gradient columns of a wider tensor too."""
        output = FlashAttentionTriton.apply(*(tensor[..., columns] for tensor in (q, k, v)), is_causal)
        return torch.nn.functional.pad(output, (offset, 32 - offset))

    torch.compiler.reset()  # else torch gives up after compiling a function a few times
    compiled = torch.compile(attend_by_columns, fullgraph=True, dynamic=False, backend=backend)
    found = [tensor[..., columns] for tensor in results(compiled, q, k, v, do, True)]
    exact = exact_attention(*(tensor[..., columns] for tensor in (q, k, v, do)), True)
    assert (attention_errors(found, exact) <= ALLOWED[dtype]).all()
