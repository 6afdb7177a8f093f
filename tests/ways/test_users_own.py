import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.stages.ddp.cell import BUCKET_SIZES_MB, VARIANTS
from pipeline.stages.fsdp.cell import FULLY_SHARDED
from pipeline.subjects.naming import Subject
from pipeline.subjects.training_check import NOT_SHARDED
from pipeline.ways.measure import measure_ways

from ..records import rows_read, stage_of

FILE = Path(__file__).parents[1] / "subjects/outside/training.py"
COURSE = FILE.with_name("course") / "sharded.py"
SMALL = {"vocab_size": 100, "warmup_steps": 2, "steps": 5, "rounds": 1, "timeout_s": 600}


def parts_of(stage, **axes):
    """Return a stage's experiment, its `measure`, a small cell and its settings."""
    module = importlib.import_module(f"pipeline.stages.{stage}.measure")
    cell = module.Cell(size="tiny", context_length=16, **axes)
    return module.EXPERIMENT, module.measure, cell, stage_of(cell).settings_type(**SMALL)


DDP = [
    Subject("ddp", "container", f"{FILE}:Container", after_backward=f"{FILE}:average"),
    Subject("ddp", "comes_apart", f"{FILE}:AveragesTheFirst16"),
]
OPTIMIZERS = [Subject("optimizer", name.lower(), f"{FILE}:{name}") for name in ("Shards", "DropsAShard")]
FSDP = [Subject("fsdp", name, f"{COURSE}:{use}") for name, use in (("kept", "FSDP"), ("stops", "StopsAveraging"))]
FSDP += [Subject("fsdp", "torchs", f"{FILE}:by_torch", gather=f"{FILE}:gather_of_torch")]


@pytest.mark.parametrize(
    ("stage", "precision", "beside", "own", "wrong", "reason"),
    [
        ("ddp", "fp32", ("naive", "none"), DDP, "comes_apart", " differs between ranks by "),
        ("sharding", "fp32", ("adamw",), OPTIMIZERS, "dropsashard", " of how far the reference moved it"),
        ("sharding", "bf16", ("adamw",), OPTIMIZERS, "dropsashard", " of how far the reference moved it"),
        ("fsdp", "fp32", ("ddp", *FULLY_SHARDED), FSDP, "stops", ""),
    ],
)
def test_ways_that_diverge_in_the_timed_steps_have_no_times(stage, precision, beside, own, wrong, reason):
    experiment, _, cell, settings = parts_of(stage, precision=precision)
    ways = [way for way in experiment.ways if way.name in beside]
    ways[1:1] = [way for subject in own for way in experiment.own_ways(subject, "")]
    rows = measure_ways(experiment, ways, cell, settings, own)
    assert {row["impl"] for row in rows if "samples_ms" in row} == {way.name for way in ways} - {wrong}
    (row,) = [row for row in rows if row["impl"] == wrong]
    assert row["status"] == "wrong"
    assert reason in row["reason"]
    if stage == "fsdp":  # weights are gathered and compared, and the course's layers are found
        assert max(row["weight_share"] for row in rows if "weight_share" in row) < 1e-3
        held = {row["impl"]: row["measured_bytes"] for row in rows if row.get("kind") == "parameters"}
        assert held["kept"] < 0.51 * held["ddp"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "right", "wrong", "reason"),
    [
        ("ddp", Subject("ddp", "right", f"{FILE}:Buckets"), f"{FILE}:KeepsOneToItself", "off by"),
        ("sharding", Subject("optimizer", "right", f"{FILE}:Shards"), f"{FILE}:ForgetsTheLastParameter", ""),
        (
            "fsdp",
            Subject("fsdp", "right", f"{FILE}:WholeFSDP", gather=f"{FILE}:gather"),
            f"{FILE}:WholeFSDP",
            "no full parameter embedding.weight",
        ),
    ],
)
def test_own_ways_that_pass_take_turns_and_others_have_a_reason_and_no_times(stage, right, wrong, reason):
    gather = {"gather": f"{FILE}:gather_all_but_one"} if stage == "fsdp" else {}
    experiment, measure, cell, settings = parts_of(stage)
    rows = rows_read(measure, cell, settings, [right, replace(right, name="odd", use=wrong, **gather)])
    (odd,) = [row for row in rows if row["impl"] == "odd"]
    assert (odd["status"], "median_ms" in odd) == ("wrong", False)
    assert reason in odd["reason"]
    own = [row for row in rows if row["impl"] == "right"]
    steps = [row for row in own if (row.get("phase"), row.get("clock")) == ("train_step", "host")]
    assert {way.name for way in experiment.ways} < {row["impl"] for row in rows if "median_ms" in row}
    if stage == "ddp":
        assert [row["bucket_size_mb"] for row in steps] == list(BUCKET_SIZES_MB)
        assert all(row["variant_difference"] <= row["weight_tolerance"] for row in steps)
        assert all(row["all_reduces"] >= 1 for row in steps)
        assert {row["impl"] for row in rows} > {variant.impl for variant in VARIANTS}
    if stage == "sharding":
        assert {row["measures"] for row in own} == {"time", "memory", "traffic"}
        state = [row for row in rows if (row.get("moment"), row.get("kind")) == ("after_step", "optimizer_state")]
        held = {row["impl"]: row["measured_bytes"] for row in state}
        assert 0 < held["right"] < held["adamw"]
    if stage == "fsdp":
        assert all(NOT_SHARDED in row["reason"] for row in own)
        assert {row["measures"] for row in own} == {"time", "memory", "traffic", "capture"}
        losses = {row["impl"]: row["loss"] for row in rows if row.get("phase") == "train_step" and "loss" in row}
        assert losses["right"] == pytest.approx(losses["ddp"], rel=1e-5)
