"""The command `check`: test whether the user's implementations are right, without measuring them."""

import argparse
import sys

from pipeline.cells.stage import reserved_names
from pipeline.errors import UserError
from pipeline.printing import print_lines
from pipeline.registry import stages
from pipeline.subjects.naming import read, told


def check_subjects(arguments: argparse.Namespace) -> int:
    """Check the named implementations and print a verdict on each; return 0 if one is right and none is wrong, else 1.

    Attention that ignores the causal mask in fp32 is wrong.
    Raises UserError, one line, for a bad argument or an implementation that cannot be found.
    """
    from pipeline.cells.yaml_files import yaml_value

    if not arguments.timeout_s > 0:
        raise UserError(f"check: --timeout-s must be above 0, got {arguments.timeout_s:g}")
    given = arguments.subjects.removeprefix("subjects=")  # as it is written after --config
    if ".py:" in given and "{" not in given:
        raise UserError(f"check: name the kind, for instance '{{attention: {{mine: {given}}}}}'")
    declared = yaml_value(given, "check")
    subjects = read(declared, "check", reserved_names(stages()))
    if not subjects:
        raise UserError("check: no implementation given: use '{kind: {name: place}}' or a file of adapters")

    print_lines(told(declared, subjects), sys.stdout)

    from pipeline.subjects.attention_check import IGNORES_MASK  # needs torch
    from pipeline.subjects.training_check import CHECKS
    from pipeline.subjects.verdicts import PARTS, verdict_on

    asked = tuple(part.words for part in PARTS if part.is_asked)
    outcomes = set()
    for subject in subjects:
        verdict = verdict_on(subject, arguments.timeout_s)
        ignores_mask = any(IGNORES_MASK in limit for limit in verdict.limits if limit.startswith(asked))
        outcomes.add("wrong" if ignores_mask else verdict.status)
        word, joint = verdict.status, ", "
        if word == "ok":  # the reason says what is right, or is a note on right training
            word, joint = "right", ", but " if subject.kind in CHECKS else " "
        word = f"wrong with the causal mask; {word}" if ignores_mask else word
        line = f"{subject.kind} {subject.name}: {word}{joint + verdict.reason if verdict.reason else ''}"
        print_lines([line, *(f"    {limit}" for limit in verdict.limits)], sys.stdout)
    return int("ok" not in outcomes or "wrong" in outcomes)
