from dataclasses import asdict

import pandas as pd
import pytest
import torch

from pipeline.errors import UserError
from pipeline.formulas.flops import causal_train_step_flops
from pipeline.formulas.sizes import SIZES
from pipeline.instruments.sampling.step_timing import Sampling, Timings
from pipeline.registry import stage
from pipeline.stages.step8b.cell import COMPILED, IMPLS, WHOLE_STEP, Cell, Settings
from pipeline.stages.step8b.correctness import check_rows
from pipeline.stages.step8b.measure import measure, rows_of
from pipeline.stages.step8b.turn import Turn, descent_row
from pipeline.ways import ranks
from pipeline.ways.cell import PHASES

from ...records import rows_on_gloo, rows_read
from .test_parts import SMALL, SMALL_SETTINGS


@pytest.fixture(scope="module")
def rows(host):
    return rows_on_gloo(host, measure, SMALL, SMALL_SETTINGS)


def whole(rows, impl):
    (found,) = [row for row in rows if row["impl"] == impl and WHOLE_STEP.items() <= row.items()]
    return found


def test_every_implementation_has_a_time_for_every_phase_and_the_peer_two_turns(rows):
    timed = {(row["impl"], row["phase"]) for row in rows if row["measures"] == "time" and row["median_ms"] > 0}
    assert timed == {(impl, name) for impl in {*IMPLS} - {*COMPILED} for name in (*PHASES, "train_step")}
    peer, ours = whole(rows, "torch_eager"), whole(rows, "ours")
    assert (peer["turns"], peer["n"], ours["turns"], ours["n"]) == (2, 4, 1, 2)
    assert ours["layers_that_keep"] == SIZES["tiny"].num_layers
    # Without a GPU, keeping products is the only fusion.
    assert [row["fusion"] for row in rows if row["measures"] == "fusion"] == ["none", "kept_products"]


def test_rates_follow_from_the_median_step_and_losses_fall_alike(rows):
    ours = whole(rows, "ours")
    assert ours["tokens_per_s"] == pytest.approx(2 * 64 / ours["median_ms"] * 1e3)
    step_flops = causal_train_step_flops(SIZES["tiny"], 500, 1, 64)
    assert ours["model_tflops_per_s"] == pytest.approx(step_flops / ours["median_ms"] / 1e9)
    losses = {row["impl"]: row["losses"] for row in rows if row["measures"] == "descent"}
    assert losses["ours"][-1] < losses["ours"][0]
    alike = pytest.approx(losses["torch_eager"], rel=2e-3)
    assert losses == dict.fromkeys({*IMPLS} - {*COMPILED}, alike)


def test_wrong_gradients_have_no_times_and_a_loss_that_does_not_fall_is_wrong():
    names = ("loss", "loss_error", "gradient_error", "worst_gradient_error")
    errors = {"ours": (11.95, 1e-6, 0.0048, 0.1), "bf16_eager": (11.95, 2e-6, 0.0049, 0.011)}
    found = {model: dict(zip(names, each, strict=True)) for model, each in errors.items()}
    rows = rows_of("ours", [Turn(check_rows(found, Settings()))])
    stage("step8b").row_types.check(asdict(Cell()), rows)
    assert whole(rows, "ours")["status"] == "wrong"
    assert "worst_gradient_error is 0.1, allowed 0.0165, 1.5 times" in whole(rows, "ours")["reason"]
    assert {row["measures"] for row in rows} == {"time", "check"}
    assert not any("samples_ms" in row for row in rows)
    row = descent_row([7.0, 8.0])
    assert (row["status"], row["reason"]) == ("wrong", "the loss does not fall: 7, then 8")


def test_skipped_or_oom_implementations_cost_only_their_rows_and_unknown_ones_raise(monkeypatch):
    def run_ranks(*_args, args, **_kwargs):
        if args[2] == "torch_eager":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7.44 GiB\nmore")
        timings = {"train_step": Timings([4700.0] * 3, [4700.0] * 3)}
        return [Turn([], Sampling(timings, [], []), {"measured_peak_tflops_per_s": 1.0})]

    monkeypatch.setattr(ranks, "run_ranks", run_ranks)
    monkeypatch.setenv("PATH", "")  # no compiler
    rows = rows_read(measure, Cell(), Settings())
    outcomes = {impl: whole(rows, impl)["status"] for impl in ("torch_compiled", "torch_eager", "ours")}
    assert outcomes == {"torch_compiled": "skipped", "torch_eager": "oom", "ours": "ok"}
    assert whole(rows, "torch_eager")["reason"] == "CUDA out of memory. Tried to allocate 7.44 GiB"
    with pytest.raises(UserError, match=r"^impls is 'ours\+theirs', allowed are, joined by \+, torch_eager, "):
        Cell(impls="ours+theirs")


@pytest.mark.gpu(count=2)
def test_on_gpus_a_small_model_is_right_and_has_a_budget_and_every_fusion():
    cell = Cell(size="small", context_length=2048, impls="ours+torch_eager")
    rows = rows_read(measure, cell, Settings(vocab_size=10_000, checked_context=1024, descent_context=256))
    table = pd.DataFrame(rows)
    assert set(table["status"]) <= {"ok", "unstable"}, table["reason"].dropna().unique()
    assert len(table[table["measures"] == "fusion"]) == 7
    budget = table[(table["measures"] == "budget") & (table["impl"] == "ours")]
    ours = whole(rows, "ours")
    # The formula leaves out workspaces, 32 MiB for each of two threads, and small tensors.
    assert 0 <= ours["peak_bytes"] - 0.97 * ours["needs_bytes"] < 0.06 * ours["needs_bytes"] + 1e8
    assert budget["work_ms"].sum() == pytest.approx(ours["profiled_ms"], rel=0.01)
