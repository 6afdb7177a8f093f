import pandas as pd
import pytest

from pipeline.report import sharded
from pipeline.report.versus import FASTER, UNDECIDED

GIVEN = {"parameters": 8e9, "gradients": 8e9, "optimizer_state": 16e9}


def counted(case="a cell", way="DDP", peak=40e9):
    rows = [{"kind": kind, "measured_bytes": size, "predicted_bytes": size} for kind, size in GIVEN.items()]
    rows += [{"kind": "peak", "measured_bytes": peak}] if peak else []
    rows += [{"collective": "allreduce", "measured_bytes": 8e9, "predicted_bytes": 4e9, "calls": 2, "sent_bytes": 8e9}]
    names = ["kind", "collective", "measured_bytes", "predicted_bytes", "calls", "sent_bytes"]
    return pd.DataFrame(rows, columns=names).assign(case=case, way=way)


def step(way="DDP", **columns):
    given = {"median_ms": 400.0, "status": "ok", "verdict": None, "sent_bytes": None, "gain": "1.0×", "ratio": 1.0}
    return {"case": "a cell", "way": way, **given, **columns}


@pytest.mark.parametrize(("peak", "of_rank"), [(40e9, 40e9), (None, 32e9)])
def test_a_rank_has_its_peak_and_where_no_allocator_counts_its_state(peak, of_rank):
    [row] = sharded.with_bytes(pd.DataFrame([step()]), counted(peak=peak)).to_dict("records")
    assert (row["rank_bytes"], row["state_bytes"], row["sent_bytes"]) == (of_rank, 32e9, 8e9)


def test_bytes_of_another_case_are_not_taken_for_a_ways_own():
    [row] = sharded.with_bytes(pd.DataFrame([step()]), counted(case="another")).to_dict("records")
    assert pd.isna(row["rank_bytes"])


def test_the_kinds_of_memory_add_up_to_the_peak():
    rows = counted()
    drawn = sharded.memory(sharded.with_bytes(pd.DataFrame([step()]), rows), rows).drawn
    assert drawn["gb"].sum() == pytest.approx(40.0)
    assert set(drawn["name"]) == {"parameters", "gradients", "optimizer", "other"}


@pytest.mark.parametrize(("verdict", "count"), [(FASTER, 1), (UNDECIDED, 0)])
def test_only_what_is_faster_is_a_change_to_make(verdict, count):
    steps = pd.DataFrame([step(rank_bytes=40e9), step("FSDP", verdict=verdict, rank_bytes=20e9, median_ms=390.0)])
    changes = sharded.changes(steps, "shard", ["FSDP"], "DDP")
    assert len(changes) == count
    assert all(change.before == "400 ms, 40.0 GB" and change.after == "390 ms, 20.0 GB" for change in changes)


def test_the_answer_says_what_there_is_where_the_other_side_failed():
    steps = pd.DataFrame([step(status="oom", median_ms=None), step("FSDP", rank_bytes=20e9)])
    assert "FSDP" in sharded.answer(steps, "FSDP", "FSDP", "DDP")
    assert "nan" not in sharded.answer(steps, "FSDP", "FSDP", "DDP")
