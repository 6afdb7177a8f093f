"""Which of a user's operations pass, and what is reported about the others."""

import pytest
import torch

from pipeline.errors import Skipped, UserError
from pipeline.subjects.checking import Wrong
from pipeline.subjects.naming import OPERATIONS, Subject, operation_of, read
from pipeline.subjects.operation_check import check_operation

from .outside_files import HERE, OUTSIDE

FILE = OUTSIDE / "operations.py"
RIGHT = dict(zip(OPERATIONS, ("norm", "rotated", "gated", "loss", "Adam"), strict=True))


def check(operation, function, dtype=torch.float32):
    return check_operation(HERE, Subject("op", operation, f"{FILE}:{function}"), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_right_operation_passes(operation, dtype):
    assert check(operation, RIGHT[operation], dtype).status == "ok"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("operation", "function", "said"),
    [
        ("rms_norm", "norm_without_eps", "output has a relative error"),
        ("rms_norm", "norm_without_the_sum", "must return tensors of"),
        ("rms_norm", "norm_that_remembers", "output has a relative error"),
        ("rotary", "rotated_the_other_way", "output has a relative error"),
        ("swiglu", "gated_by_exp", "large numbers"),
        ("linear_cross_entropy", "loss_that_counts_all", "(output|gradient) has a relative error"),
        ("linear_cross_entropy", "loss_without_a_maximum", "large logits"),
        ("adamw", "AdamWithoutDecay", "weights are off by"),
        ("adamw", "AdamWithItsFirstRate", "weights are off by"),
    ],
)
def test_a_wrong_operation_is_reported_with_what_is_off(operation, function, said, dtype):
    with pytest.raises(Wrong, match=said):
        check(operation, function, dtype)


def test_an_operation_that_refuses_is_skipped_with_its_message():
    with pytest.raises(Skipped, match=r"^refuses widths of powers of two, .*: widths must be multiples of 4096$"):
        check("swiglu", "refuses")


def test_a_name_begins_with_the_operation_and_may_have_more_words():
    named = {"rms_norm": "rms_norm", "rms_norm_v2": "rms_norm", "rms_normal": None, "mine": None}
    assert {name: operation_of(name) for name in named} == named
    (subject,) = read({"op": {"swiglu_mine": f"{FILE}:gated"}}, "here", {})
    assert (subject.kind, subject.name) == ("op", "swiglu_mine")
    with pytest.raises(UserError, match=r"^here: op.mine: must be one of rms_norm, rotary, .*"):
        read({"op": {"mine": f"{FILE}:gated"}}, "here", {})
