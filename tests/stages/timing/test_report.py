import pandas as pd
import pytest

from pipeline.stages.timing.report import build

from ..frames import failed, frame_of, shown, timed

CELL = {"precision": "fp32", "size": "small", "context_length": 1024, "batch_size": 4, "warmup_steps": 5}
CELL |= {"mode": "eager", "clock": "host"}
PARTS = {"forward": 0.3, "backward": 0.6, "optimizer": 0.1, "train_step": 1.0}


def cell(*medians_ms, limited_by="gpu", samples_ms=None, cards=("a GPU",), **axes):
    """Return the rows of a cell's repeats, with each phase a fixed share of the step's time."""
    rates = {"model_tflops_per_s": 100.0, "mfu_pct": 10.0, "tokens_per_s": 1e4, "limited_by": limited_by}
    return [
        timed(share * step_ms, **CELL | axes, phase=phase, repeat=repeat, cards=cards[repeat % len(cards)])
        | (rates if phase == "train_step" else {})
        | ({"samples_ms": [share * each for each in samples_ms[repeat - 1]]} if samples_ms else {})
        for repeat, step_ms in enumerate(medians_ms, 1)
        for phase, share in PARTS.items()
    ]


def section(*cells, other_stages=None):
    return build(frame_of("timing", (row for each in cells for row in each)), other_stages or {})


def part(section, name):
    return shown(section)[name]


def test_no_headline_or_change_is_based_on_a_host_limited_step():
    found = section(
        *(cell(100.0), cell(10.0, precision="bf16", limited_by="host")),
        *(cell(900.0, size="medium"), cell(300.0, size="medium", precision="bf16")),
        *(cell(950.0, size="large", limited_by="host"), cell(100.0, size="large", precision="bf16")),
    )
    assert [change.where.partition(",")[0] for change in found.changes] == ["medium"]
    assert "small" not in found.answer
    drawn = part(found, "precision_gain").rows.groupby("size")["status"].agg(set)
    assert drawn.to_dict() == {"small": {"unstable"}, "medium": {"ok"}, "large": {"unstable"}}
    assert "TFLOP/s" not in section(cell(10.0, precision="bf16", limited_by="host")).answer


def test_the_headline_is_about_the_precision_of_most_models_and_on_a_tie_the_lowest():
    both = cell(900.0), cell(300.0, precision="bf16")
    assert section(*both).answer.startswith("bf16")
    assert section(*both, cell(950.0, size="large")).answer.startswith("fp32")


def test_the_main_precision_is_compared_with_fp32_without_and_with_tf32():
    others = cell(900.0, 901.0, 899.0), cell(400.0, precision="tf32")
    found = section(*others, cell(300.0, 301.0, 299.0, precision="bf16")).changes
    assert [(change.what.partition("bf16 instead of ")[2], change.judged["repeats"]) for change in found] == [
        ("fp32 without TF32", 3),
        ("fp32 with TF32", 1),
    ]
    assert [change.judged["ratio"] for change in found] == pytest.approx([3.0, 4 / 3])
    assert [change.what for change in section(*others).changes] == ["tf32 instead of fp32 without TF32"]


def test_rows_show_their_repeats_and_gpus_and_narrow_models_come_first():
    found = section(
        *(cell(100.0, 100.1, 99.9, size="2.35B"), cell(50.0, 90.0, 51.0, precision="bf16", size="2.35B")),
        *(cell(100.0, 100.1, 99.9, size="2.7B"), cell(50.0, 50.1, 49.9, precision="bf16", size="2.7B")),
    )
    rows = part(found, "precisions").rows
    assert rows.groupby("size")["verdict"].agg(set).to_dict() == {"2.7B": {"faster"}, "2.35B": {"undecided"}}
    assert rows["size"].drop_duplicates().tolist() == ["2.7B", "2.35B"]
    here = cell(100.0, 101.0, 99.0, cards=("GPU 1", "GPU 2", "GPU 3"))
    found = section(here, cell(50.0, precision="bf16", cards=("GPU 4",)))
    whole = part(section(here), "steps").rows.query("phase == 'train_step'").iloc[0]
    assert whole[["median_ms", "repeats", "gpus"]].tolist() == [100.0, 3, 3]
    rows = part(found, "precisions").rows
    assert rows[["both_repeats", "gpus"]].drop_duplicates().to_numpy().tolist() == [["1 / 3", 4]]


def test_deviations_cover_all_repeats_and_first_steps_are_compared_within_a_process():
    found = part(section(cell(10.0, 20.0, samples_ms=[[10.0] * 5, [20.0] * 5])), "phases").rows.iloc[0]
    forward = pd.Series([3.0] * 5 + [6.0] * 5)
    seen = found[["mean_of_steps", "std_of_steps", "count_of_steps"]].tolist()
    assert seen == pytest.approx([forward.mean(), forward.std(), 10])
    cold = cell(10.0, warmup_steps=0, samples_ms=[[90.0] + [10.0] * 14])
    rows = part(section(cold, cell(10.0), cell(10.0, size="medium")), "warm_up").rows
    assert list(rows["warmup_steps"]) == [0, 5]  # only the model with several numbers of warm-up steps
    seen = rows.loc[0, ["count_of_steps", "first_ms", "later_ms", "mean_of_steps"]].tolist()
    assert seen == pytest.approx([10, 90.0, 10.0, 18.0])


def test_compiling_pays_off_only_if_the_compiled_step_is_faster():
    compiled = CELL | {"mode": "compiled", "phase": "compile", "samples_ms": [3000.0]}
    first = [timed(3000.0, **compiled | {"size": size}) for size in ("small", "medium")]
    medium = cell(100.0, size="medium"), cell(100.0, size="medium", mode="compiled")
    found = section(cell(100.0), cell(50.0, mode="compiled"), first, *medium)
    steps = part(found, "compiled").rows.drop_duplicates("size").set_index("size")["steps"]
    assert steps["small"] == pytest.approx(60)
    assert pd.isna(steps["medium"])


def test_the_main_context_is_the_longest_most_models_have_and_peaks_show_matmul_rates():
    cells = [cell(100.0, size=size, context_length=length) for size in ("small", "medium") for length in (256, 1024)]
    short = [failed(**CELL | {"size": "large", "phase": phase}) for phase in PARTS]
    table = part(section(*cells, cell(900.0, context_length=2048), short), "steps")
    assert set(table.rows["context_length"]) == {1024}
    assert table.rows["size"].drop_duplicates().tolist() == ["small", "medium", "large"]
    assert table.markdown().splitlines()[-1].count("OOM") > len(PARTS)
    ceilings = pd.DataFrame({"dtype": ["bf16", "bf16", "fp32"], "tflops_per_s": [700.0, 800.0, 50.0]})
    rows = [row | {"peak_tflops_per_s": 989.0} for row in cell(100.0, precision="bf16")]
    alone, with_ceilings = (
        part(section(rows, other_stages=each), "achieved").limits for each in ({}, {"ceilings": ceilings})
    )
    assert [limit.value for limit in alone] == [limit.value for limit in with_ceilings] == [989.0]
    assert ["800" in limits[0].label for limits in (alone, with_ceilings)] == [False, True]
