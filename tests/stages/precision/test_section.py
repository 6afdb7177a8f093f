import itertools
import re

import pandas as pd
import pytest

from pipeline.report import published
from pipeline.stages.precision.report import autocast_findings, baselines, figures, section
from pipeline.stages.precision.report.selection import devices_with

from ..sections import (
    contents,
    drawn_figures,
    faults_of_parts,
    gaps,
    keys,
    linked_figures,
    numbers_that_stay,
    part,
    template_numbers,
    unnamed_rows,
)

MEASURED = ("laptop", "gpu", "cuda_only")
DRAWN = ("laptop", "nothing")
FIGURE_NAMES = {"accumulation", "variance", "output"}
PROBLEMS = (
    "### mixed_precision_accumulation",
    "### benchmarking_mixed_precision (a)",
    "### benchmarking_mixed_precision (b)",
    "### benchmarking_mixed_precision (c)",
)


@pytest.fixture(scope="module")
def rendered(tables, tmp_path_factory):
    """Render each machine's section once: its text, and its folder of figures where they are drawn, which is slow."""
    found = {}
    for name, rows in tables.items():
        folder = tmp_path_factory.mktemp(name)
        found[name] = (section.build(rows, folder) if name in DRAWN else without_figures(rows), folder)
    return found


def without_figures(rows):
    links = {name: f"figures/precision/{name}.svg" for name in FIGURE_NAMES}
    return section.render(section.TEMPLATE, section.facts(rows) | {"figures": links})


def changed(rows, column, value, **where):
    """Set one column in the rows that have these values."""
    mask = pd.Series(True, index=rows.index)
    for name, wanted in where.items():
        mask &= rows[name] == wanted
    assert mask.any()
    rows = rows.copy()
    rows.loc[mask, column] = value
    return rows


@pytest.mark.parametrize("name", [*MEASURED, "nothing"])
def test_the_section_holds_no_gap_in_its_words(rendered, name):
    text, _ = rendered[name]
    assert gaps(text) == []
    assert "not seen" not in text


@pytest.mark.parametrize("name", MEASURED)
def test_every_question_is_answered_under_its_name(rendered, name):
    text, _ = rendered[name]
    assert [text.count(title) for title in PROBLEMS] == [1] * len(PROBLEMS)


def test_every_figure_drawn_is_linked_and_every_link_is_drawn(rendered):
    text, folder = rendered["laptop"]
    assert linked_figures(text, "precision") == FIGURE_NAMES
    assert drawn_figures(folder) == FIGURE_NAMES


def test_figures_are_the_same_bytes_when_drawn_again(rendered, tables, tmp_path):
    _, folder = rendered["laptop"]
    section.build(tables["laptop"], tmp_path)
    assert contents(tmp_path) == contents(folder)


def test_the_template_has_no_figure_of_its_own():
    formulas = r"2\^|2x|p\+1|1/std"
    assert template_numbers(section.TEMPLATE, besides=formulas) == []


@pytest.mark.parametrize("name", ["laptop", "gpu"])
def test_no_number_of_the_prose_stays_when_every_figure_is_another(tables, name):
    def ours(rows):
        others_left_out = {"figures": dict.fromkeys(FIGURE_NAMES, ""), "sums_of_others": None, "dtypes_of_others": None}
        return section.render(section.TEMPLATE, section.facts(rows) | others_left_out)

    formulas = {"2"}  # powers of two
    # Half the spacing where a sum stalls; fp16's addend, and its last steps, from 8 on: by the format's arithmetic.
    formats = {"0.00195", "0.0156", "0.0100021", "8", "0.00781", "250"}
    magnitudes = {f"{float(f'{size:.3g}'):g}" for size in tables[name]["magnitude"].dropna()}
    counts = {"6", "13", "15", "24", "222"}  # of the sums and lines that are compared
    assert numbers_that_stay(ours, tables[name], keys("precision"), formulas | formats | magnitudes | counts) == set()


def test_the_section_of_a_part_of_the_cells_is_whole(tables, tmp_path_factory):
    assert faults_of_parts(section.build, "precision", tables["cuda_only"], tmp_path_factory) == {}


@pytest.mark.parametrize("name", MEASURED)
def test_the_columns_of_rows_tell_the_rows_of_a_cell_apart(tables, name):
    assert unnamed_rows("precision", tables[name]).empty


@pytest.mark.parametrize("name", MEASURED)
def test_a_list_or_table_stands_clear_of_the_text_around_it(rendered, name):
    lines = rendered[name][0].splitlines()
    for before, after in itertools.pairwise(lines):
        listed = before.startswith(("- ", "  "))
        assert not (listed and after and not after.startswith(("- ", "  "))), (before, after)
        assert not (before and not listed and after.startswith("- ")), (before, after)
        assert before.startswith("|") == after.startswith("|") or "" in (before, after), (before, after)


