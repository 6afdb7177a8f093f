import pytest
import torch

from pipeline.subjects.checking import Processes, Verdict, verdict
from pipeline.subjects.naming import Subject
from pipeline.subjects.training_check import BUCKETS, NOT_SENT, NOT_SHARDED, check_ddp, check_fsdp, check_optimizer

from .outside_files import ADAPTERS, training

TWO_RANKS = Processes(2, "gloo", "cpu", timeout_s=60)
OURS = "pipeline.parallel"
AFTER = {"after_backward": f"{ADAPTERS}:fsdp_on_after_backward"}


@pytest.mark.parametrize("name", ["NaiveDDP", "FlatDDP", "OverlapDDP"])
def test_our_wrappers_pass(name):
    assert verdict(check_ddp, Subject("ddp", "mine", f"{OURS}:{name}"), TWO_RANKS).status == "ok"


def test_a_wrapper_that_is_no_module_passes_with_its_own_function_after_backward():
    subject = Subject(
        "ddp", "mine", f"{ADAPTERS}:get_ddp_individual_parameters",
        after_backward=f"{ADAPTERS}:ddp_individual_parameters_on_after_backward",
    )  # fmt: skip
    assert verdict(check_ddp, subject, TWO_RANKS).status == "ok"


def test_a_wrapper_that_takes_a_bucket_size_says_so_and_may_have_nothing_to_do_before_a_batch():
    before = f"{ADAPTERS}:ddp_bucketed_on_train_batch_start"
    found = verdict(check_ddp, Subject("ddp", "mine", f"{ADAPTERS}:get_ddp_bucketed", before_batch=before), TWO_RANKS)
    assert (found.status, found.way) == ("ok", BUCKETS)


@pytest.mark.parametrize(
    ("wrapper", "said"),
    [
        ("KeepsOneToItself", "after step 1 embedding.weight is off by "),
        ("AveragesTheFirst16", "after step 1 layers."),
        ("Sums", "; gradients are those of the ranks summed, not averaged"),
        ("WithoutBroadcast", "; a rank began with weights of its own, not with rank 0's"),
        (
            "Container",
            "nothing was called after backward: there is neither finish_gradient_synchronization() nor after_backward",
        ),
        ("ForgetsTheLastBucket", "from one process with the whole batch, buckets of "),
    ],
)
def test_a_wrapper_that_averages_wrongly_is_wrong_with_the_parameter(wrapper, said):
    found = verdict(check_ddp, training("ddp", wrapper), TWO_RANKS)
    assert found.status == "wrong"
    assert said in found.reason
    assert "allowed is 1e-05" in found.reason


def test_a_sharded_optimizer_is_compared_with_the_whole_one():
    assert verdict(check_optimizer, training("optimizer", "Shards"), TWO_RANKS).status == "ok"
    assert verdict(check_optimizer, Subject("optimizer", "mine", f"{OURS}:ShardedOptimizer"), TWO_RANKS).status == "ok"
    found = verdict(check_optimizer, training("optimizer", "ForgetsTheLastParameter"), TWO_RANKS)
    assert found.status == "wrong"
    assert found.reason.startswith("rank ")
    assert "after step 1 layers.9.down_proj.weight is off by" in found.reason
    found = verdict(check_optimizer, training("optimizer", "DropsAShard"), TWO_RANKS)
    assert " of 2: after step 5 " in found.reason


@pytest.mark.parametrize(
    ("subject", "notes"),
    [
        (Subject("fsdp", "ours", f"{OURS}:FSDP"), ""),
        (training("fsdp", "WholeFSDP", gather="gather"), NOT_SHARDED),
        (training("fsdp", "by_torch", gather="gather_of_torch"), NOT_SENT),
        (training("fsdp", "FSDP", "course/sharded.py"), NOT_SENT),
    ],
)
def test_right_fsdp_is_told_what_it_does_not_shard_or_send(subject, notes):
    assert verdict(check_fsdp, subject, TWO_RANKS, torch.bfloat16) == Verdict("ok", notes)


def test_fsdp_that_stops_averaging_is_wrong():
    found = verdict(check_fsdp, training("fsdp", "StopsAveraging", "course/sharded.py"), TWO_RANKS, None)
    assert " of 2: after step 5 " in found.reason


def test_fsdp_without_one_of_its_parameters_is_wrong():
    found = verdict(check_fsdp, training("fsdp", "WholeFSDP", gather="gather_all_but_one"), TWO_RANKS, None)
    assert "there is no full parameter embedding.weight of shape (32, 48)" in found.reason


def test_fsdp_that_is_right_in_fp32_only_is_wrong_in_bf16():
    subject = training("fsdp", "SumsInBf16", gather="gather")
    assert verdict(check_fsdp, subject, TWO_RANKS, None).status == "ok"
    found = verdict(check_fsdp, subject, TWO_RANKS, torch.bfloat16)
    assert found.status == "wrong"
    assert "whole batch, computing in bfloat16, allowed is 0.2" in found.reason
