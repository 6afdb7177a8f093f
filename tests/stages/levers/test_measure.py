from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from pipeline.errors import Skipped, UserError
from pipeline.formulas import flops
from pipeline.formulas.sizes import SIZES
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.model import float8
from pipeline.parallel.processes.starting import RankContext
from pipeline.stages.levers import measure
from pipeline.stages.levers.cell import LEVERS, OF_ALL, OF_FEWER_BITS, Cell, Settings
from pipeline.stages.levers.needs import expected_s

from ...records import CPU, derived, rows_read

CELL = Cell(size="tiny", context_length=16)
SETTINGS = Settings(batch_size=2, vocab_size=100, max_steps=10, budget_s=0.0, checked_steps=8)


@pytest.fixture
def measured(monkeypatch):
    """Measure a turn of a tiny model on the CPU, in this process; return its row, as declared, and the step built."""
    built, build = [], measure.build_training_step

    def kept(*args, **kwargs):
        built.append(build(*args, **kwargs))
        return built[-1]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(measure, "build_training_step", kept)

    def row(levers, settings=SETTINGS, eager=None, cell=CELL):
        context = RankContext(0, 1, "gloo", torch.device("cpu"), 0.0)
        found = {"levers": levers, **measure.measure_turn(context, levers, cell, settings, eager)}
        (read,) = derived(cell, settings, [found])
        return read, built[-1]

    return row


def steps_of(step):
    return {int(state["step"]) for state in step.optimizer.state.values() if "step" in state}  # Muon counts none


def test_rates_follow_from_the_median_and_the_requested_steps_are_run(measured):
    row, step = measured("eager")
    assert row["tokens_per_s"] == pytest.approx(2 * 16 / row["median_ms"] * 1e3)
    step_flops = flops.train_step_flops(SIZES["tiny"], 100, 2, 16)
    assert row["model_tflops_per_s"] == pytest.approx(step_flops / row["median_ms"] / 1e9)
    assert steps_of(step) == {8 + row["n"]}
    # On a GPU, enough steps are run to read their energy.
    rules = [measure._rule(Settings(), torch.device(device)).least_s for device in ("cuda", "cpu")]
    assert rules == [measure.ENERGY_S, 0.0]


def test_levers_train_like_the_eager_model(measured):
    eager, _ = measured("eager")
    assert eager["first_loss"] - eager["loss"] > 0.01  # by step 8: enough to compare with
    alone = ("fused", "muon", "sdpa", "blocks", "bf16_moments", "checkpointing")
    for levers in (*alone, "fused+muon", "sdpa+blocks+bf16_weights", "fused+sdpa+bf16_weights"):
        row, step = measured(levers, eager=(eager["first_loss"], eager["loss"]))
        assert row["status"] in ("ok", "unstable"), row
        assert row["first_loss"] == pytest.approx(eager["first_loss"], rel=0.001), levers
        if levers != "bf16_moments":  # which has one step count for all parameters
            assert steps_of(step) == {8 + row["n"]}, levers


def test_in_fp32_levers_match_the_eager_model_to_rounding(measured):
    cell = replace(CELL, precision="fp32")
    eager, step = measured("eager", cell=cell)
    assert step.precision == "fp32"
    # Products in bf16 would be off by a thousand times as much.
    for levers in ("fused", "sdpa", "blocks", "bf16_moments", "checkpointing"):
        row, _ = measured(levers, eager=(eager["first_loss"], eager["loss"]), cell=cell)
        assert row["first_loss"] == pytest.approx(eager["first_loss"], rel=1e-6), levers
    assert measured("eager")[0]["first_loss"] != pytest.approx(eager["first_loss"], rel=1e-6)


