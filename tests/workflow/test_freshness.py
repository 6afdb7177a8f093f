"""Which jobs an edit triggers: counts from a dry run, after one small run of three stages."""

import contextlib
import shutil
from dataclasses import replace
from unittest.mock import Mock

import pytest

from pipeline.cells import freshness

pytestmark = pytest.mark.workflow


@contextlib.contextmanager
def edited(project, path, old, new):
    """Replace a text in a file temporarily; its mtime stays new, which must make no difference."""
    before = (project.root / path).read_text()
    project.edit(path, old, new)
    try:
        yield
    finally:
        (project.root / path).write_text(before)


def measured_again(**cells):
    """Return the job counts if these cells are measured again, each the only one of its table."""
    stages = {stage: count for stage, count in cells.items() if count}
    jobs = {f"{rule}_{stage}": count for stage, count in stages.items() for rule in ("measure", "tabulate")}
    return {**jobs, "tabulate_cells": len(stages), "writeup": 1}


ALL = measured_again(timing=2, flash=1, accounting=1)
WRITEUP_ONLY = {"writeup": 1}
ALL_BUT_MEASURING = {rule: count for rule, count in ALL.items() if not rule.startswith("measure")}
TIMING_TABLES = {"tabulate_timing": 2, "tabulate_cells": 1, **WRITEUP_ONLY}
EDITS = {
    "a comment in the model": ("model/transformer.py", "ROPE_THETA = 10_000.0", "ROPE_THETA = 10_000.0  # usual", {}),
    "the command line": ("cli.py", "BAD_INPUT = 2", "BAD_INPUT = 4", {}),
    "the model": ("model/transformer.py", "10_000.0", "20_000.0", measured_again(timing=2)),
    "a kernel": ("attention/triton/kernels/forward.py", "tl.exp2(", "1.0 * tl.exp2(", measured_again(flash=1)),
    "a formula of rates": ("formulas/flops.py", "return ", "return 1 * ", TIMING_TABLES),
    "the rule for unstable times": (
        "cells/timed_rows.py",
        "NEGLIGIBLE_SHARE = 0.2",
        "NEGLIGIBLE_SHARE = 0.3",
        {**TIMING_TABLES, "tabulate_flash": 1, "tabulate_cells": 2},
    ),
    "an instrument": ("instruments/sampling/kernel_timing.py", "return ", "return 1 * ", measured_again(flash=1)),
    "how a cell is run": ("cells/run.py", "host.settle()", "host.settle(), None", {}),
    "what a worker imports": ("worker/child.py", "gc.collect()", "gc.collect(1)", {}),
    "the tabulator": ("cells/tabulate.py", "STATUSES.index(", "-1 * STATUSES.index(", ALL_BUT_MEASURING),
    "a note": ("stages/timing/report.md", "synchronize", "sync", WRITEUP_ONLY),
    "what times are trusted by": ("report/writeup.md", "A time", "One time", WRITEUP_ONLY),
    "the page's script": ("report/html/page.js", "const ROWS_MORE = 200", "const ROWS_MORE = 300", WRITEUP_ONLY),
    "the page": ("report/html/page.py", "return ", "return 1 * ", WRITEUP_ONLY),
    "how charts are drawn": ("report/drawing.py", "return ", "return 1 * ", WRITEUP_ONLY),
    "a section": ("stages/timing/report.py", "return ", "return 1 * ", WRITEUP_ONLY),
}


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_triggers_exactly_the_jobs_that_depend_on_it(measured, plan, what):
    path, old, new, expected = EDITS[what]
    with edited(measured, f"src/pipeline/{path}", old, new):
        assert plan(measured) == expected


def test_freshness_does_not_depend_on_snakemakes_metadata(measured, plan, tmp_path):
    copy = replace(measured, root=tmp_path / "copy")
    shutil.copytree(measured.root, copy.root)
    shutil.rmtree(copy.root / ".snakemake")
    assert plan(copy) == {}
    for what in ("a kernel", "the tabulator", "a note"):
        path, old, new, expected = EDITS[what]
        with edited(copy, f"src/pipeline/{path}", old, new):
            assert plan(copy) == expected


def test_results_copied_to_another_checkout_are_not_measured_again(measured, plan, tmp_path):
    copy = replace(measured, root=tmp_path / "copy")
    for folder in ("src", "workflow", "config"):
        shutil.copytree(
            measured.root / folder, copy.root / folder, copy_function=shutil.copy
        )  # new mtimes, as in a clone
    shutil.copytree(measured.root / "results", copy.root / "results")
    assert set(plan(copy)) == {"writeup"}


TIMING = {"size": ["tiny"], "context_length": [16], "precision": ["fp32", "bf16"]}


@pytest.mark.parametrize(
    ("timing", "expected"),
    [
        ({"settings": {"vocab_size": 200}}, measured_again(timing=2)),
        ({"grids": [TIMING | {"context_length": [16, 17]}]}, measured_again(timing=2)),  # the others are left alone
        ({"grids": [TIMING | {"precision": ["fp32"]}]}, {"tabulate_cells": 1, "writeup": 1}),
    ],
    ids=["a setting", "new cells", "a cell less"],
)
def test_an_override_measures_what_it_changes(measured, plan, timing, expected):
    assert plan(measured, overrides={"timing": timing}) == expected


def test_an_error_while_checking_freshness_ends_the_run(measured, refusal, monkeypatch):
    monkeypatch.setattr(freshness, "why_stale", Mock(side_effect=RuntimeError("nobody can tell")))
    assert "nobody can tell" in refusal(measured)
