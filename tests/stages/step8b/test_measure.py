from dataclasses import asdict

import pandas as pd
import pytest
import torch

from pipeline.errors import UserError
from pipeline.formulas.flops import causal_train_step_flops
from pipeline.formulas.sizes import SIZES
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.registry import stage
from pipeline.stages.step8b.cell import IMPLS, WHOLE_STEP, Cell, Settings
from pipeline.stages.step8b.measure import measure, rows_of
from pipeline.stages.step8b.turn import descent_row
from pipeline.ways import ranks
from pipeline.ways.cell import PHASES

from ...records import rows_read


@pytest.fixture(scope="module")
def rows(small_rows):
    return pd.DataFrame(small_rows)


def whole(rows, impl):
    (found,) = [row for row in rows if row["impl"] == impl and WHOLE_STEP.items() <= row.items()]
    return found


def test_every_implementation_has_a_time_for_every_phase_and_the_peer_those_of_both_its_turns(rows, small_rows):
    times = rows[rows["measures"] == "time"].pivot(index="impl", columns="phase", values="median_ms")
    assert set(times.index) == {*IMPLS} - {"torch_compiled"}
    assert times[[*PHASES, "train_step"]].gt(0).all(axis=None)
    peer, ours = whole(small_rows, "torch_eager"), whole(small_rows, "ours")
    assert (peer["turns"], peer["n"], ours["turns"], ours["n"]) == (2, 4, 1, 2)
    assert ours["layers_that_keep"] == SIZES["tiny"].num_layers


def test_rates_follow_from_the_median_step(small_rows):
    ours = whole(small_rows, "ours")
    assert ours["tokens_per_s"] == pytest.approx(2 * 64 / ours["median_ms"] * 1e3)
    step_flops = causal_train_step_flops(SIZES["tiny"], 500, 1, 64)
    assert ours["model_tflops_per_s"] == pytest.approx(step_flops / ours["median_ms"] / 1e9)


def test_all_implementations_descend_alike(small_rows):
    losses = {row["impl"]: row["losses"] for row in small_rows if row["measures"] == "descent"}
    assert set(losses) == {*IMPLS} - {"torch_compiled"}
    assert losses["ours"][-1] < losses["ours"][0]
    for impl in losses:
        assert losses[impl] == pytest.approx(losses["torch_eager"], rel=2e-3)


def test_without_a_gpu_products_that_are_kept_are_the_one_fusion(rows):
    assert list(rows.loc[rows["measures"] == "fusion", "fusion"]) == ["none", "kept_products"]


def test_wrong_gradients_leave_no_times(synthetic_turn):
    rows = rows_of("ours", [synthetic_turn("ours", worst=0.1)])
    stage("step8b").row_types.check(asdict(Cell()), rows)
    assert whole(rows, "ours")["status"] == "wrong"
    assert "worst_gradient_error is 0.1, allowed 0.0165, 1.5 times" in whole(rows, "ours")["reason"]
    assert {row["measures"] for row in rows} == {"time", "check"}
    assert not any("median_ms" in row for row in rows)


def test_a_loss_that_does_not_fall_is_wrong():
    row = descent_row([7.0, 8.0])
    assert (row["status"], row["reason"]) == ("wrong", "the loss does not fall: 7, then 8")


def test_what_is_skipped_or_does_not_fit_leaves_the_others_their_rows(monkeypatch, synthetic_turn):
    def run_ranks(*_args, args, **_kwargs):
        _cell, _settings, impl, _is_first = args
        if impl == "torch_eager":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7.44 GiB\nmore")
        return [synthetic_turn(impl)]

    monkeypatch.setattr(ranks, "run_ranks", run_ranks)
    monkeypatch.setenv("PATH", "")  # no compiler
    rows = rows_read(measure, Cell(), Settings(), Stopwatch())
    outcomes = {impl: whole(rows, impl)["status"] for impl in ("torch_compiled", "torch_eager", "ours")}
    assert outcomes == {"torch_compiled": "skipped", "torch_eager": "oom", "ours": "ok"}
    assert whole(rows, "torch_eager")["reason"] == "CUDA out of memory. Tried to allocate 7.44 GiB"


def test_unknown_implementations_are_refused_in_one_line():
    with pytest.raises(UserError, match=r"^impls is 'ours\+theirs', allowed are, joined by \+, torch_eager, "):
        Cell(impls="ours+theirs")


@pytest.mark.gpu
def test_on_gpus_a_small_model_is_right_and_has_a_budget_and_every_fusion():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs 2 GPUs")
    cell = Cell(size="small", context_length=2048, impls="ours+torch_eager")
    rows = rows_read(measure, cell, Settings(vocab_size=10_000, checked_context=1024, descent_context=256), Stopwatch())
    table = pd.DataFrame(rows)
    assert set(table["status"]) <= {"ok", "unstable"}, table["reason"].dropna().unique()
    assert len(table[table["measures"] == "fusion"]) == 7
    budget = table[(table["measures"] == "budget") & (table["impl"] == "ours")]
    ours = whole(rows, "ours")
    # The formula leaves out workspaces, 32 MiB for each of two threads, and small tensors.
    assert 0 <= ours["peak_bytes"] - 0.97 * ours["needs_bytes"] < 0.06 * ours["needs_bytes"] + 1e8
    assert budget["work_ms"].sum() == pytest.approx(whole(rows, "ours")["profiled_ms"], rel=0.01)
