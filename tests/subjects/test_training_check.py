"""Which of a user's wrappers and optimizers pass on two ranks, and what is reported about the others."""

import pytest
import torch

from pipeline.subjects.checking import Processes, Verdict, verdict
from pipeline.subjects.naming import Subject
from pipeline.subjects.training_check import BUCKETS, CHECKS, NOT_SENT, NOT_SHARDED, STATE_NOT_SHARDED

from .outside_files import training

OURS = "pipeline.parallel"
AFTER, BEFORE = "ddp_individual_parameters_on_after_backward", "ddp_bucketed_on_train_batch_start"
NOTHING_CALLED = (
    "nothing was called after backward: there is neither finish_gradient_synchronization() nor after_backward"
)
BF16 = (torch.bfloat16,)

pytestmark = pytest.mark.usefixtures("quick_ranks")


def check(subject, *dtype):
    more = (*dtype, None)[:1] if subject.kind == "fsdp" else ()
    return verdict(CHECKS[subject.kind], subject, Processes(2, "gloo", "cpu", timeout_s=60), *more)


@pytest.mark.parametrize(
    ("subject", "dtype", "found"),
    [
        (Subject("ddp", "ours", f"{OURS}:OverlapDDP"), (), Verdict("ok")),
        # The first is not a module and has its own after_backward; the second has nothing to do before a batch.
        (training("ddp", "get_ddp_individual_parameters", "adapters.py", after_backward=AFTER), (), Verdict("ok")),
        (training("ddp", "get_ddp_bucketed", "adapters.py", before_batch=BEFORE), (), Verdict("ok", way=BUCKETS)),
        (Subject("optimizer", "mine", f"{OURS}:ShardedOptimizer"), (), Verdict("ok")),
        (training("optimizer", "not_sharded"), (), Verdict("ok", STATE_NOT_SHARDED)),
        (Subject("fsdp", "ours", f"{OURS}:FSDP"), BF16, Verdict("ok")),
        (training("fsdp", "WholeFSDP", gather="gather"), (), Verdict("ok", NOT_SHARDED)),
        (training("fsdp", "by_torch", gather="gather_of_torch"), (), Verdict("ok", NOT_SENT)),
        (training("fsdp", "FSDP", "course/sharded.py"), (), Verdict("ok", NOT_SENT)),
    ],
    ids=lambda given: f"{given.kind} {given.name}" if isinstance(given, Subject) else "",
)
def test_right_training_passes_with_a_note_on_buckets_sharding_and_initial_weights(subject, dtype, found):
    assert check(subject, *dtype) == found


@pytest.mark.parametrize(
    ("subject", "dtype", "said"),
    [
        (training("ddp", "KeepsOneToItself"), (), "after step 1 embedding.weight is off by "),
        (training("ddp", "AveragesTheFirst16"), (), "after step 1 layers."),
        (training("ddp", "Sums"), (), "; gradients are those of the ranks summed, not averaged"),
        (training("ddp", "WithoutBroadcast"), (), "; a rank began with weights of its own, not with rank 0's"),
        (training("ddp", "Container"), (), NOTHING_CALLED),
        (training("ddp", "ForgetsTheLastBucket"), (), "from one process with the whole batch, buckets of "),
        (
            training("optimizer", "takes_no_optimizer"),
            (),
            "(params, torch.optim.AdamW, lr=..., weight_decay=...), but takes",
        ),
        (training("optimizer", "ForgetsTheLastParameter"), (), "after step 1 layers.9.down_proj.weight is off by"),
        (training("optimizer", "DropsAShard"), (), " of 2: after step 5 "),
        (training("fsdp", "StopsAveraging", "course/sharded.py"), (), " of 2: after step 5 "),
        (training("fsdp", "WholeFSDP", gather="gather_all_but_one"), (), "no full parameter embedding.weight of shape"),
        # Right in fp32.
        (training("fsdp", "SumsInBf16", gather="gather"), BF16, "whole batch, computing in bfloat16, allowed is 0.2"),
    ],
    ids=lambda given: f"{given.kind} {given.name}" if isinstance(given, Subject) else "",
)
def test_wrong_training_is_reported_with_step_parameter_and_likely_cause(subject, dtype, said):
    found = check(subject, *dtype)
    assert found.status == "wrong"
    assert said in found.reason
    assert subject.kind != "ddp" or "allowed is 1e-05" in found.reason
