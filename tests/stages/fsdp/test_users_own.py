"""FSDP wrappers of the user's own in an fsdp cell."""

from pathlib import Path

import pytest

from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.stages.fsdp.cell import FULLY_SHARDED, Cell, Settings
from pipeline.stages.fsdp.measure import EXPERIMENT, WAYS, measure, own_ways
from pipeline.subjects.naming import Subject
from pipeline.subjects.training_check import NOT_SHARDED
from pipeline.ways.measure import measure_ways

from ...records import rows_read

FILE = Path(__file__).parents[2] / "subjects/outside/training.py"
COURSE = FILE.with_name("course") / "sharded.py"
CELL = Cell(size="tiny", context_length=16, batch_size_per_rank=1)
SETTINGS = Settings(vocab_size=100, warmup_steps=2, steps=5, rounds=1, timeout_s=600)


def test_weights_are_gathered_and_compared_after_the_timed_steps():
    names = {"FSDP": "kept", "StopsAveraging": "stops"}
    own = [Subject("fsdp", name, f"{COURSE}:{wrapper}") for wrapper, name in names.items()]
    own.append(Subject("fsdp", "torchs", f"{FILE}:by_torch", gather=f"{FILE}:gather_of_torch"))
    ways = [way for way in WAYS if way.name in ("ddp", *FULLY_SHARDED)]
    ways += [way for subject in own for way in own_ways(subject, "")]
    rows = measure_ways(EXPERIMENT, ways, CELL, SETTINGS, own)
    shares = {
        row["impl"]: row["weight_share"] for row in rows if row.get("phase") == "train_step" and "samples_ms" in row
    }
    assert set(shares) == {way.name for way in ways} - {"stops"}
    assert max(shares.values()) < 1e-3
    (wrong,) = [row for row in rows if row["impl"] == "stops"]
    assert wrong["status"] == "wrong"
    held = {row["impl"]: row["measured_bytes"] for row in rows if row.get("kind") == "parameters"}
    assert held["kept"] < 0.51 * held["ddp"]  # the course's layers are found


@pytest.mark.slow
def test_what_passes_takes_turns_and_what_gathers_too_little_has_a_reason():
    gathers = {"mine": "gather", "odd": "gather_all_but_one"}
    subjects = [Subject("fsdp", name, f"{FILE}:WholeFSDP", gather=f"{FILE}:{how}") for name, how in gathers.items()]
    rows = rows_read(measure, CELL, SETTINGS, Stopwatch(), subjects)
    own = [row for row in rows if row["impl"] == "mine"]
    assert all(NOT_SHARDED in row["reason"] for row in own)
    assert {row["measures"] for row in own} == {"time", "memory", "traffic", "capture"}
    losses = {row["impl"]: row["loss"] for row in rows if row.get("phase") == "train_step" and "loss" in row}
    assert losses["mine"] == pytest.approx(losses["ddp"], rel=1e-5)
    (wrong,) = [row for row in rows if row["impl"] == "odd"]
    assert wrong["status"] == "wrong"
    assert "no full parameter embedding.weight" in wrong["reason"]
