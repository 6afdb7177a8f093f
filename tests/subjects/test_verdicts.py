import pytest

from pipeline.subjects.naming import Subject
from pipeline.subjects.verdicts import verdict_on

from .outside_files import OUTSIDE, attention, training

TIMEOUT_S = 120.0


def test_attention_is_right_where_every_problem_is():
    assert verdict_on(attention("Right"), TIMEOUT_S).status == "ok"


def test_attention_is_wrong_by_its_first_problem_that_is_with_dtype_length_and_mask():
    found = verdict_on(attention("without_mask"), TIMEOUT_S)
    assert found.status == "wrong"
    assert found.reason.startswith("in fp32 output is off by ")
    assert found.reason.endswith("(length 64, head_dim 64, causal)")


def test_what_a_right_one_refuses_is_told():
    assert verdict_on(attention("powers_of_two_alone"), TIMEOUT_S).reason == "refuses lengths like 113"


def test_what_refuses_every_problem_is_skipped():
    found = verdict_on(attention("unfinished"), TIMEOUT_S)
    assert (found.status, found.reason[:19]) == ("skipped", "refuses length 64: ")


@pytest.mark.parametrize(
    ("subject", "status"),
    [
        (training("ddp", "Buckets"), "ok"),
        (training("ddp", "ForgetsTheLastBucket"), "wrong"),
        (training("fsdp", "WholeFSDP", gather="gather"), "ok"),
        (training("fsdp", "WholeFSDP", gather="gather_all_but_one"), "wrong"),
        (training("optimizer", "Shards"), "ok"),
        (training("optimizer", "ForgetsTheLastParameter"), "wrong"),
    ],
)
def test_training_is_checked_on_two_ranks(subject, status):
    assert verdict_on(subject, TIMEOUT_S).status == status


@pytest.mark.parametrize(("name", "status"), [("Decoder", "ok"), ("SeesTheFuture", "wrong")])
def test_a_model_is_checked_too(name, status):
    model = Subject("model", name.lower(), f"{OUTSIDE}/models.py:{name}")
    assert verdict_on(model, TIMEOUT_S).status == status
