import re

import pandas as pd
import pytest

from pipeline.report import published
from pipeline.stages.precision.report import baselines, section
from pipeline.stages.precision.report.selection import devices_with

from ..sections import (
    built,
    contents,
    drawn_figures,
    gaps,
    linked_figures,
)

MEASURED = ("laptop", "gpu", "cuda_only")
FIGURE_NAMES = {"accumulation"}
SUMS, DTYPES, LAYER_NORM = (
    "mixed_precision_accumulation",
    "benchmarking_mixed_precision (a)",
    "benchmarking_mixed_precision (b)",
)

build = built(section.build, "precision")


def words(rows):
    """Return the section's parts, actions and answers as one text, undrawn."""
    made = section.build(rows)
    return str([made.answer, *made.parts, *made.actions, *made.problems])


def answer(rows, name):
    return next(problem.answer for problem in section.build(rows).problems if problem.name == name)


def changed(rows, column, value, **where):
    """Set one column in the rows that have these values."""
    mask = pd.Series(True, index=rows.index)
    for name, wanted in where.items():
        mask &= rows[name] == wanted
    assert mask.any()
    rows = rows.copy()
    rows.loc[mask, column] = value
    return rows


def test_the_section_has_no_gap_draws_what_it_links_and_the_same_bytes_again(tables, tmp_path):
    text = build(tables["laptop"], tmp_path / "once")
    assert gaps(text) == []
    assert linked_figures(text, "precision") == drawn_figures(tmp_path / "once") == FIGURE_NAMES
    assert build(tables["laptop"], tmp_path / "again") == text
    assert contents(tmp_path / "again") == contents(tmp_path / "once")


@pytest.mark.parametrize("name", MEASURED)
def test_every_question_is_answered(tables, name):
    assert [problem.name for problem in section.build(tables[name]).problems] == [SUMS, DTYPES, LAYER_NORM]


def test_nothing_measured_gives_the_reason_alone(tables):
    nothing = section.build(tables["nothing"])
    assert nothing.answer == "Nothing was measured: no CUDA GPU."
    assert not nothing.parts


def test_a_machine_without_a_gpu_says_nothing_of_gpus(tables):
    assert not re.search("GPU|CUDA|cuda", words(tables["laptop"]))


def test_what_failed_on_a_device_that_measured_something_is_said(tables):
    rows = changed(tables["gpu"], "status", "oom", device="cuda", experiment="layer_norm_eps")
    assert re.search(r"missing: OOM[^.]*\(layer_norm_eps\)", words(rows))


def test_the_gpu_is_shown_where_there_is_one(tables):
    assert devices_with(tables["gpu"], "accumulation") == ["cuda", "cpu"]
    assert "of 0.01, on cuda:" in words(tables["gpu"])
    assert "of 0.01, on cpu:" in words(tables["laptop"])


def test_the_assigned_sums_and_what_their_errors_come_of(tables):
    text = answer(tables["laptop"], SUMS)
    assert "The sums end at 10.00013351 (fp32 + fp32), 9.953125 (fp16 + fp16), 10.00213623 (fp32 + fp16)" in text
    assert "rounding the addend in fp32 + fp16 and fp32 + fp16, cast first" in text
    assert "rounding the sums in fp32 + fp32 and fp16 + fp16." in text
    exact = changed(tables["laptop"], "rounding_error", 0.0, accumulator="fp16")
    assert "rounding the sums in fp32 + fp32." in answer(exact, SUMS)


def test_the_answer_gives_the_sum_in_each_format_and_where_it_stalls(tables):
    start = section.build(tables["laptop"]).answer
    assert "give 10.0001 in fp32, 9.95312 in fp16 and 4 in bf16 (it stalls at step 350)." in start
    rows = changed(tables["laptop"], "stalled_at_step", float("nan"), accumulator="bf16")
    assert "stalls" not in section.build(rows).answer


