from pathlib import Path

import pytest

from pipeline.cells.yaml_files import read_yaml
from snakemake_logger_plugin_cells import messages
from snakemake_logger_plugin_cells.progress import Progress, RunPlan

TARGETS = [
    *("all", "reports/writeup.md", "reports/figures", "results/timing/fp32.csv"),
    *(f"results/flash/{name}.csv" for name in ("bf16", "fp32", "cells")),
    "results/flash/cells/dtype={dtype}/seq_len={seq_len}.json",
]


def progress(totals, cells_s=None, plan_s=0.0):
    found = Progress(RunPlan(cells_s or {}))
    found.begin(totals, plan_s)
    return found


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0 s"), (54.4, "54 s"), (99.4, "99 s"), (99.6, "2 min"), (743, "12 min"), (5900, "98 min"), (9000, "2.5 h")],
)
def test_times_are_rounded_and_have_a_suitable_unit(seconds, expected):
    assert messages.span(seconds) == expected


def test_the_state_counts_cells_and_failures_or_jobs_and_gives_both_times():
    found = progress({"measure_timing": 3, "writeup": 1}, {"measure_timing": {f"{n}.json": 10.0 for n in range(3)}})
    assert messages.state(found, 0.0) == "[0 of 3 cells done, 0 s so far, about 45 s left]"
    for number in range(2):
        found.start(number, "measure_timing", [f"{number}.json"], 10.0 * number)
        found.finish(number, 10.0 * (number + 1))
    found.start(2, "measure_timing", ["2.json"], 20.0)
    found.fail(2)
    assert messages.state(found, 20.0) == "[2 of 3 cells done, 1 failed, 20 s so far, about 15 s left]"
    assert messages.state(progress({"tabulate_timing": 2}), 0.0) == "[0 of 2 jobs done, 0 s so far, about 3 s left]"


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("results/flash/fp64.csv", ": targets in results/flash/ are bf16.csv, cells.csv, cells/, fp32.csv"),
        ("results/flsh/bf16.csv", " (did you mean results/flash/bf16.csv?): targets in results/ are flash/, timing/"),
        ("reports/writup.md", " (did you mean reports/writeup.md?): targets in reports/ are figures, writeup.md"),
        ("result/x.csv", " (did you mean results/x.csv?): targets are all, reports/, results/"),
        ("timing", " (one stage and its report: --config 'only=[timing]'): targets are all, reports/, results/"),
        ("scale=smoke", " (did you mean --config scale=smoke?): targets are all, reports/, results/"),
        ("only=[a/b]", " (did you mean --config 'only=[a/b]'?): targets are all, reports/, results/"),
        ("results/flash", ": targets in results/flash/ are bf16.csv, cells.csv, cells/, fp32.csv"),
        ("results/flash/cells/dtype=bf16.json", ": targets in results/flash/cells/ are dtype=*/"),
        ("reports/writeup.md/x", ": targets in reports/writeup.md/ are none"),
    ],
)
def test_a_mistyped_target_lists_what_is_allowed_in_its_place(target, complaint):
    assert messages.unknown_target(target, TARGETS) == f"no target '{target}'{complaint}"


def test_the_keys_that_config_takes_are_those_of_its_schema():
    schema = read_yaml(Path(__file__).parents[2] / "workflow/schemas/config.schema.yaml")
    assert set(schema["properties"]) == messages.CONFIG_KEYS


NO_RULE = "MissingRuleException in rule x:\nNo rule to produce {} (if you use input functions make sure that ...)."
OURS = "InputFunctionException in rule x:\nError:\n  UserError: timing: size must be one of tiny\nWildcards:"


@pytest.mark.parametrize(
    ("message", "targets", "line"),
    [
        (NO_RULE.format("reports/x.md"), TARGETS, "no target 'reports/x.md' at scale laptop: targets in reports/ are"),
        (NO_RULE.format("reports/x.md"), [], None),  # another workflow's
        (OURS, TARGETS, "timing: size must be one of tiny"),
        ("WorkflowError:\nAt least one job did not complete successfully.", TARGETS, None),
    ],
)
def test_an_error_about_a_target_or_a_user_error_becomes_one_line(message, targets, line):
    found = messages.complaint(message, targets, "laptop")
    assert found is None if line is None else found.startswith(f"snakemake: {line}")
