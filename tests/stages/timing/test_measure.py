from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipeline.errors import Skipped
from pipeline.formulas import flops
from pipeline.formulas.sizes import SIZES
from pipeline.instruments.machine.power import Power
from pipeline.instruments.profilers.gpu_busy import GpuBusy
from pipeline.stages.timing import measure
from pipeline.stages.timing.cell import COMPILED, EAGER, PHASES, Cell, Settings
from pipeline.stages.timing.needs import COMPILING_S, expected_s, needed_bytes
from pipeline.subjects.naming import Subject

from ...records import rows_read

MODELS = Path(__file__).parents[2] / "subjects/outside/models.py"
CELL = Cell(size="tiny", context_length=16, batch_size=3)
SETTINGS = Settings(vocab_size=300, steps=10, max_steps=10, budget_s=0.0)
STEPS = 2 * SETTINGS.steps + CELL.warmup_steps  # per mode: by phase, whole, and to warm up


class Watch:
    """Fake compiling, pinning and profiling on the CPU, and record their order."""

    def __init__(self, monkeypatch):
        self.seen = []
        time_phases, power = measure.time_phases, Power(energy_j=2.0, power_capped=True)
        build = measure.build_training_step
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.nn.Module, "compile", lambda module: self.seen.append(module))
        monkeypatch.setattr(measure, "pinned", self._pinned)
        monkeypatch.setattr(measure, "profile_gpu_busy", self._profile)
        monkeypatch.setattr(measure, "require_compiler", lambda: None)
        monkeypatch.setattr(measure, "time_phases", lambda *args: replace(time_phases(*args), power=power))
        monkeypatch.setattr(measure, "build_training_step", lambda *args, **how: self._keep(build(*args, **how)))

    def _keep(self, step):
        self.step = step
        return step

    @contextmanager
    def _pinned(self, _device):
        self.seen.append("pinned")
        yield 3

    def _profile(self, _step, _device):
        self.seen.append(torch._dynamo.eval_frame._stance.stance)
        return GpuBusy(1e-6, 9, 0.0, 1.0)

    def rows(self, cell=CELL, settings=SETTINGS):
        rows = rows_read(measure.measure, cell, settings)
        return {(row["mode"], row["phase"]): row for row in rows}


@pytest.fixture
def watch(monkeypatch):
    return Watch(monkeypatch)


@pytest.mark.parametrize("context_length", [0, CELL.context_length])
def test_eager_is_timed_before_the_model_is_compiled_and_profiles_come_last(watch, context_length):
    rows = watch.rows(settings=replace(SETTINGS, compiled_context_length=context_length))
    assert set(rows) == {(key["mode"], key["phase"]) for key in CELL.row_keys()}
    assert watch.seen == ["pinned", *watch.step.model.layers, "pinned", "force_eager", "default"]
    assert {int(state["step"]) for state in watch.step.optimizer.state.values()} == {2 * STEPS + 1}
    assert all(row["n"] == (1 if phase == "compile" else 10) for (_, phase), row in rows.items())


@pytest.mark.parametrize(
    ("axes", "settings"),
    [({"warmup_steps": 2}, {}), ({}, {"compiled": False}), ({}, {"compiled_context_length": CELL.context_length + 1})],
)
def test_with_few_warm_up_steps_or_without_compiling_only_eager_steps_are_timed(watch, axes, settings):
    cell = replace(CELL, **axes)
    assert set(watch.rows(cell, replace(SETTINGS, **settings))) == {(EAGER, phase) for phase in PHASES}
    assert {int(state["step"]) for state in watch.step.optimizer.state.values()} == {20 + cell.warmup_steps}


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (Skipped("no compiler"), "skipped", "no compiler"),
        (RuntimeError("cannot lower\nmore"), "failed", "RuntimeError: cannot lower"),
        (torch.OutOfMemoryError("CUDA out of memory"), "oom", "OutOfMemoryError: CUDA out of memory"),
    ],
)
def test_a_failed_compile_costs_only_its_own_rows(watch, monkeypatch, error, status, reason):
    def fails():
        raise error

    monkeypatch.setattr(measure, "require_compiler", fails)
    rows = watch.rows()
    assert {(row["status"], row["reason"]) for (mode, _), row in rows.items() if mode == COMPILED} == {(status, reason)}
    assert rows[EAGER, "train_step"]["launches"] == 9


