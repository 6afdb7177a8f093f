"""Attention of the user's own in a flash cell."""

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
FILE = KERNELS / "attention.py"
CELL = Cell(dtype="fp32", head_dim=16, seq_len=32)
SETTINGS = Settings(min_samples=3, max_samples=3, budget_s=0.1, call_limit_s=60, check_timeout_s=300, timeout_s=600)


@pytest.mark.slow
def test_what_passes_is_timed_with_the_rest_and_what_does_not_costs_its_own_rows():
    names = ("Right", "off_by_one", "crashes_at_length_32")
    subjects = [Subject("attention", name.lower(), f"{FILE}:{name}") for name in names]
    rows = rows_read(measure, CELL, SETTINGS, Stopwatch(), subjects)
    by_name = {name.lower(): [row for row in rows if row["impl"] == name.lower()] for name in (*names, "tiled")}
    assert {name: len(group) for name, group in by_name.items()} == dict.fromkeys(by_name, len(PHASES))
    assert {row["status"] for row in by_name["right"] + by_name["tiled"]} <= {"ok", "unstable"}
    assert all(row["output_rel_error"] < 1e-6 for row in by_name["right"] if row["phase"] == "forward")
    for row in by_name["off_by_one"] + by_name["crashes_at_length_32"]:
        assert row["status"] == "wrong"
        assert "median_ms" not in row
    assert by_name["off_by_one"][0]["reason"].startswith("output is off by ")
    assert by_name["crashes_at_length_32"][0]["reason"] == "its process died by SIGSEGV"


def test_what_is_far_off_at_the_cells_own_length_only_is_wrong_and_costs_its_own_rows(monkeypatch):
    monkeypatch.setattr(implementations, "names", lambda _cell, _device: ["eager"])
    names = ("right", "nan_at_length_32", "doubled_at_length_32")
    places = ("Right", *names[1:])
    subjects = [Subject("attention", name, f"{FILE}:{place}") for name, place in zip(names, places, strict=True)]
    rows = rows_read(measure, CELL, SETTINGS, Stopwatch(), subjects)
    by_name = {name: [row for row in rows if row["impl"] == name] for name in ("eager", *names)}
    assert {name: len(group) for name, group in by_name.items()} == dict.fromkeys(by_name, len(PHASES))
    assert {row["status"] for row in by_name["right"] + by_name["eager"]} <= {"ok", "unstable"}
    for name, error in ((names[1], "nan"), (names[2], "1")):
        assert {row["status"] for row in by_name[name]} == {"wrong"}
        assert all("median_ms" not in row for row in by_name[name])
        assert by_name[name][0]["reason"].startswith(
            f"output has a relative error of {error} at length 32, PyTorch's own at most "
        )


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_one_row_of_many_that_is_wrong_beyond_the_lengths_of_the_check_is_wrong(monkeypatch, dtype):
    monkeypatch.setattr(implementations, "names", lambda *_args: ["eager", "sdpa"])
    cell = Cell(dtype=dtype, head_dim=16, seq_len=700)
    subjects = [Subject("attention", name, f"{FILE}:{name}") for name in ("right_at_any_length", "one_row_left_out")]
    rows = rows_read(measure, cell, SETTINGS, Stopwatch(), subjects)
    found = {name: {row["status"] for row in rows if row["impl"] == name} for name in (each.name for each in subjects)}
    assert found["right_at_any_length"] <= {"ok", "unstable"}
    assert found["one_row_left_out"] == {"wrong"}


@pytest.mark.parametrize(("name", "reason"), [("Right", COPIES), ("shares_keys", None), ("shares_when_asked", None)])
def test_where_queries_share_keys_it_gets_fewer_heads_of_keys_or_copies_and_its_rows_say_so(monkeypatch, name, reason):
    monkeypatch.setattr(implementations, "names", lambda _cell, _device: ["eager"])
    cell = replace(CELL, num_heads=4, query_heads_per_kv_head=2)
    rows = rows_read(measure, cell, SETTINGS, Stopwatch(), [Subject("attention", "mine", f"{FILE}:{name}")])
    own = [row for row in rows if row["impl"] == "mine"]
    assert [row["phase"] for row in own] == list(PHASES)
    assert {row["status"] for row in own} <= {"ok", "unstable"}
    assert own[0]["output_rel_error"] < 1e-6
    if own[0]["status"] == "ok":
        assert own[0].get("reason") == reason


@pytest.fixture
def in_this_process(monkeypatch):
    """Measure in this process, what passes any check, and put back what imports of it leave."""
    here = RankContext(rank=0, world_size=1, backend="gloo", device=torch.device("cpu"), group_setup_ms=0.0)
    monkeypatch.setattr(implementations, "names", lambda *_args: ["eager", "sdpa"])
    monkeypatch.setattr(measuring, "verdict", lambda *_args: Verdict("ok", way="folded"))
    monkeypatch.setattr(Processes, "run", lambda _self, function, *args: function(here, *args))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return lambda file, *names: measure(
        CELL, SETTINGS, Stopwatch(), [Subject("attention", name, f"{KERNELS}/{file}.py:{name}") for name in names]
    )


def test_what_is_right_in_its_first_calls_alone_is_wrong_and_has_no_times(in_this_process):
    names = ("of_pointers_at_length_32", "first_calls_alone", "adds_to_dq_at_length_32")
    rows = [row for row in in_this_process("lasting", *names) if row["impl"] in names]
    assert {(row["impl"], row["phase"]) for row in rows} == set(product(names, PHASES))
    for row in rows:
        assert (row["status"], row.get("median_ms")) == ("wrong", None)
        assert row["reason"].startswith("right at first, but not when it is called after the timing ")


def test_one_that_changes_clocks_and_torchs_state_changes_no_times_and_its_rows_say_so(in_this_process):
    clock, threads = time.perf_counter, torch.get_num_threads()
    for file, name, said in (
        ("clock", "with_a_clock_of_its_own", "time.perf_counter from perf_counter to "),
        ("state", "with_a_state_of_its_own", f"num_threads from {threads} to {threads + 1}"),
    ):
        rows = in_this_process(file, name)
        assert all(max(row["samples_ms"]) < 900 for row in rows)  # the clock of its own tells whole seconds
        assert (time.perf_counter, torch.get_num_threads()) == (clock, threads)
        for row in rows:
            assert (said in (row.get("reason") or "")) is (row["impl"] == name)
