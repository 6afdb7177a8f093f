from dataclasses import asdict

import pytest

from pipeline.formulas.operations import flops, product_flops
from pipeline.stages.ops.cell import IMPLS, Cell
from pipeline.stages.ops.report import build

from ..frames import failed, frame_of, shown, timed

COPY_GB_PER_S, PRODUCT_TFLOPS = 3000.0, 800.0
TIMES_MS = {"ours": 0.1, "eager": 0.4, "compile": 0.2}


def row(impl, median_ms, op="swiglu", **columns):
    moved = 6e8 if op != "linear_cross_entropy" else 2e8
    measured = {"moved_bytes": moved, "gb_per_s": moved / median_ms / 1e6, "floor_share_pct": 20.0 / median_ms}
    identity = {"impl": impl, "phase": "whole", "extra_bytes": 1e6}
    return timed(median_ms, **asdict(Cell(op=op)) | measured | identity | columns)


def section(*rows, with_ceilings=True):
    ceilings = [
        timed(1.0, what="memory", kind="copy", gb_per_s=COPY_GB_PER_S, cards="another GPU"),
        timed(1.0, what="memory", kind="l2_copy", gb_per_s=9000.0),
        *(timed(1.0, what="matmul", dtype="bf16", side=side, tflops_per_s=rate) for side, rate in ((1, 200), (2, 800))),
        timed(1.0, what="matmul", dtype="fp8", side=2, tflops_per_s=1500.0),
    ]
    return build(frame_of("ops", rows), {"ceilings": frame_of("ceilings", ceilings)} if with_ceilings else {})


def operations():
    return [row(impl, ms, op) for op in ("swiglu", "linear_cross_entropy") for impl, ms in TIMES_MS.items()]


@pytest.mark.parametrize(("source", "label"), [("datasheet", "the data sheet's"), ("measured", "measured here")])
def test_the_limit_says_where_its_bandwidth_comes_from(source, label):
    rows = [each | {"bandwidth_source": source} for each in operations()]
    assert [limit.label for limit in shown(section(*rows))["floors"].limits] == [label]


def test_times_are_predicted_from_bytes_or_products_and_only_with_ceilings():
    table = shown(section(*operations()))["times"]
    rows = table.rows.set_index(["op", "impl"])
    assert rows.loc[("swiglu", "ours"), "predicted_ms"] == pytest.approx(6e8 / COPY_GB_PER_S / 1e6)
    cell = Cell(op="linear_cross_entropy")
    products_ms = product_flops(cell.op, "whole", cell.widths) / PRODUCT_TFLOPS / 1e9
    assert rows.loc[("linear_cross_entropy", "eager"), "predicted_ms"] == pytest.approx(products_ms)
    assert rows.loc[("swiglu", "eager"), "predicted_times"] == pytest.approx(0.4 / 0.2)
    assert "another GPU" in table.caption
    found = shown(section(*operations(), with_ceilings=False))
    assert {"floors", "times"} <= set(found)
    assert "roofline" not in found
    assert found["times"].rows["predicted_ms"].isna().all()


def test_every_implementation_is_a_point_of_the_roofline_and_one_per_operation_is_labelled():
    chart = shown(section(*operations()))["roofline"]
    assert len(chart.drawn) == 6
    cell = Cell(op="swiglu")
    work = flops("swiglu", "whole", cell.widths)
    point = chart.drawn[(chart.drawn["op"] == "swiglu") & (chart.drawn["impl"] == "ours")].iloc[0]
    assert point["flop_per_byte"] == pytest.approx(work / 6e8)
    assert point["work_tflops_per_s"] == pytest.approx(work / 0.1 / 1e9)
    assert sorted(chart.drawn.loc[chart.drawn["name"] != "", "name"]) == ["SwiGLU", "head"]
    (slope, roof) = chart.lines.values()
    assert all(rate == pytest.approx(per_byte * COPY_GB_PER_S / 1e3) for per_byte, rate in slope)
    assert [rate for _, rate in roof] == [PRODUCT_TFLOPS] * 2
    assert slope[-1] == roof[0]


def test_machines_are_compared_by_bytes_moved_and_for_the_head_by_flops():
    compared = {each.what.rpartition(": ")[2].partition(",")[0]: each for each in section(*operations()).compared}
    assert {what: each.unit for what, each in compared.items()} == {"SwiGLU": "GB/s", "head and loss": "TFLOP/s"}
    cell = Cell(op="linear_cross_entropy")
    assert compared["head and loss"].value == pytest.approx(flops(cell.op, "whole", cell.widths) / 0.1 / 1e9)
    assert compared["SwiGLU"].value == pytest.approx(6e8 / 0.1 / 1e6)


def test_ours_if_there_is_one_is_compared_with_the_fastest_other():
    found = shown(section(*operations(), *(row(impl, 0.3, "adamw") for impl in IMPLS if impl == "fused")))
    beside = found["times"].rows.groupby("op")["beside"].first()
    assert beside.str.partition("×")[0].to_dict() == {"swiglu": "2.00", "linear_cross_entropy": "2.00", "adamw": "–"}


def test_each_operation_and_vocabulary_is_one_line_whatever_its_outcomes():
    unread = {name: value for name, value in row("fused", 0.3).items() if not name.endswith("_ms")}
    outcomes = [row("liger", 0.3) | {"status": "unstable"}, unread | failed("skipped")]
    outcomes.append(row("ours", 1.0) | failed("wrong", median_ms=None))
    times = shown(section(row("eager", 0.4), row("compile", 0.2), *outcomes))["times"]
    _, _, line = [line for line in times.markdown().splitlines() if line.startswith("|")]
    assert [each in line for each in ("skipped", "wrong", "~0.300")] == [False, True, True]
    small, large = ({"op": "linear_cross_entropy", "vocab_size": size} for size in (10_000, 151_936))
    found = section(*(row(impl, 1.0, **each) for each in (small, large) for impl in ("ours", "eager")))
    assert shown(found)["times"].markdown().count("head and loss") == 2


def test_each_operation_is_shown_in_the_largest_model_where_it_was_measured():
    measured = [("swiglu", "small"), ("swiglu", "8B"), ("linear_cross_entropy", "small")]
    rows = [row(impl, 1.0, op, size=size) for op, size in measured for impl in ("ours", "eager")]
    table = shown(section(*rows))["times"].rows
    assert set(zip(table["op"], table["size"], strict=True)) == {*measured[1:]}
