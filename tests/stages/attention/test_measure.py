import math
from dataclasses import replace

import psutil
import pytest
import torch

from pipeline.attention.eager import eager_attention
from pipeline.formulas import attention
from pipeline.formulas.attention import Shape
from pipeline.stages.attention import measure
from pipeline.stages.attention.cell import MODES, PHASES, Cell, Settings

from ...records import rows_read

CELL = Cell(head_dim=16, seq_len=32)
QUICK = Settings(batch_size=2, passes=10, warmup_passes=1)


@pytest.fixture
def measured(monkeypatch):
    """Measure the cell with the test's functions in place of the eager and the compiled one."""

    def run(eager=eager_attention, compiled=eager_attention, settings=QUICK):
        def compile_like(_function, **_options):
            return lambda q, k, v: compiled(q, k, v, is_causal=False)

        monkeypatch.setattr(measure, "ATTENTION", {"eager": eager})
        monkeypatch.setattr(torch, "compile", compile_like)
        rows = rows_read(measure.measure, CELL, settings)
        return {(row["mode"], row["phase"]): row for row in rows if row["clock"] == "host"}

    return run


class RunsOut:
    """Eager attention that runs out of memory from its n-th call on, or in its backward passes."""

    def __init__(self, forward_at=math.inf, backward=False):
        self.forwards, self.forward_at, self.backward = 0, forward_at, backward

    def __call__(self, q, k, v, is_causal):
        self.forwards += 1
        if self.forwards >= self.forward_at:
            self._fail()
        output = eager_attention(q, k, v, is_causal)
        if self.backward:
            output.register_hook(self._fail)
        return output

    def _fail(self, _gradient=None):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 16.00 GiB.")


def test_each_phase_is_warmed_up_and_saved_bytes_match_the_formula(measured):
    less, more = RunsOut(), RunsOut()  # neither runs out of memory: they count calls
    measured(eager=less)
    rows = measured(eager=more, settings=replace(QUICK, warmup_passes=QUICK.warmup_passes + 3))
    assert more.forwards - less.forwards == 3 * len(PHASES)
    assert set(rows) == {(mode, phase) for mode in MODES for phase in PHASES}
    for row in rows.values():
        assert row["n"] == 10 == len(row["samples_ms"])
        assert row["saved_bytes"] == row["model_saved_bytes"] == attention.saved_bytes(Shape(2, 1, 32, 16, False), 4)
    if not torch.cuda.is_available():
        assert {row["memory_bytes"] for row in rows.values()} == {psutil.virtual_memory().total}


@pytest.mark.parametrize("failing", MODES)
@pytest.mark.parametrize("forward_at", [1, 8])
def test_if_one_mode_runs_out_of_memory_the_other_is_still_measured(measured, failing, forward_at):
    rows = measured(**{failing: RunsOut(forward_at=forward_at)})
    (other,) = set(MODES) - {failing}
    assert {rows[failing, phase]["status"] for phase in PHASES} == {"oom"}
    assert all(rows[other, phase]["n"] == 10 for phase in PHASES)


def test_a_failed_compile_or_backward_pass_leaves_the_rest_measured(measured, monkeypatch):
    rows = measured(eager=RunsOut(backward=True))
    assert rows["eager", "backward"]["status"] == "oom"
    assert rows["eager", "forward"]["n"] == 10
    assert rows["eager", "forward"]["saved_bytes"] > 0
    monkeypatch.setattr("shutil.which", lambda _name: None)
    rows = measured()
    assert {rows["compiled", phase]["status"] for phase in PHASES} == {"skipped"}
    assert "compiler" in rows["compiled", "forward"]["reason"]
    assert rows["eager", "backward"]["n"] == 10


@pytest.mark.gpu
def test_the_allocator_agrees_with_the_formulas_on_a_gpu():
    rows = rows_read(measure.measure, Cell(head_dim=64, seq_len=2048), Settings(passes=10))
    eager = next(row for row in rows if (row["mode"], row["phase"], row["clock"]) == ("eager", "backward", "host"))
    for name in ("before_backward_bytes", "peak_bytes"):
        assert eager[name] - eager["workspace_bytes"] == pytest.approx(eager[f"model_{name}"], rel=0.01)
    assert {row["clock"] for row in rows} == {"host", "cuda_events"}


@pytest.mark.gpu
def test_memory_is_freed_after_running_out_on_a_gpu():
    rows = rows_read(measure.measure, Cell(head_dim=16, seq_len=262144), Settings(passes=10))
    assert {row["status"] for row in rows} == {"oom"}
    assert torch.cuda.memory_reserved() < 2e9
