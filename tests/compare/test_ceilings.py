import pytest

from pipeline.cells.samples import summarise
from pipeline.compare.ceilings import ceilings_of_both, ceilings_table
from pipeline.compare.judge import compare_runs
from pipeline.compare.text import write_comparison
from pipeline.registry import stages

from ..records import record
from .test_judge import MACHINE


def product(dtype, side, tflops_per_s):
    row = {"dtype": dtype, "side": side, "status": "ok", "tflops_per_s": tflops_per_s}
    return {**row, **summarise([1.0, 1.0, 1.0]), "samples_ms": [1.0, 1.0, 1.0]}


def run(*rows, machine="NVIDIA H200"):
    cell = {"what": "matmul"}
    return [record(stage="ceilings", cell=cell, settings={}, rows=list(rows), machine=MACHINE | {"kind": machine})]


@pytest.fixture
def both():
    a = run(product("bf16", 4096, 700.0), product("bf16", 8192, 800.0), product("fp8", 8192, 1500.0))
    return a, run(product("bf16", 4096, 250.0), product("bf16", 8192, 200.0), machine="NVIDIA A100")


def test_the_best_of_each_run_stand_beside_each_other_whatever_their_size(both):
    found = ceilings_of_both(*both, stages())
    assert found.loc[found["ceiling"] == "bf16 product", ["rate_a", "rate_b"]].to_numpy().tolist() == [[800, 250]]


def test_what_one_machine_lacks_has_a_dash(both):
    table = ceilings_table(ceilings_of_both(*both, stages()), ("NVIDIA H200", "NVIDIA A100"))
    [fp8] = [line for line in table.splitlines() if "fp8" in line]
    assert [cell.strip() for cell in fp8.split("|")[1:-1]] == ["fp8 product", "1,500 TFLOP/s", "–", "–"]
    [bf16] = [line for line in table.splitlines() if "bf16" in line]
    assert "0.312×" in bf16


def test_without_ceilings_in_one_run_there_is_no_table(both):
    assert ceilings_of_both(both[0], [], stages()).empty
    assert ceilings_table(ceilings_of_both([], both[1], stages()), ("A", "B")) == ""


def test_the_table_comes_before_what_differs(both):
    text = write_comparison(compare_runs(*both, stages(), tolerance=0.05), "one", "other")
    assert text.index("800 TFLOP/s") < text.index("### What differs")