def test_sums_and_stalls_that_are_not_as_predicted_are_not_counted(tables):
    assert "predicts 13 of 13 sums and 13 of 13 stalls" in words(tables["laptop"])
    rows = changed(tables["laptop"], "stall", 64.0, accumulator="fp16", addend_dtype="fp16", addend=0.01)
    assert "predicts 13 of 13 sums and 12 of 13 stalls" in words(rows)


def test_devices_are_compared_only_where_there_are_two(tables):
    assert "cuda and cpu agree in 13 of 13 sums." in words(tables["gpu"])
    assert "agree in" not in words(tables["laptop"])
    rows = changed(tables["gpu"], "result", 9.9, device="cuda", accumulator="bf16", steps=1000)
    assert "cuda and cpu agree in 12 of 13 sums." in words(rows)


def test_the_asked_data_types_are_those_observed_and_where_devices_differ(tables):
    asked = (
        "parameters fp32, output of the first linear layer fp16, output of layer norm {}, logits fp16, loss fp32"
        " and gradients of parameters fp32."
    )
    text = answer(tables["gpu"], DTYPES)
    assert f"Under autocast to fp16 on cuda: {asked.format('fp32')}" in text
    assert "On cpu the output of layer norm is fp16." in text
    assert answer(tables["laptop"], DTYPES) == f"Under autocast to fp16 on cpu: {asked.format('fp16')}"


def test_a_component_of_several_types_has_them_all(tables):
    rows = tables["laptop"]
    first = rows[(rows["component"] == "gradients") & (rows["autocast_dtype"] == "fp16")].index[0]
    rows = rows.copy()
    rows.loc[first, "observed_dtype"] = "bf16"
    assert "gradients of parameters bf16/fp32" in answer(rows, DTYPES)


def in_bf16(rows, error):
    """Give layer norm's variance an error in the low formats, with everything in them."""
    for dtype in ("fp16", "bf16"):
        rows = changed(rows, "variance_rel_error", error, dtype=dtype, method="in_format")
    return rows


def test_sums_belong_in_fp32_only_where_they_are_more_exact(tables):
    assert "still belong in fp32" in answer(tables["laptop"], LAYER_NORM)
    rows = in_bf16(tables["laptop"], 1e-9)
    assert "still belong in fp32" not in answer(rows, LAYER_NORM)


def test_an_eps_is_named_only_where_a_format_loses_it(tables):
    assert "An eps of 1e-08 and 1e-12 rounds to zero in fp16." in answer(tables["laptop"], LAYER_NORM)
    rows = changed(tables["laptop"], "zeros_nonfinite_in_format", 0.0, experiment="layer_norm_eps")
    assert "eps" not in answer(rows, LAYER_NORM)


def test_the_range_of_layer_norm_is_that_of_the_largest_input_without_a_lost_row(tables):
    assert "overflows between inputs of 4 and 16 " in answer(tables["laptop"], LAYER_NORM)
    where = {"dtype": "fp16", "method": "in_format", "input": "normal", "magnitude": 4.0}
    assert "overflows between inputs of 1 and 4 " in answer(
        changed(tables["laptop"], "overflow_share", 0.5, **where), LAYER_NORM
    )


@pytest.mark.parametrize(
    "left_out", [("accumulation",), ("autocast",), ("layer_norm",), ("accumulation", "layer_norm")]
)
def test_an_experiment_that_did_not_run_is_not_spoken_of(tables, left_out):
    rows = tables["laptop"]
    made = section.build(rows[~rows["experiment"].isin(left_out)])
    assert made.answer
    names = {problem.name for problem in made.problems}
    assert names == {SUMS, DTYPES, LAYER_NORM} - {
        {"accumulation": SUMS, "autocast": DTYPES}.get(experiment, "") for experiment in left_out
    }


def test_others_sums_are_paired_by_formats_steps_and_cast(tables):
    pairs = baselines.pairs(tables["laptop"])
    assert len(pairs) == len(published.load("accumulation"))
    assert (pairs["ours"] - pairs["theirs"]).abs().max() < 1e-4
    assert baselines.pairs(tables["nothing"]).empty
