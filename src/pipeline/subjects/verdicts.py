"""Check an implementation of any kind, without a cell that measures it."""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch

from pipeline.errors import Skipped
from pipeline.parallel.processes.starting import RankContext
from pipeline.subjects.attention_check import EVEN, IGNORES_MASK, ODD, check_lengths
from pipeline.subjects.checking import CHECK_LIMIT, Processes, Verdict, survivors, verdict
from pipeline.subjects.marks import note_last
from pipeline.subjects.model_check import check_model
from pipeline.subjects.naming import Subject
from pipeline.subjects.operation_check import check_operation
from pipeline.subjects.training_check import check_ddp, check_fsdp, check_optimizer

HEAD_DIMS = (64, 128)
WORLD_SIZE = 2
BOTH = (False, True)  # without a mask, and causal


class Part(NamedTuple):
    """A part of what attention is checked for: its problems, and whether an implementation has to be right there."""

    words: str
    dtype: torch.dtype
    masks: tuple[bool, ...]
    lengths: tuple[int, ...]
    is_asked: bool = False


# In the order in which the assignment promises them: it asks for fp32 at powers of two.
PARTS = (
    Part("fp32 without a mask", torch.float32, (False,), EVEN, is_asked=True),
    Part("fp32 causal", torch.float32, (True,), EVEN, is_asked=True),
    Part("bf16", torch.bfloat16, BOTH, EVEN),
    Part(f"lengths like {ODD[0]}", torch.float32, BOTH, ODD),
)


def verdict_on(subject: Subject, timeout_s: float) -> Verdict:
    """Check one implementation in processes of its own, for so many seconds at most.

    On a GPU where there is one; training on two ranks, on CPUs unless there are two GPUs.
    """
    gpus = torch.cuda.device_count()
    alone = Processes(1, "gloo", "cuda" if gpus else "cpu", timeout_s)
    ranks = Processes(WORLD_SIZE, *(("nccl", "cuda") if gpus >= WORLD_SIZE else ("gloo", "cpu")), timeout_s)
    match subject.kind:
        case "attention":
            return _verdict_on_attention(subject, alone)
        case "model":
            return verdict(check_model, subject, alone)
        case "ddp":
            return verdict(check_ddp, subject, ranks)
        case "fsdp":
            return verdict(check_fsdp, subject, ranks, torch.bfloat16)
        case "optimizer":
            return verdict(check_optimizer, subject, ranks)
        case "op":
            return _verdict_on_operation(subject, alone)
        case _:
            raise ValueError(f"no check for the kind {subject.kind}")


def check_parts(context: RankContext, subject: Subject, parts: Sequence[Part], mark: Path) -> dict[Part, Verdict]:
    """Check attention in these parts; mark: where to note which of them runs, see `pipeline.subjects.checking`."""
    found: dict[Part, Verdict] = {}
    for number, part in enumerate(parts):
        note_last(mark, number)
        ignores_mask = any(IGNORES_MASK in each.reason for each in found.values())
        found[part] = _check_part(context, subject, part, part.masks[:1] if ignores_mask else part.masks)
    return found


def _check_part(context: RankContext, subject: Subject, part: Part, masks: Sequence[bool]) -> Verdict:
    """Check a part at each head_dim with these masks; the first problem that is not right is told."""
    for head_dim, is_causal in product(HEAD_DIMS, masks):
        try:
            found = check_lengths(context, subject, part.dtype, head_dim, is_causal, part.lengths)
        except Skipped as skipped:
            return Verdict("skipped", str(skipped))
        if found.status != "ok":
            return found
    return Verdict("ok")


def _verdict_on_attention(subject: Subject, processes: Processes) -> Verdict:
    """Check all parts, again without one that ends its process.

    Wrong is what is wrong in a part that is asked for, but for a mask that is ignored, which the assignment allows. Of
    one that is right in any part the others are limits.
    """
    until = time.monotonic() + processes.timeout_s

    def check(left: Sequence[Part], mark: Path) -> dict[Part, Verdict]:
        left_s = round(until - time.monotonic(), 1)
        if not left or left_s <= 0:
            return dict.fromkeys(left, Verdict("skipped", "not checked, for that took all the time"))
        return replace(processes, timeout_s=left_s).run(check_parts, subject, left, mark)

    checked, ended = survivors(check, PARTS, CHECK_LIMIT)
    verdicts = {part: (checked | ended)[part] for part in PARTS}
    failed = {part: found for part, found in verdicts.items() if found.status != "ok"}
    for part, found in failed.items():
        if part.is_asked and found.status == "wrong" and IGNORES_MASK not in found.reason:
            return replace(found, reason=f"in {part.words} {found.reason}")
    right = [part.words for part in PARTS if part not in failed]
    if not right:
        return next(iter(failed.values()))
    limits = tuple(f"{part.words}: {found.status}, {found.reason}" for part, found in failed.items())
    return Verdict("ok", f"in {_listed(right)}" if failed else "", limits=limits)


def _verdict_on_operation(subject: Subject, processes: Processes) -> Verdict:
    """Check an operation in fp32 and in bf16; right is what is right in one and refuses, or lacks, the other."""
    words = {"fp32": torch.float32, "bf16": torch.bfloat16}
    verdicts = {word: verdict(check_operation, subject, processes, dtype) for word, dtype in words.items()}
    failed = {word: found for word, found in verdicts.items() if found.status != "ok"}
    for word, found in failed.items():
        if found.status == "wrong":
            return replace(found, reason=f"in {word} {found.reason}")
    if len(failed) == len(words):
        return next(iter(failed.values()))
    limits = tuple(f"{word}: {found.status}, {found.reason}" for word, found in failed.items())
    return Verdict(
        "ok", "" if not failed else f"in {_listed([word for word in words if word not in failed])}", limits=limits
    )


def _listed(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
