"""Check an implementation of any kind, without a cell that measures it."""

from itertools import product

import torch

from pipeline.errors import Skipped
from pipeline.parallel.processes.starting import RankContext
from pipeline.subjects.attention_check import check_attention
from pipeline.subjects.checking import Processes, Verdict, verdict
from pipeline.subjects.model_check import check_model
from pipeline.subjects.naming import Subject
from pipeline.subjects.training_check import check_ddp, check_fsdp, check_optimizer

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
HEAD_DIMS = (64, 128)
WORLD_SIZE = 2


def verdict_on(subject: Subject, timeout_s: float) -> Verdict:
    """Check one implementation in processes of its own, for so many seconds at most.

    On a GPU where there is one; training on two ranks, on CPUs unless there are two GPUs.
    """
    gpus = torch.cuda.device_count()
    alone = Processes(1, "gloo", "cuda" if gpus else "cpu", timeout_s)
    ranks = Processes(WORLD_SIZE, *(("nccl", "cuda") if gpus >= WORLD_SIZE else ("gloo", "cpu")), timeout_s)
    match subject.kind:
        case "attention":
            return verdict(check_problems, subject, alone)
        case "model":
            return verdict(check_model, subject, alone)
        case "ddp":
            return verdict(check_ddp, subject, ranks)
        case "fsdp":
            return verdict(check_fsdp, subject, ranks, torch.bfloat16)
        case "optimizer":
            return verdict(check_optimizer, subject, ranks)
        case _:
            raise ValueError(f"no check for the kind {subject.kind}")


def check_problems(context: RankContext, subject: Subject) -> Verdict:
    """Check attention in each dtype, at each head_dim, without a mask and causal; the first that is wrong is told.

    The reason of a right one says what it refuses. Raises Skipped where it refuses all.
    """
    refused, told = [], []
    for name, head_dim, is_causal in product(DTYPES, HEAD_DIMS, (False, True)):
        try:
            found = check_attention(context, subject, DTYPES[name], head_dim, is_causal)
        except Skipped as skipped:
            refused.append(f"{skipped} ({name}, head_dim {head_dim}, {'causal' if is_causal else 'no mask'})")
            continue
        if found.status != "ok":
            return Verdict(found.status, f"in {name} {found.reason}")
        told.append(found.reason)
    if not told:
        raise Skipped(refused[0])
    of_all = len(refused) + len(told)
    problems = [f"refuses {len(refused)} of {of_all} problems, the first: {refused[0]}"] if refused else []
    return Verdict("ok", "; ".join(dict.fromkeys([*filter(None, told), *problems])))
