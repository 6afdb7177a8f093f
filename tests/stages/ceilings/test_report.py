import pandas as pd
import pytest

from pipeline.stages.ceilings.cell import DTYPES, KINDS
from pipeline.stages.ceilings.report import build, products

ALL = ("NVIDIA H200", "AMD EPYC")


def parts(rows):
    return {part.name: part for part in build(rows, {}).parts if not part.is_empty}


def headers(table):
    return [name for _, name, _ in table.columns]


def of(rows, dtype, side):
    return (rows["dtype"] == dtype) & (rows["side"] == side)


@pytest.mark.parametrize("name", ALL)
def test_all_is_told_in_a_chart_and_a_table_that_has_every_row(make_rows, name):
    found = parts(make_rows(name))
    assert list(found) == ["rates", "ceilings"]
    assert "more rows" not in found["ceilings"].markdown()


def test_a_gpu_is_beside_its_data_sheet(make_rows):
    found = parts(make_rows("NVIDIA H200"))
    bf16 = found["ceilings"].rows.iloc[0]
    assert bf16["share_pct"] == pytest.approx(100 * bf16["tflops_per_s"] / 989.4)
    assert sorted(limit.value for limit in found["rates"].limits) == [66.9, 494.7, 989.4, 1978.9]


def test_a_cpu_has_no_columns_of_what_only_a_gpu_has(make_rows):
    found = parts(make_rows("AMD EPYC"))
    assert {*headers(found["ceilings"])}.isdisjoint({"promised", "share_pct", "mean_sm_clock_mhz"})
    assert found["rates"].limits == []


def test_the_fastest_product_of_a_data_type_may_be_of_any_side(make_rows):
    rows = make_rows("NVIDIA H200")
    rows.loc[of(rows, "bf16", 4096), "tflops_per_s"] = 900.0
    best = products(rows)
    assert list(best["dtype"]) == list(DTYPES)
    assert (best["side"][0], best["tflops_per_s"][0]) == (4096, 900.0)
    assert "900 TFLOP/s" in build(rows, {}).answer


def test_what_the_machine_lacks_is_left_out_and_what_failed_is_not(make_rows):
    rows = make_rows("NVIDIA H200")
    assert "to_peer" not in set(parts(rows)["ceilings"].rows["kind"])
    failed = pd.DataFrame([{"what": "peer_link", "kind": "to_peer", "status": "failed", "reason": "killed"}])
    table = parts(pd.concat([rows, failed], ignore_index=True))["ceilings"]
    [line] = [line for line in table.markdown().splitlines() if line.startswith("| GPU to GPU")]
    assert "failed" in line


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("what", ["matmul", "memory", "launches"])
def test_a_cell_alone_is_told(make_rows, name, what):
    alone = make_rows(name, what)
    assert build(alone, {}).answer
    assert list(parts(alone)) == (["rates", "ceilings"] if what == "matmul" else ["ceilings"])


def test_every_kind_has_its_words(make_rows):
    told = set(parts(make_rows("NVIDIA H200"))["ceilings"].rows["kind"].dropna()) | {"to_peer"}
    assert told == {kind for kinds in KINDS.values() for kind in kinds}


def test_machines_are_compared_by_the_rates_that_were_measured(make_rows):
    rates = {(each.what, each.unit): each.value for each in build(make_rows("NVIDIA H200"), {}).compared}
    assert rates["bf16 matmul", "TFLOP/s"] == pytest.approx(0.75 * 989.4, rel=0.02)
    assert rates["copy in memory", "GB/s"] == pytest.approx(4100, rel=0.02)
    assert [each.unit for each in build(make_rows("AMD EPYC", "matmul"), {}).compared] == ["TFLOP/s"] * 2