def test_rates_follow_from_the_median_time_and_whole_steps_have_gpu_activity(watch):
    rows = watch.rows()
    forward_flops = flops.forward_flops(SIZES["tiny"], vocab_size=300, batch_size=3, seq_len=16)
    for name, forwards in {"forward": 1, "backward": 2, "train_step": 3}.items():
        row = rows[COMPILED, name]
        median_s = row["median_ms"] / 1e3
        assert row["tokens_per_s"] == pytest.approx(3 * 16 / median_s)
        assert row["model_tflops_per_s"] == pytest.approx(forwards * forward_flops / median_s / 1e12)
        assert row["mfu_pct"] == pytest.approx(100 * row["model_tflops_per_s"] / row["peak_tflops_per_s"])
    assert "tokens_per_s" not in rows[EAGER, "optimizer"]
    assert "tokens" not in rows[COMPILED, "compile"]
    for mode in CELL.modes():  # what a GPU would add to the wall time
        step = rows[mode, "train_step"]
        told = {"launches": 9, "limited_by": "host", "pinned_core": 3, "energy_j": 2.0, "tokens_per_j": 3 * 16 / 2.0}
        assert told.items() <= step.items()
        assert step["gpu_idle_pct"] == pytest.approx(100, abs=0.1)
        assert "gpu_busy_ms" not in rows[mode, "forward"]


def test_expected_time_includes_compiling_and_both_modes_and_tf32_needs_a_gpu(watch):
    compiled, eager = (expected_s(CELL, replace(SETTINGS, compiled=each, budget_s=3.0), True) for each in (True, False))
    assert compiled - eager == pytest.approx(COMPILING_S + eager - 2)
    tf32 = replace(CELL, precision="tf32")
    assert expected_s(tf32, SETTINGS, on_gpu=False) < 1
    with pytest.raises(Skipped, match="tf32 needs a GPU"):
        watch.rows(tf32)
    one, two = (needed_bytes(replace(CELL, batch_size=batch), SETTINGS) for batch in (1, 2))
    assert 0 < one < two


@pytest.mark.slow
def test_compiling_our_model_works_and_its_first_step_takes_longest(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    rows = rows_read(measure.measure, CELL, SETTINGS)
    compiled = {row["phase"]: row for row in rows if row["mode"] == COMPILED}
    assert compiled["compile"]["status"] == "ok"
    assert compiled["compile"]["median_ms"] > 10 * compiled["train_step"]["median_ms"]


@pytest.mark.slow
def test_the_users_models_have_the_same_rows_as_ours():
    settings = Settings(vocab_size=50, compiled=False, max_steps=10, budget_s=0.1)
    models = {"mine": "Decoder", "odd": "SeesTheFuture"}
    subjects = [Subject("model", name, f"{MODELS}:{model}") for name, model in models.items()]
    rows = rows_read(measure.measure, Cell(size="tiny", context_length=16), settings, subjects)
    by_impl = {impl: [row for row in rows if row.get("impl") == impl] for impl in (None, *models)}
    phases = [[row["phase"] for row in own] for own in by_impl.values()]
    assert phases == [[*PHASES]] * 3
    assert all("median_ms" in row for row in by_impl["mine"])
    assert {row["status"] for row in by_impl["odd"]} == {"wrong"}
    assert by_impl["odd"][0]["reason"].startswith("logits of the first 12 tokens change by ")


@pytest.mark.gpu
def test_a_gpu_is_busy_no_longer_than_its_step_and_compiling_saves_launches():
    cell = Cell(size="small", precision="bf16")
    rows = rows_read(measure.measure, cell, Settings(budget_s=2.0))
    by_key = {(row["mode"], row["phase"], row["clock"]): row for row in rows}
    assert all(tuple(key.values()) in by_key for key in cell.row_keys())
    steps = [by_key[mode, "train_step", "host"] for mode in cell.modes()]
    for step in steps:
        assert step["gpu_busy_ms"] <= 1.03 * step["median_ms"]
        assert step["pinned_core"] is not None
    assert steps[1]["launches"] < steps[0]["launches"]
