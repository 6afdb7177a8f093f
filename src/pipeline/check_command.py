"""The command `check`: whether implementations of the user's own are right, without measuring them."""

import argparse
import sys

from pipeline.cells.stage import taken_names
from pipeline.errors import UserError
from pipeline.printing import print_lines
from pipeline.registry import stages
from pipeline.subjects.naming import read, told


def check_right(arguments: argparse.Namespace) -> int:
    """Check what is named and print what is right; return 0 if any is right and none wrong, else 1.

    Raises UserError, one line, where what is named is nowhere.
    """
    from pipeline.cells.yaml_files import yaml_value

    if not arguments.timeout_s > 0:
        raise UserError(f"check: --timeout-s must be above 0, got {arguments.timeout_s:g}")
    given = arguments.subjects.removeprefix("subjects=")  # as behind --config
    if ".py:" in given and "{" not in given:
        raise UserError(f"check: name the kind, for instance '{{attention: {{mine: {given}}}}}'")
    asked = yaml_value(given, "check")
    subjects = read(asked, "check", taken_names(stages()))
    if not subjects:
        raise UserError("check: no implementation given: use '{kind: {name: place}}' or a file of adapters")

    print_lines(told(asked, subjects), sys.stdout)

    from pipeline.subjects.verdicts import verdict_on  # which needs torch

    outcomes = set()
    for subject in subjects:
        found = verdict_on(subject, arguments.timeout_s)
        outcomes.add(found.status)
        word, comma = ("right", "") if found.status == "ok" else (found.status, ",")
        line = f"{subject.kind} {subject.name}: {word}{f'{comma} {found.reason}' if found.reason else ''}"
        print_lines([line, *(f"    {limit}" for limit in found.limits)], sys.stdout)
    return int("ok" not in outcomes or "wrong" in outcomes)
