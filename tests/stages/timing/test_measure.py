from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from pipeline.formulas import flops
from pipeline.formulas.sizes import SIZES
from pipeline.instruments.machine.power import Power
from pipeline.instruments.profilers.gpu_busy import GpuBusy
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.stages.timing import measure
from pipeline.stages.timing.cell import PHASES, Cell, Settings

from ...records import rows_read

CELL = Cell(size="tiny", context_length=16, batch_size=3, warmup_steps=2)
SETTINGS = Settings(vocab_size=300, steps=10, max_steps=10, budget_s=0.0)


@pytest.fixture(scope="module")
def measured():
    """Measure a tiny model on the CPU once: its rows by pass, and its training step."""
    built, build = [], measure.build_training_step

    def kept(*args, **kwargs):
        built.append(build(*args, **kwargs))
        return built[-1]

    torch.set_num_threads(1)  # as for each test, but a fixture of the module comes before that
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setattr(measure, "build_training_step", kept)
        rows = rows_read(measure.measure, CELL, SETTINGS, Stopwatch())
    (step,) = built
    return {row["phase"]: row for row in rows}, step


def test_every_pass_has_a_row_with_its_samples(measured):
    rows, _ = measured
    assert tuple(rows) == PHASES
    assert all(row["n"] == len(row["samples_ms"]) == 10 for row in rows.values())


def test_phases_are_warmed_up_and_whole_steps_find_them_warm(measured):
    _, step = measured
    in_phases, whole = CELL.warmup_steps + SETTINGS.steps, SETTINGS.steps
    assert {int(state["step"]) for state in step.optimizer.state.values()} == {in_phases + whole}


def test_rates_follow_from_tokens_flops_and_the_median(measured):
    rows, _ = measured
    forward_flops = flops.forward_flops(SIZES["tiny"], vocab_size=300, batch_size=3, seq_len=16)
    for name, forwards in {"forward": 1, "backward": 2, "train_step": 3}.items():
        row = rows[name]
        median_s = row["median_ms"] / 1e3
        assert row["tokens_per_s"] == pytest.approx(3 * 16 / median_s)
        assert row["model_tflops_per_s"] == pytest.approx(forwards * forward_flops / median_s / 1e12)
        assert row["mfu_pct"] == pytest.approx(100 * row["model_tflops_per_s"] / row["peak_tflops_per_s"])
    assert "tokens_per_s" not in rows["optimizer"]


def test_a_step_on_a_gpu_has_its_busy_time_energy_and_core_beside_its_wall_time(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(measure, "pinned", lambda _device: nullcontext(3))
    monkeypatch.setattr(measure, "profile_gpu_busy", lambda _step, _device: GpuBusy(1e-6, 9, 0.0, 1.0))
    time_phases = measure.time_phases
    monkeypatch.setattr(
        measure, "time_phases", lambda *args: replace(time_phases(*args), power=Power(energy_j=2.0, power_capped=True))
    )
    rows = {row["phase"]: row for row in rows_read(measure.measure, CELL, SETTINGS, Stopwatch())}
    step = rows["train_step"]
    assert (step["launches"], step["limited_by"], step["pinned_core"]) == (9, "host", 3)
    assert step["gpu_idle_pct"] == pytest.approx(100, abs=0.1)
    assert (step["energy_j"], step["tokens_per_j"]) == (2.0, 3 * 16 / 2.0)
    assert "gpu_busy_ms" not in rows["forward"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpu_is_busy_for_no_longer_than_its_step_takes():
    cell = Cell(size="small", precision="bf16")
    rows = rows_read(measure.measure, cell, Settings(budget_s=2.0), Stopwatch())
    keys = [{"phase": row["phase"], "clock": row["clock"]} for row in rows]
    assert all(key in keys for key in cell.row_keys())
    step = next(row for row in rows if (row["phase"], row["clock"]) == ("train_step", "host"))
    assert step["gpu_busy_ms"] <= 1.03 * step["median_ms"]
    assert step["pinned_core"] is not None
