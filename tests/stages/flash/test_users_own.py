import sys
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.parallel.processes.starting import RankContext
from pipeline.stages.flash import implementations
from pipeline.stages.flash.cell import PHASES, Cell, Settings
from pipeline.stages.flash.measure import measure
from pipeline.subjects import measuring
from pipeline.subjects.attention_check import COPIES
from pipeline.subjects.checking import Processes, Verdict
from pipeline.subjects.naming import Subject

from ...records import rows_read

KERNELS = Path(__file__).parents[2] / "subjects/outside/kernels"
CELL = Cell(dtype="fp32", head_dim=16, seq_len=32)
SETTINGS = Settings(min_samples=3, max_samples=3, budget_s=0.1, call_limit_s=60, check_timeout_s=300, timeout_s=600)


@pytest.fixture(autouse=True)
def few_others(monkeypatch):
    """Measure few implementations beside the user's own, in this process too."""
    monkeypatch.setattr(implementations, "names", lambda *_args: ["eager", "sdpa"])


@pytest.fixture
def in_this_process(monkeypatch):
    """Check and measure in this process, on the CPU, and restore sys.path afterwards."""
    here = RankContext(rank=0, world_size=1, backend="gloo", device=torch.device("cpu"), group_setup_ms=0.0)
    monkeypatch.setattr(Processes, "run", lambda _self, function, *args: function(here, *args))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def measured_if_passed(in_this_process, monkeypatch):
    """Measure in this process as if every check passed."""
    monkeypatch.setattr(measuring, "verdict", lambda *_args: Verdict("ok", way="folded"))
    return lambda file, *names: measure(CELL, SETTINGS, Stopwatch(), subjects(*names, file=file))


def subjects(*names, file="attention"):
    return [Subject("attention", name.lower(), f"{KERNELS}/{file}.py:{name}") for name in names]


def measured(*names, cell=CELL):
    """Return the rows by implementation; each has a row for every phase."""
    by_name = {}
    for row in rows_read(measure, cell, SETTINGS, subjects(*names)):
        by_name.setdefault(row["impl"], []).append(row)
    assert {len(rows) for rows in by_name.values()} == {len(PHASES)}
    for rows in by_name.values():
        assert all(("samples_ms" in row) == (row["status"] in ("ok", "unstable")) for row in rows)
    return by_name


def test_an_error_only_at_the_cells_length_makes_only_that_implementation_wrong():
    rows = measured("Right", "nan_at_length_32", "doubled_at_length_32")
    assert all("samples_ms" in row for name in ("right", "eager") for row in rows[name])
    for name, error in (("nan_at_length_32", "nan"), ("doubled_at_length_32", "1")):
        assert {row["status"] for row in rows[name]} == {"wrong"}
        reason = f"output at length 32 has a relative error of {error}, PyTorch's own "
        assert rows[name][0]["reason"].startswith(reason)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_one_wrong_row_is_found_at_a_length_beyond_those_checked(dtype):
    rows = measured("right_at_any_length", "one_row_left_out", cell=replace(CELL, dtype=dtype, seq_len=700))
    assert all("samples_ms" in row for row in rows["right_at_any_length"])
    assert {row["status"] for row in rows["one_row_left_out"]} == {"wrong"}


@pytest.mark.usefixtures("in_this_process")
def test_with_gqa_it_gets_shared_or_copied_keys_and_its_rows_say_if_copied():
    reasons = {"right": COPIES, "shares_keys": None, "shares_when_asked": None}
    cell = replace(CELL, num_heads=4, query_heads_per_kv_head=2)
    rows = measured("Right", "shares_keys", "shares_when_asked", cell=cell)
    for name, reason in reasons.items():
        assert all("samples_ms" in row for row in rows[name])
        assert rows[name][0]["output_rel_error"] < 1e-6
        if rows[name][0]["status"] == "ok":
            assert rows[name][0].get("reason") == reason


def test_an_implementation_right_only_at_first_is_wrong_and_has_no_times(measured_if_passed):
    names = ("of_pointers_at_length_32", "first_calls_alone", "adds_to_dq_at_length_32")
    rows = [row for row in measured_if_passed("lasting", *names) if row["impl"] in names]
    assert {(row["impl"], row["phase"]) for row in rows} == set(product(names, PHASES))
    for row in rows:
        assert (row["status"], row.get("samples_ms")) == ("wrong", None)
        assert row["reason"].startswith("right at first, but not when it is called after the timing ")


def test_changing_the_clock_or_torchs_state_affects_no_times_and_is_reported(measured_if_passed):
    clock, threads = time.perf_counter, torch.get_num_threads()
    for file, name, said in (
        ("clock", "with_a_clock_of_its_own", "time.perf_counter from perf_counter to "),
        ("state", "with_a_state_of_its_own", f"num_threads from {threads} to {threads + 1}"),
    ):
        rows = measured_if_passed(file, name)
        assert all(max(row["samples_ms"]) < 900 for row in rows)  # its own clock would give whole seconds
        assert (time.perf_counter, torch.get_num_threads()) == (clock, threads)
        for row in rows:
            assert (said in (row.get("reason") or "")) is (row["impl"] == name)
