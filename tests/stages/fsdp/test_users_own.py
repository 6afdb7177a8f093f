"""FSDP wrappers of the user's own in an fsdp cell."""

from pathlib import Path

import pytest

from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.report.page_parts import Table
from pipeline.stages.fsdp.cell import Cell, Settings
from pipeline.stages.fsdp.measure import measure
from pipeline.stages.fsdp.report.section import build
from pipeline.subjects.naming import Subject

from ...records import rows_read

FILE = Path(__file__).parents[2] / "subjects/outside/training.py"
CELL = Cell(size="tiny", context_length=16, batch_size_per_rank=1)
SETTINGS = Settings(vocab_size=100, warmup_steps=2, steps=5, rounds=1, timeout_s=120)


@pytest.mark.slow
def test_what_passes_takes_turns_and_what_gathers_too_little_has_a_reason(as_table):
    gathers = {"mine": "gather", "odd": "gather_all_but_one"}
    subjects = [Subject("fsdp", name, f"{FILE}:WholeFSDP", gather=f"{FILE}:{how}") for name, how in gathers.items()]
    rows = rows_read(measure, CELL, SETTINGS, Stopwatch(), subjects)
    own = [row for row in rows if row["impl"] == "mine"]
    assert {row["measures"] for row in own} == {"time", "memory", "traffic", "capture"}
    losses = {row["impl"]: row["loss"] for row in rows if row.get("phase") == "train_step" and "loss" in row}
    assert losses["mine"] == pytest.approx(losses["ddp"], rel=1e-5)
    (wrong,) = [row for row in rows if row["impl"] == "odd"]
    assert wrong["status"] == "wrong"
    assert "no full parameter 0.weight" in wrong["reason"]
    (table,) = [part for part in build(as_table(CELL, SETTINGS, rows, "a CPU")).parts if isinstance(part, Table)]
    assert "your mine" in table.cells["way"].tolist()
