import pytest
import torch

from pipeline.subjects.checking import Processes, Verdict, verdict
from pipeline.subjects.naming import Subject
from pipeline.subjects.training_check import BUCKETS, NOT_SENT, NOT_SHARDED, check_ddp, check_fsdp, check_optimizer

from .outside_files import training

TWO_RANKS = Processes(2, "gloo", "cpu", timeout_s=60)
OURS = "pipeline.parallel"

pytestmark = pytest.mark.usefixtures("quick_ranks")


AFTER = "ddp_individual_parameters_on_after_backward"


@pytest.mark.parametrize(
    ("subject", "way"),
    [
        (Subject("ddp", "ours", f"{OURS}:OverlapDDP"), ""),
        # No module, with its own function after backward; and with nothing to do before a batch.
        (training("ddp", "get_ddp_individual_parameters", "adapters.py", after_backward=AFTER), ""),
        (training("ddp", "get_ddp_bucketed", "adapters.py", before_batch="ddp_bucketed_on_train_batch_start"), BUCKETS),
    ],
    ids=lambda given: given.use.rpartition(":")[2] if isinstance(given, Subject) else given,
)
def test_right_wrappers_pass_and_one_that_takes_a_bucket_size_says_so(subject, way):
    found = verdict(check_ddp, subject, TWO_RANKS)
    assert (found.status, found.way) == ("ok", way)


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


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (Subject("optimizer", "mine", f"{OURS}:ShardedOptimizer"), ""),
        (training("optimizer", "ForgetsTheLastParameter"), "after step 1 layers.9.down_proj.weight is off by"),
        (training("optimizer", "DropsAShard"), " of 2: after step 5 "),
    ],
)
def test_a_sharded_optimizer_is_compared_with_the_whole_one(optimizer, said):
    found = verdict(check_optimizer, optimizer, TWO_RANKS)
    assert found.status == ("wrong" if said else "ok")
    assert said in found.reason


@pytest.mark.parametrize(
    ("subject", "compute_dtype", "notes"),
    [
        (Subject("fsdp", "ours", f"{OURS}:FSDP"), torch.bfloat16, ""),
        (training("fsdp", "WholeFSDP", gather="gather"), None, NOT_SHARDED),
        (training("fsdp", "by_torch", gather="gather_of_torch"), None, NOT_SENT),
        (training("fsdp", "FSDP", "course/sharded.py"), None, NOT_SENT),
    ],
)
def test_right_fsdp_is_told_what_it_does_not_shard_or_send(subject, compute_dtype, notes):
    assert verdict(check_fsdp, subject, TWO_RANKS, compute_dtype) == Verdict("ok", notes)


@pytest.mark.parametrize(
    ("subject", "compute_dtype", "said"),
    [
        (training("fsdp", "StopsAveraging", "course/sharded.py"), None, " of 2: after step 5 "),
        (
            training("fsdp", "WholeFSDP", gather="gather_all_but_one"),
            None,
            "there is no full parameter embedding.weight of shape (32, 48)",
        ),
        # Right in fp32.
        (
            training("fsdp", "SumsInBf16", gather="gather"),
            torch.bfloat16,
            "whole batch, computing in bfloat16, allowed is 0.2",
        ),
    ],
)
def test_wrong_fsdp_is_told_at_which_step_of_which_parameter_in_which_dtype(subject, compute_dtype, said):
    found = verdict(check_fsdp, subject, TWO_RANKS, compute_dtype)
    assert found.status == "wrong"
    assert said in found.reason
