import re

import pytest
import torch

from pipeline.errors import Skipped
from pipeline.subjects.attention_check import check_attention, is_power_of_two, lengths_like
from pipeline.subjects.checking import Wrong
from pipeline.subjects.loading import WAYS
from pipeline.subjects.naming import Subject

from .outside_files import ADAPTERS, HERE, attention

WHERE = " (length 64, head_dim 16, causal)"


def check(function, dtype=torch.float32, head_dim=16, is_causal=True, seq_len=512):
    subject = function if isinstance(function, Subject) else attention(function)
    return check_attention(HERE, subject, dtype, head_dim, is_causal, lengths_like(seq_len))


def limited(function):
    return attention(function, "kernels/limits.py")


@pytest.mark.parametrize(
    ("dtype", "is_causal"), [(torch.float32, True), (torch.bfloat16, False), (torch.float16, True)]
)
def test_a_right_implementation_passes_and_the_way_to_call_it_is_found(dtype, is_causal):
    assert check("Right", dtype, is_causal=is_causal).way == WAYS[0]
    assert check("shares_keys", dtype, is_causal=is_causal).way == WAYS[1]
    assert check("by_name_alone", dtype, is_causal=is_causal).way == WAYS[0]


@pytest.mark.parametrize("place", ["eager:eager_attention", "tiled:FlashAttentionTiled"])
@pytest.mark.parametrize("head_dim", [16, 128])
def test_attention_that_rounds_scores_and_weights_to_bf16_passes(place, head_dim):
    assert check(Subject("attention", "mine", f"pipeline.attention.{place}"), torch.bfloat16, head_dim).status == "ok"


def test_a_causal_mask_off_by_one_is_reported_with_its_place():
    found = check("off_by_one")
    assert found.status == "wrong"
    assert all(said in found.reason for said in ("output is off by ", "first at query 0, at 63 of 64 queries; "))
    assert found.reason.endswith("; each query sees one key after its own: the causal mask is off by one" + WHERE)
    # Without a mask the same function is right.
    assert check("off_by_one", is_causal=False).status == "ok"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_factor_is_reported_only_if_the_whole_result_is_off_by_it(dtype):
    assert "; everywhere it is 4 times what it must be (" in check("without_scale_in_backward", dtype).reason
    assert "everywhere" not in check("off_by_one", dtype).reason + check("without_mask", dtype).reason


def test_an_error_at_odd_lengths_counts_only_in_cells_of_such_lengths():
    assert check("wrong_at_odd_lengths", is_causal=False).status == "ok"
    found = check("wrong_at_odd_lengths", is_causal=False, seq_len=1001)
    assert (found.status, "(length 113, head_dim 16, no mask)" in found.reason) == ("wrong", True)
    # 48 is a multiple of its tile.
    assert check("wrong_at_odd_lengths", is_causal=False, seq_len=48).status == "ok"


@pytest.mark.parametrize("function", [attention("powers_of_two_alone"), limited("rearranged_into_tiles")])
def test_refusing_odd_lengths_skips_only_cells_of_such_lengths(function):
    assert check(function).status == "ok"
    with pytest.raises(Skipped, match=r"^refuses length 113: .*length"):
        check(function, seq_len=1001)


@pytest.mark.parametrize("seq_len", [1001, 1002, 1000, 1536, 3 * 2**14, 17, 24, 80, 96])
def test_checked_lengths_are_multiples_of_the_same_power_of_two_as_the_cells_length(seq_len):
    for length in lengths_like(seq_len)[2:]:
        assert not is_power_of_two(length)
        assert length % min(64, seq_len & -seq_len) == 0
        assert 80 < length < 400


def test_an_implementation_for_fp32_is_skipped_or_wrong_only_in_bf16():
    assert check(limited("fp32_alone")).status == "ok"
    with pytest.raises(Skipped, match=r"^refuses bfloat16, length 64: Input dtypes must be the same"):
        check(limited("fp32_alone"), torch.bfloat16)
    assert check(limited("answers_in_fp32")).status == "ok"
    assert "output is (2, 2, 64, 16) of torch.float32" in check(limited("answers_in_fp32"), torch.bfloat16).reason


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is for machines without a GPU")
def test_bf16_is_skipped_in_tritons_interpreter():
    assert check(limited("TritonScores")).status == "ok"
    with pytest.raises(Skipped, match=r"^bf16 waits for a GPU"):
        check(limited("TritonScores"), torch.bfloat16)
    # Code that does not run there is judged.
    assert check("off_by_one", torch.bfloat16).status == "wrong"


def test_a_getter_is_called_and_compiled_code_is_reset_for_each_length():
    getter = Subject("attention", "mine", f"{ADAPTERS}:get_flashattention_autograd_function_pytorch")
    assert check(getter).status == "ok"
    assert check(limited("compiled_once"), is_causal=False).status == "ok"


LASTING = "kernels/lasting.py"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("sees_the_past_alone", r".*; no query sees its own key: the causal mask is off by one" + re.escape(WHERE)),
        ("raises_at_length_64", r"raised RuntimeError at length 64: my kernel is not ready \(attention.py:\d+\)"),
        ("without_mask", r".*; that is what attention without the causal mask gives \(.*"),
        ("without_scale", r".*; the scores are not divided by √head_dim \(.*"),
        ("with_the_scale_twice", r".*; the scores are divided by head_dim, not its root \(.*"),
        ("without_scale_in_backward", r"dq is off by .*"),  # although the output is right
        (attention("of_pointers", LASTING), ".*; that is the result of the call before, which had other numbers in .*"),
        (attention("AddsToDq", LASTING), r".*; that is the sum with the call before: is a buffer not cleared\? .*"),
        ("scales_q_in_place", "changes q in place, which the caller still needs"),
        ("returns_lse_too", "returns a tuple, must return the output alone, a tensor"),
        ("without_dk", "backward gives no dk"),
        ("detached", "its output has no gradient: it is detached from q, k and v, or made without autograd"),
    ],
)
def test_a_wrong_implementation_is_reported_with_its_cause(function, said):
    found = check(function)
    assert found.status == "wrong"
    assert re.fullmatch(said, found.reason)


@pytest.mark.parametrize(
    ("function", "kind", "said"),
    [
        ("Module", Wrong, r"^Module is a class, but no torch\.autograd\.Function: name a function$"),
        ("of_three", Wrong, r"^must take \(q, k, v, is_causal\), takes \(q, k, v\)$"),
        ("unfinished", Skipped, "refuses length 64: NotImplementedError"),
        ("ForwardAlone", Skipped, r"^its backward pass raises NotImplementedError"),  # not a refused length
    ],
)
def test_an_implementation_that_cannot_be_called_is_wrong_or_skipped(function, kind, said):
    with pytest.raises(kind, match=said):
        check(function)
