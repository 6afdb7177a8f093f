import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pipeline.formulas.operations import BACKWARD, FORWARD, WHOLE, moved_bytes, product_flops
from pipeline.model import operations
from pipeline.model.fused.operations import in_torch
from pipeline.model.operation_problems import Problem, as_tuple
from pipeline.stages.ops import implementations
from pipeline.stages.ops import measure as measuring
from pipeline.stages.ops.cell import ADAMW, IMPLS, PHASES, Cell, Settings
from pipeline.subjects.naming import OPERATIONS, Subject

from ...records import derived, rows_read

CELL = Cell(op="rms_norm", dtype="fp32", size="tiny", batch_size=2, context_length=16, vocab_size=70)
QUICK = Settings(min_samples=3, max_samples=3, budget_s=5.0, compiled=False, check_timeout_s=60, timeout_s=120)
OWN = Path(__file__).parents[2] / "subjects/outside/operations.py"


@pytest.fixture(autouse=True)
def known_bandwidth(monkeypatch):
    """Skip measuring the memory bandwidth, which copies hundreds of megabytes."""
    monkeypatch.setattr(measuring, "bandwidth_to_measure", lambda _device: 10.0)


@pytest.fixture
def measured(monkeypatch):
    """Return a function that measures a cell on the CPU, with other functions in place of ours or a peer's."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    build = implementations.build

    def run(op, settings=QUICK, cell=CELL, **replaced):
        def built(name, *arguments):
            return replaced[name] if name in replaced else build(name, *arguments)

        monkeypatch.setattr(implementations, "build", built)
        rows = rows_read(measuring.measure, dataclasses.replace(cell, op=op), settings)
        return {(row["impl"], row["phase"]): row for row in rows}

    return run


@pytest.mark.parametrize("op", [op for op in OPERATIONS if op != ADAMW])
def test_every_phase_has_a_time_rates_and_errors(measured, op):
    rows = measured(op, ours=implementations.ours(op, in_torch()))
    for impl in ("ours", "eager"):
        for phase in PHASES:
            row = rows[impl, phase]
            assert row["n"] == 3
            assert row["moved_bytes"] == moved_bytes(op, phase, CELL.widths, 4)
            assert row["gb_per_s"] == pytest.approx(row["moved_bytes"] / row["median_ms"] / 1e6)
            assert row["floor_share_pct"] == pytest.approx(100 * row["floor_ms"] / row["median_ms"])
            assert row["floor_ms"] >= row["moved_bytes"] / row["bandwidth_gb_per_s"] / 1e6 * 0.999
            assert ("tflops_per_s" in row) == (product_flops(op, phase, CELL.widths) > 0)
        assert 0 < rows[impl, FORWARD]["output_rel_error"] < 1e-5
        assert 0 < rows[impl, BACKWARD]["gradient_rel_error"] < 1e-5
        assert "gradient_rel_error" not in rows[impl, FORWARD]


def test_adamw_has_one_phase_and_unavailable_implementations_are_skipped_with_a_reason(measured):
    rows = measured(ADAMW)
    assert set(rows) == {(impl, WHOLE) for impl in ("eager", "compile", "fused")}
    assert all(rows[impl, WHOLE]["output_rel_error"] < 1e-4 for impl in ("eager", "fused"))
    rows = measured("swiglu")
    assert {impl for impl, _ in rows} == {*IMPLS} - {"fused"}
    assert {rows[impl, WHOLE]["status"] for impl in ("ours", "liger", "compile")} == {"skipped"}
    assert rows["compile", WHOLE]["reason"] == "the setting compiled is false"
    assert all("GPU" in rows[impl, WHOLE]["reason"] for impl in ("liger", "ours"))


def test_liger_is_called_with_its_own_arguments(monkeypatch):
    functions = SimpleNamespace(
        liger_fused_add_rms_norm=operations.rms_norm,
        liger_swiglu=operations.swiglu,
        liger_rope=lambda q, k, cos, sin: operations.rotary(q, k, *(each[0].chunk(2, -1)[1] for each in (cos, sin))),
        liger_fused_linear_cross_entropy=lambda *args, ignore_index: operations.linear_cross_entropy(
            *args, ignore_index
        ),
    )
    monkeypatch.setattr(implementations, "load", lambda _name, _module: functions)
    for op in (op for op in OPERATIONS if op != ADAMW):
        problem = Problem(op, CELL.widths, torch.float32, torch.device("cpu"))
        problem.draw(0)
        outputs = implementations.build("liger", op, QUICK, torch.device("cuda"))(*problem.inputs, *problem.constants)
        assert problem.output_errors(as_tuple(outputs)).rel < 1e-5


def test_wrong_results_and_raising_peers_cost_only_their_rows_and_our_errors_propagate(measured):
    def raises(*_arguments):
        raise RuntimeError("an assertion of the compiler")

    def wrong(x, residual, weight, _eps):
        return operations.rms_norm(x, residual, weight, 0.1)

    rows = measured("rms_norm", ours=wrong, liger=raises)
    assert {rows["ours", phase]["status"] for phase in PHASES} == {"wrong"}
    assert rows["ours", WHOLE]["reason"].startswith("output has a relative error of ")
    assert "median_ms" not in rows["ours", WHOLE]
    assert rows["liger", WHOLE]["reason"] == "liger-kernel raises RuntimeError: an assertion of the compiler"
    assert rows["eager", WHOLE]["n"] == 3
    with pytest.raises(RuntimeError, match="assertion of the compiler"):
        measured("swiglu", ours=raises)


def test_overwritten_inputs_are_restored_before_each_call(measured):
    seen = set()

    def in_place(gate, up):
        def write(gradient):
            gate.data.copy_(gradient)

        seen.add((gate.sum().item(), up.sum().item()))
        gate.register_hook(write)
        return operations.swiglu(gate, up)

    rows = measured("swiglu", ours=in_place)
    for impl in ("ours", "eager"):
        assert rows[impl, WHOLE]["n"] == 3
        assert rows[impl, BACKWARD]["gradient_rel_error"] < 1e-6
    assert len(seen) == 2  # one set of inputs for the calls up to the timing, another for those after it


def test_the_floor_of_the_head_is_that_of_its_matrix_products():
    cell = Cell(op="linear_cross_entropy", size="8B", batch_size=1, context_length=16384, vocab_size=151_936)
    row = {"impl": "ours", "phase": WHOLE, "status": "ok", "clock": "device", "first_call_ms": 1.0}
    row |= {"exposed_samples": 0, "samples_ms": [90.0, 90.0, 90.0]}
    (read,) = derived(cell, Settings(), [row], {"gpus": [{"name": "NVIDIA H200"}]})
    assert read["floor_ms"] == pytest.approx(6 * 16384 * 4096 * 151_936 / 989.4e9)
    assert read["floor_share_pct"] == pytest.approx(100 * read["floor_ms"] / 90)
    assert (read["bandwidth_source"], read["peak_source"]) == ("datasheet", "datasheet")


def test_the_users_operations_are_checked_then_timed_in_cells_of_their_operation():
    assert [op for op in OPERATIONS if dataclasses.replace(CELL, op=op).takes("swiglu_v2")] == ["swiglu"]
    places = {"rms_norm": "norm", "rms_norm_bad": "norm_without_eps"}
    subjects = [Subject("op", name, f"{OWN}:{place}") for name, place in places.items()]
    rows = rows_read(measuring.measure, CELL, QUICK, subjects)
    by_name = {name: [row for row in rows if row["impl"] == name] for name in (*places, "eager")}
    assert [len(group) for group in by_name.values()] == [len(PHASES)] * 3
    assert all("median_ms" in row for row in by_name["rms_norm"] + by_name["eager"])
    assert {row["status"] for row in by_name["rms_norm_bad"]} == {"wrong"}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("op", OPERATIONS)
def test_on_a_gpu_every_installed_implementation_is_right(op, dtype):
    cell = dataclasses.replace(CELL, op=op, dtype=dtype, size="small", context_length=256, vocab_size=1000)
    for row in rows_read(measuring.measure, cell, dataclasses.replace(QUICK, compiled=True)):
        if row["status"] == "skipped":
            assert "is not installed" in row["reason"], row
            continue
        assert row["status"] in ("ok", "unstable"), row
        assert row["clock"] == "device"
