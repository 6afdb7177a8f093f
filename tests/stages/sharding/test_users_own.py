"""Sharded optimizers of the user's own in a sharding cell."""

from pathlib import Path

import pytest

from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.stages.sharding.cell import Cell, Settings
from pipeline.stages.sharding.measure import EXPERIMENT, WAYS, measure, own_ways
from pipeline.subjects.naming import Subject
from pipeline.ways.measure import measure_ways

from ...records import rows_read

FILE = Path(__file__).parents[2] / "subjects/outside/training.py"
SETTINGS = Settings(vocab_size=100, warmup_steps=2, steps=5, rounds=1, timeout_s=600)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_optimizer_that_drops_a_shard_after_some_steps_has_no_times(precision):
    own = [Subject("optimizer", name.lower(), f"{FILE}:{name}") for name in ("Shards", "DropsAShard")]
    cell = Cell(size="tiny", context_length=16, precision=precision)
    ways = [WAYS[0], *(way for subject in own for way in own_ways(subject, ""))]
    rows = measure_ways(EXPERIMENT, ways, cell, SETTINGS, own)
    assert {row["impl"] for row in rows if "samples_ms" in row} == {"adamw", "shards"}
    (wrong,) = [row for row in rows if row["impl"] == "dropsashard"]
    assert wrong["status"] == "wrong"
    assert " of how far the reference moved it" in wrong["reason"]


@pytest.mark.slow
def test_what_passes_has_times_memory_and_traffic_and_what_does_not_has_a_reason():
    names = ("Shards", "ForgetsTheLastParameter")
    subjects = [Subject("optimizer", name.lower(), f"{FILE}:{name}") for name in names]
    rows = rows_read(measure, Cell(size="tiny", context_length=16), SETTINGS, Stopwatch(), subjects)
    own = [row for row in rows if row["impl"] == "shards"]
    assert {row["measures"] for row in own} == {"time", "memory", "traffic"}
    (state,) = [row for row in own if (row.get("moment"), row.get("kind")) == ("after_step", "optimizer_state")]
    (whole,) = [
        row
        for row in rows
        if (row["impl"], row.get("moment"), row.get("kind")) == ("adamw", "after_step", "optimizer_state")
    ]
    assert 0 < state["measured_bytes"] < whole["measured_bytes"]
    (wrong,) = [row for row in rows if row["impl"] == "forgetsthelastparameter"]
    assert wrong["status"] == "wrong"