def test_the_results_of_the_assigned_sums_are_those_of_the_table(rendered, tables):
    text = part(rendered["laptop"][0], "mixed_precision_accumulation")
    for value in ("10.00013351", "9.953125", "10.00213623"):
        assert f"gives {value}," in text
    rows = tables["laptop"]
    other = changed(rows, "result", 9.5, experiment="accumulation", accumulator="fp16", status="ok")
    assert "gives 9.5," in without_figures(other)


def test_a_sum_that_is_not_as_predicted_is_named(rendered, tables):
    assert "Not as predicted" not in rendered["laptop"][0]
    rows = changed(tables["laptop"], "stall", 64.0, accumulator="fp16", addend_dtype="fp16", addend=0.01)
    text = without_figures(rows)
    assert "stall in 12 of 13 sums" in text
    assert "Not as predicted, stall: fp16 + fp16, 1,000 × 0.01." in text


def test_casting_first_is_said_to_change_nothing_only_where_it_does(rendered, tables):
    assert "Casting the addend to fp32 first changes nothing" in rendered["laptop"][0]
    rows = changed(tables["laptop"], "result", 10.5, cast="explicit")
    text = without_figures(rows)
    assert "changes nothing" not in text
    assert "first gives another value" in text


def test_an_fp32_sum_is_called_exact_only_where_it_is(rendered, tables):
    assert "Every fp32 sum of fp16 or bf16 addends is exact" in rendered["laptop"][0]
    rows = changed(tables["laptop"], "rounding_error", 1e-4, accumulator="fp32", addend_dtype="bf16")
    assert "is exact" not in without_figures(rows)


def test_devices_are_compared_only_where_there_are_two(rendered, tables):
    assert "cuda and cpu agree in all 13 sums" in rendered["gpu"][0]
    assert "agree in all" not in rendered["laptop"][0]
    rows = changed(tables["gpu"], "result", 9.9, device="cuda", accumulator="bf16", steps=1000)
    text = without_figures(rows)
    assert "cuda and cpu differ in bf16 + bf16, 1,000 × 0.01." in text


def test_the_gpu_is_shown_where_there_is_one(rendered, tables):
    assert devices_with(tables["gpu"], "accumulation") == ["cuda", "cpu"]
    assert "sums, run on cuda" in rendered["gpu"][0]
    assert "NVIDIA H200" in rendered["gpu"][0]
    assert "sums, run on cpu" in rendered["laptop"][0]


def test_the_asked_data_types_are_those_observed(rendered):
    text = part(rendered["gpu"][0], "benchmarking_mixed_precision (a)")
    asked = re.search(r"- \*\*fp16, cuda\*\*: (.*)", text)[1]
    assert asked == (
        "parameters fp32, output of the first linear layer fp16, output of layer norm fp32, logits fp16, loss fp32"
        " and gradients of parameters fp32."
    )
    assert "- **bf16, cpu**: parameters fp32, output of the first linear layer bf16, output of layer norm bf16," in text


def test_what_differs_between_the_devices_is_said(rendered):
    text = part(rendered["gpu"][0], "benchmarking_mixed_precision (a)")
    assert "The devices do not treat every part alike" in text
    assert "- fp16, output of layer norm: fp16 on cpu and fp32 on cuda." in text
    assert "do not treat every part alike" not in rendered["laptop"][0]


def test_devices_that_agree_are_said_to(tables):
    rows = tables["gpu"]
    cpu = rows[(rows["experiment"] == "autocast") & (rows["device"] == "cpu")]
    rows = pd.concat([rows[rows["experiment"] != "autocast"], cpu, cpu.assign(device="cuda")], ignore_index=True)
    assert "The devices agree in every part." in without_figures(rows)


def test_both_types_of_the_loss_are_named_with_their_losses(rendered):
    text = part(rendered["gpu"][0], "benchmarking_mixed_precision (a)")
    assert (
        "- cuda: fp32 for cross-entropy, mean squared error and sum of the logits; fp16 for mean of the logits" in text
    )
    assert "do not agree on the loss with fp16: fp16 (write-ups 0, 4) and fp32 (write-ups 1, 2, 3)" in text


def test_layer_norm_is_described_as_it_was_observed(rendered):
    text = part(rendered["gpu"][0], "benchmarking_mixed_precision (a)")
    assert "- fp16, cuda: autocast hands it its input in fp32, and its output stays fp32." in text
    assert "- fp16, cpu: its kernel takes fp16 and gives fp16, but keeps mean and 1/std in fp32." in text


def test_others_sums_agree_to_the_digits_that_they_print(rendered, tables):
    total = len(published.load("accumulation"))
    assert f"{total} of {total} agree with" in rendered["laptop"][0]
    assert baselines.agree(10.000133514404297, 10.0001)
    assert not baselines.agree(10.000133514404297, 10.0002)
    assert not baselines.agree(9.953125, 9.9537)
    rows = changed(tables["laptop"], "result", 4.5, accumulator="bf16", steps=1000)
    assert f"{total - 1} of {total} agree with" in without_figures(rows)