@pytest.mark.parametrize(("precision", "peak"), [("fp32", 66.9), ("bf16", 989.4)])
def test_mfu_uses_the_peak_in_the_precision_of_the_step(monkeypatch, precision, peak):
    asked = []
    monkeypatch.setattr(measure, "peak_to_measure", lambda _device, name: asked.append(name) or 1.0)
    cell, h200 = replace(CELL, precision=precision), CPU | {"gpus": [{"name": "NVIDIA H200", "memory_bytes": 1}]}
    found = measure._timed_columns(lambda: torch.zeros(()), cell, SETTINGS, torch.device("cpu"))
    assert asked == [precision]
    losses = {"first_loss": 4.7, "loss": 4.6, "first_step_ms": 9.0, "measured_peak_tflops_per_s": None}
    (row,) = derived(cell, SETTINGS, [{"levers": "eager", **found, **losses}], h200)
    assert row["peak_tflops_per_s"] == peak
    assert row["mfu_pct"] == pytest.approx(100 * row["model_tflops_per_s"] / peak)


@pytest.fixture
def rows_of_turns(monkeypatch):
    """Measure a cell whose turns return or raise what a function of the levers and the eager losses does."""

    def rows(turn, combinations="sdpa"):
        monkeypatch.setattr(measure, "run_ranks", lambda *_, args, **_options: [turn(args[0], args[-1])])
        return measure.measure(replace(CELL, combinations=combinations), SETTINGS, Stopwatch())

    return rows


def test_a_failed_lever_loses_only_its_row_but_a_failed_eager_step_or_a_bug_ends_the_cell(rows_of_turns):
    def rows_where(failing, error, combinations="sdpa"):
        def turn(levers, _eager):
            if levers == failing:
                raise error
            return {"status": "wrong", "reason": "no time", "first_loss": None, "loss": 4.6}

        return rows_of_turns(turn, combinations)

    for status, error in {"skipped": Skipped("no GPU"), "oom": torch.OutOfMemoryError("CUDA out of memory")}.items():
        rows = {row["levers"]: row for row in rows_where("sdpa", error, "fused:sdpa")}
        assert list(rows) == ["eager", "fused", "sdpa", "eager_again"]
        assert rows.pop("sdpa") == {"levers": "sdpa", "status": status, "reason": str(error)}
        assert {row["reason"] for row in rows.values()} == {"no time"}
    for failing, error in (("eager", Skipped("no")), ("sdpa", RuntimeError("a bug"))):
        with pytest.raises(type(error), match=str(error)):
            rows_where(failing, error)


def test_if_eager_is_out_of_memory_losses_are_compared_with_the_checkpointed_step(rows_of_turns):
    held_to, out_of_memory = {}, torch.OutOfMemoryError("CUDA out of memory")

    def turn(levers, eager):
        held_to[levers] = eager
        if levers in too_large:
            raise out_of_memory
        return {"status": "ok", "first_loss": 4.7, "loss": 4.6}

    def statuses(combinations):
        held_to.clear()
        rows = rows_of_turns(turn, combinations)
        assert rows[0]["reason"] == str(out_of_memory)
        return {row["levers"]: row["status"] for row in rows}

    too_large, held_to_checkpoints = {"eager"}, {"eager": None, "checkpointing": None, "sdpa": (4.7, 4.6)}
    assert statuses("sdpa") == {"eager": "oom", "sdpa": "ok", "eager_again": "skipped"}
    assert held_to == held_to_checkpoints
    every = {"eager": "oom", "sdpa": "ok", "checkpointing": "ok", "eager_again": "skipped"}
    assert statuses("sdpa:checkpointing") == every
    assert held_to == held_to_checkpoints
    too_large = {"eager", "checkpointing"}  # there is nothing to compare the others with
    assert statuses("sdpa:checkpointing") == every | {"sdpa": "skipped", "checkpointing": "oom"}
    assert "sdpa" not in held_to


