import pytest

from pipeline.stages.precision.cell import EXPERIMENTS, Cell
from pipeline.stages.precision.report import build
from pipeline.stages.precision.report_by_size import bf16_by_size, by_size_parts

from ...report.frames import failed, folded, repeated
from .conftest import table

MEASURED = ("laptop", "gpu", "cuda_only")
OF_EXPERIMENT = {
    "accumulation": {"sums", "sums_told", "sums_table"},
    "autocast": {"dtypes"},
    "layer_norm": {"layer_norm", "widths"},
    "layer_norm_eps": set(),
}
STEP = {"warmup_steps": 5, "batch_size": 4, "mode": "eager", "clock": "host", "setting_vocab_size": 10_000}
KEYS = ("precision", "size", "context_length", "batch_size", "warmup_steps", "mode", "phase", "clock")


def parts(rows, beside=None):
    section = build(rows, beside or {})
    return {part.name: part for part in (*section.parts, *section.for_course) if not part.is_empty}


def cell(precision, size="small", limited_by="gpu", context=1024, medians_ms=(10.0, 10.1, 9.9), **columns):
    """Return the rows of a cell of the stage timing: forward, backward and the whole step, of each repeat."""
    named = {**STEP, "precision": precision, "size": size, "context_length": context, **columns}
    passes = [row for phase in ("forward", "backward") for row in repeated("", medians_ms, **named | {"phase": phase})]
    return [*passes, *repeated("", [3 * each for each in medians_ms], **named, limited_by=limited_by)]


def timing(*cells):
    return folded(*(row for each in cells for row in each), keys=KEYS)


def forward(frame, **where):
    found = bf16_by_size(frame)
    for name, value in {"phase": "forward", **where}.items():
        found = found[found[name] == value]
    return found.iloc[0]


@pytest.mark.parametrize("name", MEASURED)
def test_every_experiment_has_its_parts(tables, name):
    assert set(parts(tables[name])) == set().union(*OF_EXPERIMENT.values())


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_a_cell_alone_has_its_parts_and_an_answer(cpu_rows_by_cell, experiment):
    cell = Cell(experiment, "cpu")
    alone = table({cell: cpu_rows_by_cell[cell]})
    assert set(parts(alone)) == OF_EXPERIMENT[experiment]
    assert build(alone, {}).answer


def test_the_gpu_is_shown_where_there_is_one(tables):
    assert set(parts(tables["gpu"])["sums_table"].rows["device"]) == {"cuda"}
    assert set(parts(tables["laptop"])["sums_table"].rows["device"]) == {"cpu"}


def test_both_roundings_add_up_to_the_error_of_a_sum(tables):
    sums = parts(tables["laptop"])["sums_table"].rows
    assert (sums["addend_error"] + sums["rounding_error"]).tolist() == pytest.approx(sums["error"].tolist(), abs=1e-9)
    assert set(sums["predicted"]) == {"yes"}


def test_a_sum_that_is_not_as_predicted_is_told_as_such(tables):
    rows = tables["laptop"].copy()
    rows.loc[rows["accumulator"] == "bf16", "result"] = 9.9
    sums = parts(rows)["sums_table"].rows
    assert set(sums.loc[sums["predicted"] == "no", "accumulator"]) == {"bf16"}


def test_the_curves_end_at_the_sums(tables):
    curves = parts(tables["laptop"])["sums"].rows
    assert curves.groupby(["steps", "accumulator"])["curve_sums"].last()[1000, "bf16"] == 4.0


def test_the_largest_inputs_of_layer_norm_are_those_before_a_row_is_lost(tables):
    rows = tables["laptop"].copy()
    of_fp16 = (rows["dtype"] == "fp16") & (rows["method"] == "in_format") & (rows["input"] == "normal")

    def largest(table):
        found = table.rows
        return found.loc[(found["dtype"] == "fp16") & (found["method"] == "in_format"), "up_to"].iloc[0]

    assert largest(parts(rows)["layer_norm"]) == 4.0
    rows.loc[of_fp16 & (rows["magnitude"] == 4.0), "output_zero_share"] = 0.1
    assert largest(parts(rows)["layer_norm"]) == 1.0


def test_data_types_are_those_seen_on_each_device(tables):
    seen = parts(tables["gpu"])["dtypes"].rows.set_index("part")
    assert seen.loc["output of layer norm", ["fp16 on cuda", "fp16 on cpu"]].tolist() == ["fp32", "fp16"]
    assert "fp16 on cuda" not in parts(tables["laptop"])["dtypes"].rows


def test_a_component_of_several_types_has_them_all(tables):
    rows = tables["laptop"].copy()
    first = rows[(rows["component"] == "gradients") & (rows["autocast_dtype"] == "fp16")].index[0]
    rows.loc[first, "observed_dtype"] = "bf16"
    seen = parts(rows)["dtypes"].rows.set_index("part")
    assert seen.loc["gradients of the parameters", "fp16 on cpu"] == "bf16/fp32"


def test_bf16_is_ranked_beside_fp32_of_the_same_cell_narrow_models_first():
    wide = cell("fp32", "xl", medians_ms=[90.0]), cell("bf16", "xl", medians_ms=[10.0])
    frame = timing(*wide, cell("fp32"), cell("bf16", medians_ms=[5.0, 5.02]))
    assert bf16_by_size(frame)["size"].drop_duplicates().tolist() == ["small", "xl"]
    row = forward(frame, size="xl")
    assert (row["ratio"], row["verdict"]) == (pytest.approx(9.0), "faster")


def test_repeats_that_contradict_each_other_rank_nothing():
    frame = timing(cell("fp32", medians_ms=[324.0, 387.0, 324.0]), cell("bf16", medians_ms=[310.0, 397.0, 378.0]))
    assert set(bf16_by_size(frame)["verdict"]) == {"undecided"}
    _, chart = by_size_parts(frame)
    assert set(chart.rows["status"]) == {"unstable"}


def test_a_step_that_the_host_limits_is_drawn_as_unsure():
    frame = timing(cell("fp32"), cell("bf16", medians_ms=[5.0, 5.02], limited_by="host"))
    assert forward(frame)["limits"] == "host / gpu"
    _, chart = by_size_parts(frame)
    assert set(chart.rows["status"]) == {"unstable"}


def test_rows_of_other_gpus_and_of_fewer_repeats_are_marked():
    frame = timing(cell("fp32", medians_ms=[10.0]), cell("bf16", medians_ms=[5.0, 5.02, 5.01], cards="another GPU"))
    row = forward(frame)
    assert (row["gpus"], row["both_repeats"]) == ("other", "3 / 1")
    assert forward(timing(cell("fp32"), cell("bf16", medians_ms=[5.0])))["gpus"] == "same"


def test_one_precision_alone_or_one_that_failed_has_no_trend():
    other = [failed("", **STEP, precision="bf16", size="small", context_length=1024)]
    assert by_size_parts(timing(cell("fp32"))) == []
    assert by_size_parts(timing(cell("fp32"), other)) == []


def test_the_table_is_of_the_context_that_most_models_have():
    few = cell("fp32", context=2048), cell("bf16", context=2048, medians_ms=[5.0])
    many = [cell(name, size) for size in ("small", "xl") for name in ("fp32", "bf16")]
    shown, _ = by_size_parts(timing(*few, *many))
    assert set(shown.rows["context_length"]) == {1024}
