import pandas as pd
import pytest

from pipeline.registry import stages
from pipeline.stages.timing.report import build

from ...report.frames import failed, folded, timed

CELL = {
    "precision": "fp32",
    "size": "small",
    "context_length": 1024,
    "batch_size": 4,
    "warmup_steps": 5,
    "mode": "eager",
    "clock": "host",
}
KEYS = (*CELL, "phase")
PARTS = {"forward": 0.3, "backward": 0.6, "optimizer": 0.1, "train_step": 1.0}


def cell(step_ms, repeat=1, limited_by="gpu", samples_ms=None, **axes):
    """Return the rows of one process: the phases of a step as shares of its time."""
    rows = []
    for phase, share in PARTS.items():
        row = timed("", share * step_ms, **(CELL | axes | {"phase": phase, "repeat": repeat}))
        if samples_ms:
            row["samples_ms"] = [share * each for each in samples_ms]
        if phase == "train_step":
            rates = {"model_tflops_per_s": 1e4 / step_ms, "mfu_pct": 1e3 / step_ms, "tokens_per_s": 4e6 / step_ms}
            row |= rates | {"limited_by": limited_by, "gpu_idle_pct": 5.0 if limited_by == "gpu" else 60.0}
        rows.append(row)
    return rows


def section(*cells, beside=None):
    frame = folded(*(row for each in cells for row in each), keys=KEYS)
    declared = stages()["timing"].row_types.column_names()
    frame = frame.reindex(columns=list(dict.fromkeys([*frame.columns, *declared]))).assign(setting_vocab_size=10_000)
    return build(frame, beside or {})


def part(section, name):
    return next(each for each in (*section.parts, *section.for_course) if each.name == name)


def thrice(medians_ms, **axes):
    return [row for number, median in enumerate(medians_ms, 1) for row in cell(median, number, **axes)]


def test_no_headline_and_no_change_rests_on_a_step_that_the_host_limits():
    found = section(
        cell(100.0),
        cell(10.0, precision="bf16", limited_by="host"),
        cell(900.0, size="medium"),
        cell(300.0, size="medium", precision="bf16"),
        cell(950.0, size="large", limited_by="host"),
        cell(100.0, size="large", precision="bf16"),
    )
    assert [change.where.partition(",")[0] for change in found.changes] == ["medium"]
    assert "small" not in found.answer


def test_what_only_the_host_limits_has_no_rate_told():
    found = section(cell(10.0, precision="bf16", limited_by="host"))
    assert "TFLOP/s" not in found.answer


def test_a_gain_is_undecided_where_repeats_contradict_each_other():
    steady = [row for size in ("small", "medium") for row in thrice((100.0, 100.1, 99.9), size=size)]
    apart = thrice((50.0, 90.0, 51.0), precision="bf16")
    close = thrice((50.0, 50.1, 49.9), precision="bf16", size="medium")
    verdicts = part(section(steady, apart, close), "precisions").rows.set_index("size")["verdict"]
    assert verdicts.to_dict() == {"small": "undecided", "medium": "faster"}


def test_a_row_tells_its_repeats_and_on_how_many_gpus_they_ran():
    repeats = [
        {**row, "cards": f"GPU {number}"}
        for number, median in enumerate((100.0, 101.0, 99.0), 1)
        for row in cell(median, number)
    ]
    row = part(section(repeats), "steps").rows.iloc[0]
    assert (row["median_ms"], row["repeats"], row["gpus"]) == (100.0, 3, 3)


def test_the_deviation_is_of_all_steps_of_all_repeats():
    repeats = [
        row for number, level in enumerate((10.0, 20.0), 1) for row in cell(level, number, samples_ms=[level] * 5)
    ]
    row = part(section(repeats), "phases").rows.iloc[0]
    forward = pd.Series([3.0] * 5 + [6.0] * 5)
    assert row["n_forward"] == 10
    assert row["mean_ms_forward"] == pytest.approx(forward.mean())
    assert row["std_ms_forward"] == pytest.approx(forward.std())


def test_the_first_step_stands_beside_the_later_ones_of_its_process():
    cold = cell(10.0, warmup_steps=0, samples_ms=[90.0] + [10.0] * 14)
    found = section(cold, cell(10.0), cell(10.0, size="medium"))
    rows = part(found, "warm_up").rows
    assert list(rows["warmup_steps"]) == [0, 5]  # of the model that was warmed up in several ways
    first = rows.iloc[0]
    assert (first["n"], first["first_ms"], first["later_ms"]) == pytest.approx((10, 90.0, 10.0))
    assert first["mean_ms"] == pytest.approx(18.0)


def test_compiling_is_paid_back_only_where_the_compiled_step_is_faster():
    first = [
        timed("", 3000.0, **(CELL | {"size": size, "mode": "compiled", "phase": "compile", "samples_ms": [3000.0]}))
        for size in ("small", "medium")
    ]
    found = section(
        cell(100.0),
        cell(50.0, mode="compiled"),
        cell(100.0, size="medium"),
        cell(100.0, size="medium", mode="compiled"),
        first,
    )
    rows = part(found, "compiled").rows
    steps = rows[rows["phase"] == "train_step"].set_index("size")
    assert steps["steps"]["small"] == pytest.approx(60)
    assert pd.isna(steps["steps"]["medium"])


def test_the_main_setting_is_the_longest_context_that_most_models_have():
    cells = [cell(100.0, size=size, context_length=length) for size in ("small", "medium") for length in (256, 1024)]
    shown = part(section(*cells, cell(900.0, context_length=2048)), "steps").rows
    assert set(shown["context_length"]) == {1024}
    assert list(shown["size"]) == ["small", "medium"]


def test_a_step_that_ran_out_of_memory_keeps_its_row():
    short = [failed("", **(CELL | {"size": "medium", "phase": phase})) for phase in PARTS]
    table = part(section(cell(100.0), short), "steps")
    assert "OOM" in table.markdown().splitlines()[-1]


def test_the_peak_has_what_a_product_alone_reaches_beside_it():
    ceilings = pd.DataFrame({"dtype": ["bf16", "bf16", "fp32"], "tflops_per_s": [700.0, 800.0, 50.0], "status": "ok"})
    rows = [row | {"peak_tflops_per_s": 989.0} for row in cell(100.0, precision="bf16")]
    alone, beside = (part(section(rows, beside=each), "achieved").limits for each in ({}, {"ceilings": ceilings}))
    assert [limit.value for limit in alone] == [limit.value for limit in beside] == [989.0]
    assert ["800" in limits[0].label for limits in (alone, beside)] == [False, True]
