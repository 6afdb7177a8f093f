"""Data-parallel wrappers of the user's own in a ddp cell."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.stages.ddp.cell import BUCKET_SIZES_MB, VARIANTS, Cell, Settings
from pipeline.stages.ddp.measure import EXPERIMENT, WAYS, measure, own_ways
from pipeline.subjects.naming import Subject
from pipeline.ways.measure import measure_ways

from ...records import rows_read

FILE = Path(__file__).parents[2] / "subjects/outside/training.py"
CELL = Cell(size="tiny", context_length=16)
SETTINGS = Settings(vocab_size=100, warmup_steps=2, steps=5, rounds=1, timeout_s=600)


def test_a_wrapper_whose_ranks_come_apart_in_the_timed_steps_has_no_times():
    own = [Subject("ddp", name.lower(), f"{FILE}:{name}") for name in ("Container", "AveragesTheFirst16")]
    own[0] = replace(own[0], after_backward=f"{FILE}:average")
    ways = [WAYS[0], *(way for subject in own for way in own_ways(subject, "")), WAYS[-1]]
    rows = [row for row in measure_ways(EXPERIMENT, ways, CELL, SETTINGS, own) if row["phase"] == "train_step"]
    assert {row["impl"]: row["status"] for row in rows if row["status"] == "wrong"} == {"averagesthefirst16": "wrong"}
    (wrong,) = [row for row in rows if row["status"] == "wrong"]
    assert " differs between ranks by " in wrong["reason"]
    assert "median_ms" not in wrong


@pytest.mark.slow
def test_what_passes_takes_turns_with_the_rest_and_one_that_leaks_has_no_times():
    names = ("Buckets", "KeepsOneToItself")
    rows = rows_read(
        measure, CELL, SETTINGS, Stopwatch(), [Subject("ddp", name.lower(), f"{FILE}:{name}") for name in names]
    )
    whole = [row for row in rows if (row["phase"], row["clock"]) == ("train_step", "host")]
    right = [row for row in whole if row["impl"] == "buckets"]
    assert [row["bucket_size_mb"] for row in right] == list(BUCKET_SIZES_MB)
    assert all(row["variant_difference"] <= row["weight_tolerance"] for row in right)
    assert all(row["all_reduces"] >= 1 for row in right)
    (leaking,) = [row for row in rows if row["impl"] == "keepsonetoitself"]
    assert leaking["status"] == "wrong"
    assert "off by" in leaking["reason"]
    assert "median_ms" not in leaking
    assert {row["impl"] for row in whole} > {variant.impl for variant in VARIANTS}