def test_if_the_eager_loss_is_nan_every_lever_is_wrong(rows_of_turns):
    held_to, found = [], {"status": "wrong", "reason": "no number", "first_loss": 4.7, "loss": None}
    rows_of_turns(lambda _levers, eager: held_to.append(eager) or found)
    first, *others = held_to
    assert first is None
    assert [measure._why_wrong((4.7, 4.6), eager, "sdpa", SETTINGS) != "" for eager in others] == [True, True]


def test_each_lever_sets_its_own_build_options(monkeypatch):
    asked = {}

    def build(_size, **options):
        asked.update(options)
        return SimpleNamespace(optimizer=SimpleNamespace(param_groups=[{"lr": 1.0}]))

    monkeypatch.setattr(measure, "build_training_step", build)
    for name in (name for name in LEVERS if name != "blocks"):
        step = measure._build(name, CELL, SETTINGS, torch.device("cpu"))
        assert step.optimizer.param_groups == [{"lr": SETTINGS.learning_rate}]
        recipe = {"fp8": {"recipe": "tensorwise"}, "fp8_rowwise": {"recipe": "rowwise"}}.get(name, {})
        assert (asked["convert"].keywords if asked["convert"] else {}) == recipe
        assert (asked["make_optimizer"] is not None) == (name in ("muon", "bf16_moments"))
        expected = {
            "fused_optimizer": name == "fused",
            "attention": name if name in ("flash", "sdpa") else "eager",
            "compiled": name == "compile",
            "weights_dtype": torch.bfloat16 if name == "bf16_weights" else torch.float32,
            "checkpoint_every": 1 if name == "checkpointing" else 0,
        }
        assert expected.items() <= asked.items()


def test_a_lever_that_changes_the_loss_is_wrong_and_has_no_times(measured, monkeypatch):
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: None)  # it updates nothing
    row, _ = measured("fused", replace(SETTINGS, first_loss_tolerance=0.1), (4.7, 4.6))
    assert row["status"] == "wrong"
    assert row["reason"].endswith("in step 8, 4.6 of the eager model")
    assert ("loss" in row, "median_ms" in row) == (True, False)


@pytest.mark.parametrize(
    ("levers", "losses", "wrong"),
    [
        ("fused", (9.01, 5.39), ""),
        ("fused", (8.99, 4.61), ""),
        ("fused", (9.05, 5.0), "loss 9.05 in step 1, 9 of the eager model"),
        ("fused", (9.0, 5.41), "loss 5.41 in step 8, 5 of the eager model"),
        ("fused", (9.0, float("nan")), "loss nan in step 8, 5 of the eager model"),
        ("bf16_moments", (9.0, 7.0), "loss 7 in step 8, 5 of the eager model"),
        ("bf16_weights", (9.0, 9.0), ""),
        ("fused+bf16_weights", (9.1, 9.0), "loss 9.1 in step 1, 9 of the eager model"),
        ("fused+muon", (9.0, 7.0), ""),
        ("muon", (9.0, 9.1), "loss 9.1 in step 8, 9 in the first"),
        ("muon", (9.0, float("nan")), "loss nan in step 8, 9 in the first"),
    ],
)
def test_the_last_loss_may_differ_by_a_tenth_of_eagers_drop_except_for_other_updates(levers, losses, wrong):
    assert measure._why_wrong(losses, (9.0, 5.0), levers, SETTINGS) == wrong


@pytest.mark.parametrize(
    ("levers", "reason"),
    [
        ("flash", "flash attention needs a CUDA GPU"),
        ("fused+graph", "CUDA graphs need a GPU"),
        ("fp8", "need a GPU of compute capability 8.9"),
        ("compile", r"torch.compile needs a C\+\+ compiler"),
        ("muon", r"has no torch\.optim\.Muon"),
    ],
)
def test_a_lever_that_the_machine_or_torch_lacks_is_skipped(measured, monkeypatch, levers, reason):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(Skipped, match=reason):
        measured(levers)


