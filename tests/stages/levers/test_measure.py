from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from pipeline.attention.triton import gpu
from pipeline.attention.triton.gpu import Gpu
from pipeline.errors import Skipped, UserError
from pipeline.formulas import flops
from pipeline.formulas.sizes import SIZES
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.stages.levers import measure
from pipeline.stages.levers.cell import LEVERS, Cell, Settings

from ...records import rows_read

CELL = Cell(size="tiny", context_length=16)
SETTINGS = Settings(batch_size=2, vocab_size=100, max_steps=10, budget_s=0.0, checked_steps=8)


@pytest.fixture
def measured(monkeypatch):
    """Measure a tiny model with some levers on the CPU: its row, as declared, and the steps that were built."""
    built, build = [], measure.build_training_step

    def kept(*args, **kwargs):
        built.append(build(*args, **kwargs))
        return built[-1]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(measure, "build_training_step", kept)

    def row(levers, settings=SETTINGS):
        cell = replace(CELL, levers=levers)
        (found,) = rows_read(measure.measure, cell, settings, Stopwatch())
        return found, built

    return row


def steps_of(step):
    return {int(state["step"]) for state in step.optimizer.state.values()}


def test_the_eager_step_is_its_own_baseline_and_its_rates_follow_from_its_median(measured):
    row, (step,) = measured("eager")
    assert (row["first_loss"], row["loss"]) == (row["eager_first_loss"], row["eager_loss"])
    assert row["tokens_per_s"] == pytest.approx(2 * 16 / row["median_ms"] * 1e3)
    step_flops = flops.train_step_flops(SIZES["tiny"], 100, 2, 16)
    assert row["model_tflops_per_s"] == pytest.approx(step_flops / row["median_ms"] / 1e9)
    assert steps_of(step) == {8 + row["n"]}


@pytest.mark.parametrize("levers", ["fused", "sdpa", "bf16_weights", "checkpointing", "fused+sdpa+bf16_weights"])
def test_levers_train_as_the_eager_model_does(measured, levers):
    row, (eager, step) = measured(levers)
    assert row["status"] in ("ok", "unstable")
    assert row["first_loss"] == pytest.approx(row["eager_first_loss"], rel=0.001)
    assert row["eager_first_loss"] - row["eager_loss"] > 0.01  # by step 8: enough to be held to
    assert (steps_of(eager), steps_of(step)) == ({8}, {8 + row["n"]})


def test_each_lever_is_the_one_that_is_built(measured, monkeypatch):
    asked = {}

    def build(_size, **options):
        asked.update(options)
        return SimpleNamespace(optimizer=SimpleNamespace(param_groups=[{"lr": 1.0}]))

    monkeypatch.setattr(measure, "build_training_step", build)
    for name in LEVERS:
        step = measure._build(replace(CELL, levers=name), SETTINGS, torch.device("cpu"))
        assert step.optimizer.param_groups == [{"lr": SETTINGS.learning_rate}]
        assert asked["fused_optimizer"] == (name == "fused")
        assert asked["attention"] == (name if name in ("flash", "sdpa") else "eager")
        assert asked["compiled"] == (name == "compile")
        assert asked["weights_dtype"] == (torch.bfloat16 if name == "bf16_weights" else torch.float32)
        assert asked["checkpoint_every"] == (1 if name == "checkpointing" else 0)


def test_a_lever_that_changes_the_loss_is_wrong_and_has_no_times(measured, monkeypatch):
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: None)  # it updates nothing
    right = {"eager_first_loss": 4.7, "eager_loss": 4.6}
    monkeypatch.setattr(measure, "_eager_losses", lambda *_: tuple(right.values()))
    row, _ = measured("fused", replace(SETTINGS, first_loss_tolerance=0.1))
    assert row["status"] == "wrong"
    assert row["reason"].endswith("in step 8, 4.6 of the eager model")
    assert {"loss", "eager_loss"} <= set(row)
    assert "median_ms" not in row


@pytest.mark.parametrize(
    ("losses", "wrong"),
    [
        ((9.01, 5.39), ""),
        ((8.99, 4.61), ""),
        ((9.05, 5.0), "loss 9.05 in step 1, 9 of the eager model"),
        ((9.0, 5.41), "loss 5.41 in step 8, 5 of the eager model"),
        ((9.0, 9.0), "loss 9 in step 8, 5 of the eager model"),
        ((9.0, float("nan")), "loss nan in step 8, 5 of the eager model"),
    ],
)
def test_the_last_loss_is_held_to_a_tenth_of_what_eagers_has_fallen_by(losses, wrong):
    assert measure._why_wrong(losses, (9.0, 5.0), replace(CELL, levers="fused"), SETTINGS) == wrong


def test_weights_in_bf16_are_held_to_the_first_loss_alone():
    assert measure._why_wrong((9.0, 9.0), (9.0, 5.0), replace(CELL, levers="bf16_weights"), SETTINGS) == ""
    assert measure._why_wrong((9.1, 9.0), (9.0, 5.0), replace(CELL, levers="fused+bf16_weights"), SETTINGS)


@pytest.mark.parametrize(("device", "least_s"), [("cuda", measure.ENERGY_S), ("cpu", 0.0)])
def test_a_gpu_takes_steps_enough_to_read_their_energy(device, least_s):
    assert measure._rule(Settings(), torch.device(device)).least_s == least_s


@pytest.mark.parametrize(
    ("levers", "reason"), [("flash", "flash attention needs a CUDA GPU"), ("fused+graph", "CUDA graphs need a GPU")]
)
def test_what_a_cpu_lacks_is_skipped(measured, levers, reason):
    with pytest.raises(Skipped, match=reason):
        measured(levers)


def test_a_gpu_too_old_for_flash_attention_is_a_reason_too(monkeypatch):
    too_old = Gpu("Tesla V100", "nvidia", (7, 0), 80, 96 * 1024)
    monkeypatch.setattr(gpu, "gpu_of", lambda _device: too_old)
    with pytest.raises(Skipped, match="Tesla V100 has compute capability 7"):
        measure._require(replace(CELL, levers="flash"), torch.device("cuda", 0))


def test_without_a_compiler_compiling_is_skipped(measured, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Skipped, match=r"torch.compile needs a C\+\+ compiler"):
        measured("compile")


@pytest.mark.parametrize("levers", ["fast", "flash+fused", "fused+fused", "flash+sdpa", "eager+fused", ""])
def test_unknown_levers_are_refused_in_one_line(levers):
    with pytest.raises(UserError, match=r"^levers must be eager or, joined by \+ in this order, fused, "):
        Cell(levers=levers)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("levers", ["flash", "fused+sdpa+graph", "fused+sdpa+compile+graph+bf16_weights+checkpointing"])
def test_a_gpu_s_levers_train_as_the_eager_model_does(levers):
    (row,) = measure.measure(Cell("small", 256, levers), Settings(budget_s=0.5), Stopwatch())
    assert row["status"] in ("ok", "unstable"), row
    assert row["gpu_busy_ms"] <= 1.03 * row["median_ms"]