def test_others_data_types_agree_with_a_gpu_and_differ_from_a_cpu_in_layer_norm(tables):
    by_device = {entry["device"]: entry for entry in baselines.dtype_facts(tables["gpu"])["devices"]}
    assert by_device["cuda"]["differ"] == []
    differ = {(entry["component"], entry["autocast_dtype"]) for entry in by_device["cpu"]["differ"]}
    assert differ == {(autocast_findings.COMPONENTS["layernorm_output"], dtype) for dtype in ("fp16", "bf16")}
    total = len(published.load("autocast_dtypes"))
    for entry in by_device.values():
        assert entry["exact"] + entry["one_of"] + sum(len(words_of(line)) for line in entry["differ"]) == total


def words_of(line):
    return re.findall(r"\d", line["sources"])


def test_the_limits_of_layer_norm_are_as_predicted(rendered):
    text = part(rendered["laptop"][0], "benchmarking_mixed_precision (b)")
    assert "lines are as predicted" in text
    assert "Not as predicted:" not in text


def test_devices_that_lose_other_rows_are_named(rendered, tables):
    assert "cuda and cpu lose the same rows in all" in rendered["gpu"][0]
    assert "lose the same rows" not in rendered["laptop"][0]
    where = {"experiment": "layer_norm", "device": "cuda", "dtype": "fp16", "method": "kernel", "magnitude": 16.0}
    rows = changed(tables["gpu"], "output_zero_share", 1.0, **where)
    assert re.search(r"do not lose the same rows in 1 of \d+ cases: fp16, torch's kernel\.", without_figures(rows))


def test_the_short_answer_names_what_the_run_showed_and_no_more(rendered, tables):
    short = rendered["laptop"][0].split("In short, sensitive are:")[1].split("Layer norm was written out")[0]
    assert [line.split(",")[0] for line in short.splitlines() if line.startswith("- ")] == [
        "- the squares and their sum",
        "- the running sums",
        "- a small eps",
    ]
    rows = changed(tables["laptop"], "stored_eps", 1e-8, dtype="fp16", experiment="layer_norm_eps")
    assert "- a small eps" not in without_figures(rows)


def test_a_limit_away_from_its_prediction_is_named(tables):
    where = {"dtype": "fp16", "method": "in_format", "experiment": "layer_norm", "input": "normal"}
    rows = changed(tables["laptop"], "predicted_overflow_magnitude", 1.0, **where)
    text = without_figures(rows)
    assert "5 of 6 lines are as predicted" in text
    assert "Not as predicted: fp16, all in the format." in text


def test_what_bf16_changes_is_said_only_where_it_is_so(rendered, tables):
    text = rendered["laptop"][0]
    assert "with fp32's range the variance is finite for inputs up to" in text
    assert "layer norm still needs its sums in fp32" in text
    rows = changed(tables["laptop"], "variance_rel_error", 1e-9, dtype="bf16", method="in_format")
    text = without_figures(rows)
    assert "Accuracy is" not in text
    assert "still needs its sums in fp32" not in text


def test_eps_that_fp16_loses_is_named(rendered):
    text = part(rendered["laptop"][0], "benchmarking_mixed_precision (b)")
    assert "fp16 loses an eps of 1e-08 and 1e-12, and a row of zeros then gives numbers that are not finite." in text
    assert "fp32 and bf16 keep every one of them." in text


def test_a_skipped_device_is_named_once_with_its_reason(rendered):
    text, _ = rendered["laptop"]
    line = "- cuda: running sums, data types under autocast, layer norm and layer norm's eps: skipped, no CUDA GPU."
    assert text.count("no CUDA GPU") == 1
    assert line in text
    assert "What of precision was not measured" not in rendered["gpu"][0]


def test_nothing_measured_gives_the_reasons_alone(rendered):
    text, folder = rendered["nothing"]
    assert "Nothing of this stage could be measured" in text
    assert "no CUDA GPU" in text
    assert "![" not in text
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("experiment", "title"),
    [("accumulation", "mixed_precision_accumulation"), ("autocast", "benchmarking_mixed_precision (a)")],
)
def test_an_experiment_that_did_not_run_is_not_spoken_of(rendered, tables, experiment, title):
    rows = tables["laptop"]
    assert f"### {title}" in rendered["laptop"][0]
    assert f"### {title}" not in without_figures(rows[rows["experiment"] != experiment])


@pytest.mark.parametrize("experiment", ["layer_norm", "layer_norm_eps"])
def test_layer_norm_without_one_of_its_experiments_is_still_written(tables, experiment):
    rows = tables["laptop"]
    text = without_figures(rows[rows["experiment"] != experiment])
    assert "### benchmarking_mixed_precision (b)" in text
    assert ("**The small eps.**" in text) == (experiment == "layer_norm")
    assert ("**The sums.**" in text) == (experiment == "layer_norm_eps")


def test_figures_need_only_their_own_experiment(tables, tmp_path):
    rows = tables["cuda_only"]
    links = figures.draw_all(rows[rows["experiment"] == "accumulation"], tmp_path)
    assert set(links) == {"accumulation"}
    assert [path.stem for path in tmp_path.iterdir()] == ["accumulation"]