@pytest.mark.parametrize(
    ("capability", "levers", "reason"),
    [
        ((9, 0), "compile+fp8", "^no torchao$"),
        ((8, 9), "compile+fp8_rowwise", r"^fp8 products \(rowwise\) need a GPU of compute capability 9\.0$"),
        ((8, 0), "compile+fp8", r"^fp8 products \(tensorwise\) need a GPU of compute capability 8\.9$"),
    ],
)
def test_each_fp8_recipe_needs_torchao_and_a_capable_gpu(monkeypatch, capability, levers, reason):
    def absent(*_names):
        raise Skipped("no torchao")

    monkeypatch.setattr(float8, "load", absent)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    monkeypatch.setattr(measure, "require_compiler", lambda: None)
    with pytest.raises(Skipped, match=reason):
        measure._require(levers, torch.device("cuda"))


@pytest.mark.parametrize(
    "combinations",
    [
        *("fast", "flash+fused", "fused+fused", "flash+sdpa", "eager", "fused:", "fused:sdpa:fused", "all:sdpa"),
        *("fp8", "fused+fp8", "compile+fp8+fp8_rowwise", "blocks+compile", "fused+bf16_moments"),
    ],
)
def test_invalid_combinations_are_refused_in_one_line(combinations):
    refused = r"^combinations must be all or, joined by : and each once, .*: fused, "
    with pytest.raises(UserError, match=refused) as said:
        Cell(combinations=combinations)
    assert ("; fp8 needs compile, without which" in str(said.value)) == (combinations in ("fp8", "fused+fp8"))


@pytest.mark.parametrize("levers", ["compile+fp8", "compile+fp8_rowwise", "fused+bf16_weights"])
def test_in_fp32_levers_with_fewer_bits_are_refused_by_name_and_left_out_of_all(levers):
    with pytest.raises(UserError, match=rf"{levers.split('+')[1]} .*needs precision=bf16, got ") as said:
        Cell(precision="fp32", combinations=f"sdpa:{levers}")
    assert "\n" not in str(said.value)
    assert levers in Cell(combinations=f"sdpa:{levers}").turns
    here, of_bf16 = (Cell(precision=each).turns for each in ("fp32", "bf16"))
    assert of_bf16 == ["eager", *OF_ALL, "eager_again"] == [key["levers"] for key in Cell().row_keys()]
    assert len(of_bf16) > 12
    assert {*of_bf16} - {*here} == {each for each in OF_ALL if {*each.split("+")} & {*OF_FEWER_BITS}}
    assert {"bf16_moments", "muon", "fused+sdpa+compile+graph"} <= {*here}


def test_bf16_is_expected_to_be_faster_on_a_gpu_and_slower_on_a_cpu():
    cells = [Cell(size="nano", context_length=128, precision=each, combinations="sdpa") for each in ("fp32", "bf16")]
    fp32, bf16 = ([expected_s(cell, Settings(), on_gpu) for on_gpu in (True, False)] for cell in cells)
    assert fp32[0] > bf16[0]
    assert 5 * fp32[1] < bf16[1]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("precision", "levers"),
    [
        ("bf16", "compile+fp8"),
        ("bf16", "compile+fp8_rowwise"),
        ("bf16", "fused+flash+blocks+graph:bf16_moments"),
        ("bf16", "flash:fused+sdpa+graph:fused+sdpa+compile+graph+bf16_weights+checkpointing"),
        ("fp32", "flash:fused+sdpa+compile+graph:fused+flash+blocks:bf16_moments"),
    ],
)
def test_levers_on_a_gpu_train_like_the_eager_model_or_say_what_they_lack(precision, levers):
    for row in rows_read(measure.measure, Cell("small", 256, precision, levers), Settings(budget_s=0.5)):
        if "fp8" not in row["levers"] or "is not installed" not in (row.get("reason") or ""):
            assert row["status"] in ("ok", "unstable"), row
            assert row["gpu_busy_ms"] <= 1.03 * row["median_ms"]
