import pandas as pd
import pytest

from pipeline.stages.ceilings.cell import DTYPES, KINDS
from pipeline.stages.ceilings.report import build, products

from ..published import sound

RUNS = ("h200", "laptop")


def parts(rows):
    return {part.name: part for part in build(rows, {}).parts if not part.is_empty}


def test_a_gpu_shows_every_kind_and_its_data_sheet_and_a_cpu_no_gpu_columns():
    h200, cpu = (parts(sound("ceilings", run)) for run in RUNS)
    for found in (h200, cpu):
        assert list(found) == ["rates", "ceilings"]
        assert "left out" not in found["ceilings"].markdown()
    kinds_shown = set(h200["ceilings"].rows["kind"].dropna()) | {"to_peer"}
    assert kinds_shown == {kind for kinds in KINDS.values() for kind in kinds}
    bf16 = h200["ceilings"].rows.iloc[0]
    assert bf16["share_pct"] == pytest.approx(100 * bf16["tflops_per_s"] / 989.4)
    assert sorted(limit.value for limit in h200["rates"].limits) == [66.9, 494.7, 989.4, 1978.9]
    heads = {name for _, name, _ in cpu["ceilings"].columns}
    assert heads.isdisjoint({"promised", "share_pct", "mean_sm_clock_mhz"})
    assert cpu["rates"].limits == []


def test_the_fastest_product_of_a_dtype_may_have_any_side():
    rows = sound("ceilings")
    rows.loc[(rows["dtype"] == "bf16") & (rows["side"] == 4096), "tflops_per_s"] = 900.0
    best = products(rows)
    assert list(best["dtype"]) == list(DTYPES)
    assert (best["side"][0], best["tflops_per_s"][0]) == (4096, 900.0)
    assert "900 TFLOP/s" in build(rows, {}).answer


@pytest.mark.parametrize(("status", "is_shown"), [("skipped", False), ("failed", True)])
def test_skipped_ceilings_are_left_out_and_failed_ones_are_shown(status, is_shown):
    rows = sound("ceilings")
    outcome = pd.DataFrame([{"what": "peer_link", "kind": "to_peer", "status": status, "reason": "killed"}])
    table = parts(pd.concat([rows[rows["kind"] != "to_peer"], outcome], ignore_index=True))["ceilings"]
    lines = [line for line in table.markdown().splitlines() if line.startswith("| GPU to GPU")]
    assert [status in line for line in lines] == [True] * is_shown


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("what", ["matmul", "memory", "launches"])
def test_a_single_cell_has_an_answer_and_its_parts(run, what):
    alone = sound("ceilings", run)[lambda rows: rows["what"] == what]
    assert build(alone, {}).answer
    assert list(parts(alone)) == (["rates", "ceilings"] if what == "matmul" else ["ceilings"])


def test_machines_are_compared_by_measured_rates():
    rows = sound("ceilings")
    rates = {(each.what, each.unit): each.value for each in build(rows, {}).compared}
    assert rates["bf16 matmul", "TFLOP/s"] == rows.loc[rows["dtype"] == "bf16", "tflops_per_s"].max()
    assert rates["copy in memory", "GB/s"] == rows.loc[rows["kind"] == "copy", "gb_per_s"].item()
    cpu = build(sound("ceilings", "laptop")[lambda rows: rows["what"] == "matmul"], {})
    assert [each.unit for each in cpu.compared] == ["TFLOP/s"] * 2
