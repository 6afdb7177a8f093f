import pytest

from pipeline.subjects.naming import Subject
from pipeline.subjects.verdicts import verdict_on

from .outside_files import OUTSIDE, attention, training

TIMEOUT_S = 120.0

pytestmark = pytest.mark.usefixtures("quick_ranks")


def test_wrong_attention_is_reported_with_the_first_problem_that_fails():
    found = verdict_on(attention("off_by_one"), TIMEOUT_S)
    assert found.status == "wrong"
    assert found.reason.startswith("in fp32 causal output is off by ")
    assert found.reason.endswith("(length 64, head_dim 64, causal)")


@pytest.mark.parametrize(
    ("function", "limit"),
    [
        (attention("powers_of_two_alone"), "lengths like 113: skipped, refuses length 113: "),
        (attention("wrong_at_odd_lengths"), "lengths like 113: wrong, output is off by "),
        (attention("without_mask"), "fp32 causal: wrong, output is off by "),
        (attention("answers_in_fp32", "kernels/limits.py"), "bf16: wrong, output is "),
        (attention("crashes_at_length_113"), "lengths like 113: wrong, its process died by SIGSEGV"),
    ],
)
def test_a_failure_that_the_assignment_does_not_ask_about_is_only_a_limit(function, limit):
    found = verdict_on(function, TIMEOUT_S)
    assert found.status == "ok"
    (told,) = found.limits
    assert told.startswith(limit)
    right = {"fp32 without a mask", "fp32 causal", "bf16", "lengths like 113"} - {limit.partition(":")[0]}
    assert all(words in found.reason for words in right)


def test_of_right_attention_the_reason_names_all_that_was_checked():
    found = verdict_on(attention("Right"), TIMEOUT_S)
    assert (found.status, found.limits) == ("ok", ())
    assert all(words in found.reason for words in ("fp32 without a mask", "fp32 causal", "bf16", "lengths like 113"))


@pytest.mark.parametrize(
    ("function", "timeout_s", "reason"),
    [
        ("unfinished", TIMEOUT_S, "refuses length 64: "),
        ("hangs", 2.0, "its process sent no result within 2 s (attention.py:"),  # after which no part is tried
    ],
)
def test_attention_that_refuses_every_problem_or_takes_all_the_time_is_skipped(function, timeout_s, reason):
    found = verdict_on(attention(function), timeout_s)
    assert (found.status, found.reason[: len(reason)]) == ("skipped", reason)


@pytest.mark.parametrize(
    ("subject", "status"),
    [
        (training("ddp", "ForgetsTheLastBucket"), "wrong"),
        (training("fsdp", "SumsInBf16", gather="gather"), "wrong"),
        (training("optimizer", "ForgetsTheLastParameter"), "wrong"),
        (Subject("model", "decoder", f"{OUTSIDE}/models.py:Decoder"), "ok"),
        (Subject("model", "future", f"{OUTSIDE}/models.py:SeesTheFuture"), "wrong"),
    ],
    ids=lambda given: f"{given.kind} {given.name}" if isinstance(given, Subject) else given,
)
def test_every_kind_has_its_check(subject, status):
    assert verdict_on(subject, TIMEOUT_S).status == status
