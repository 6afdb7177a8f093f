"""Check an implementation of any kind, without measuring it in a cell."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch

from pipeline.errors import Skipped
from pipeline.parallel.processes.starting import RankContext
from pipeline.subjects.attention_check import EVEN, IGNORES_MASK, ODD, check_attention
from pipeline.subjects.checking import CHECK_LIMIT, Processes, Verdict, survivors, verdict
from pipeline.subjects.model_check import check_model
from pipeline.subjects.naming import Subject
from pipeline.subjects.operation_check import check_operation
from pipeline.subjects.training_check import CHECKS
from pipeline.subjects.turns import note_last

HEAD_DIMS = (64, 128)
WORLD_SIZE = 2
BOTH = (False, True)  # without a mask, and causal


class Part(NamedTuple):
    """One part of the attention check: its problems, and whether the assignment requires them."""

    words: str
    dtype: torch.dtype
    masks: tuple[bool, ...]
    lengths: tuple[int, ...]
    is_asked: bool = False


# Required parts first: the assignment asks only for fp32 at powers of two.
PARTS = (
    Part("fp32 without a mask", torch.float32, (False,), EVEN, is_asked=True),
    Part("fp32 causal", torch.float32, (True,), EVEN, is_asked=True),
    Part("bf16", torch.bfloat16, BOTH, EVEN),
    Part(f"lengths like {ODD[0]}", torch.float32, BOTH, ODD),
)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def verdict_on(subject: Subject, timeout_s: float) -> Verdict:
    """Check one implementation in separate processes, on GPUs if there are enough, for at most this many seconds."""
    gpus = torch.cuda.device_count()
    alone = Processes(1, "gloo", "cuda" if gpus else "cpu", timeout_s)
    ranks = Processes(WORLD_SIZE, *(("nccl", "cuda") if gpus >= WORLD_SIZE else ("gloo", "cpu")), timeout_s)
    # An operation is right if it is right in one dtype and right or skipped in the other.
    checks: Mapping[str, Callable[[], Verdict]] = {
        "attention": lambda: _summed_up(_verdicts_on_attention(subject, alone), [p.words for p in PARTS if p.is_asked]),
        "op": lambda: _summed_up(
            {word: verdict(check_operation, subject, alone, dtype) for word, dtype in DTYPES.items()}, DTYPES
        ),
        "model": partial(verdict, check_model, subject, alone),
        "fsdp": partial(verdict, CHECKS["fsdp"], subject, ranks, torch.bfloat16),
        **{kind: partial(verdict, CHECKS[kind], subject, ranks) for kind in ("ddp", "optimizer")},
    }
    return checks[subject.kind]()


def check_parts(context: RankContext, subject: Subject, parts: Sequence[Part], mark: Path) -> dict[Part, Verdict]:
    """Check attention in these parts; mark: the file in which to note the part that runs, see `survivors`."""
    found: dict[Part, Verdict] = {}
    for number, part in enumerate(parts):
        note_last(mark, number)
        ignores_mask = any(IGNORES_MASK in each.reason for each in found.values())
        found[part] = _check_part(context, subject, part, part.masks[:1] if ignores_mask else part.masks)
    return found


def _check_part(context: RankContext, subject: Subject, part: Part, masks: Sequence[bool]) -> Verdict:
    """Check a part at each head_dim with these masks; return the verdict on the first problem that fails."""
    for head_dim, is_causal in product(HEAD_DIMS, masks):
        try:
            found = check_attention(context, subject, part.dtype, head_dim, is_causal, part.lengths)
        except Skipped as skipped:
            return Verdict("skipped", str(skipped))
        if found.status != "ok":
            return found
    return Verdict("ok")


def _verdicts_on_attention(subject: Subject, processes: Processes) -> dict[str, Verdict]:
    """Check all parts, repeating without one that ends the process; return the verdict on each, by its words."""
    until = time.monotonic() + processes.timeout_s

    def check(left: Sequence[Part], mark: Path) -> dict[Part, Verdict]:
        left_s = round(until - time.monotonic(), 1)
        if not left or left_s <= 0:
            return dict.fromkeys(left, Verdict("skipped", "not checked, for that took all the time"))
        return replace(processes, timeout_s=left_s).run(check_parts, subject, left, mark)

    checked, ended = survivors(check, PARTS, CHECK_LIMIT)
    return {part.words: (checked | ended)[part] for part in PARTS}


def _summed_up(verdicts: Mapping[str, Verdict], asked: Collection[str]) -> Verdict:
    """Combine the verdicts: wrong if a part in `asked` is, else ok if any part is, which the reason names.

    The others are its limits.
    """
    failed = {words: found for words, found in verdicts.items() if found.status != "ok"}
    for words, found in failed.items():
        # The assignment allows an implementation to ignore the mask.
        if words in asked and found.status == "wrong" and IGNORES_MASK not in found.reason:
            return replace(found, reason=f"in {words} {found.reason}")
    *most, last = [words for words in verdicts if words not in failed] or [""]
    if not last:
        return next(iter(failed.values()))
    right = f"{', '.join(most)} and {last}" if most else last
    limits = tuple(f"{words}: {found.status}, {found.reason}" for words, found in failed.items())
    return Verdict("ok", f"in {right}", limits=limits)
