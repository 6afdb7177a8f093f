import gzip
import json
import math
from functools import partial

import pandas as pd
import pytest

from pipeline.formulas.sizes import SIZES
from pipeline.instruments.sampling.weight_differences import TOLERANCE
from pipeline.model.step import build_training_step
from pipeline.stages.ddp.cell import CAPTURED, VARIANTS, Cell, Settings
from pipeline.stages.ddp.measure import WAYS, measure
from pipeline.ways.cell import PHASES

from ...ranks import on_ranks
from ...records import rows_on_gloo, rows_read

TINY = Cell(size="tiny", batch_size_per_rank=1, context_length=16)
SMOKE = Settings(vocab_size=300, warmup_steps=2, steps=5, rounds=1)


@pytest.fixture(scope="module")
def rows(host, kept):
    """Measure a cell on two processes, without GPUs; keep its captures."""
    return rows_on_gloo(host, partial(measure, files_dir=kept), TINY, SMOKE)


@pytest.fixture(scope="module")
def steps(rows):
    return {(row["impl"], row["bucket_size_mb"]): row for row in rows if row["phase"] == "train_step"}


def test_every_variant_is_timed_averaging_ones_agree_and_all_reduces_are_counted(steps):
    assert list(steps) == [(variant.impl, variant.bucket_size_mb) for variant in VARIANTS]
    assert {row["status"] for row in steps.values()} <= {"ok", "unstable"}
    assert {row["tokens"] for row in steps.values()} == {2 * 1 * 16}  # ranks, batch, context
    assert all(row["n"] == 5 and math.isfinite(row["median_ms"]) for row in steps.values())
    averaging = [row for (impl, _), row in steps.items() if impl != "none"]
    assert all(row["rank_difference"] == 0 for row in averaging)
    assert all(row["variant_difference"] <= TOLERANCE["fp32"] for row in averaging)
    without = steps["none", None]
    assert without["rank_difference"] > 0.1
    assert without["variant_difference"] > 10 * max(TOLERANCE.values())
    tensors = 2 * 9 + 3  # two layers of nine, embedding, last norm and head
    assert steps["naive", None]["all_reduces"] == steps["overlap", None]["all_reduces"] == tensors
    assert steps["flat", None]["all_reduces"] == steps["bucketed", 1000]["all_reduces"] == 1
    assert steps["none", None]["all_reduces"] == 0
    for (impl, _), row in steps.items():
        assert row["all_reduce_bytes"] == (0 if impl == "none" else row["gradient_bytes"])


def test_phases_are_timed_and_captured_steps_show_overlap_and_are_kept(rows, kept):
    timed = {(row["impl"], row["phase"]) for row in rows if row.get("median_ms", 0) > 0}
    assert {phase for impl, phase in timed if impl == "torch"} == {"forward", "backward", "optimizer", "train_step"}
    assert {phase for impl, phase in timed if impl == "naive"} == {*PHASES, "train_step"}
    captured = {row["impl"]: row for row in rows if row["phase"] == "captured_step"}
    assert set(captured) == set(CAPTURED)
    assert all(row["communication_ms"] > 0 and row["computation_ms"] > 0 for row in captured.values())
    assert captured["naive"]["hidden_pct"] < 1
    for impl in CAPTURED:
        with gzip.open(kept / f"{impl}.perfetto.json.gz", "rt") as file:
            names = {event["name"] for event in json.load(file)["traceEvents"] if "name" in event}
        assert any(name.startswith("gloo:") for name in names)
        assert "aten::mm" in names


@on_ranks(1)
def test_torchs_ddp_is_measured_with_its_defaults_and_tuned(context):
    plain = {"vocab_size": 100, "context_length": 8, "batch_size": 1, "precision": "fp32", "device": "cpu"}
    options = {}
    for way in (way for way in WAYS if way.name.startswith("torch")):
        model = way.build(build_training_step(SIZES["tiny"], **plain)).model
        options[tuple(way.key.values())] = (model.broadcast_buffers, model.gradient_as_bucket_view)
    assert options[("torch", 25)] == (True, False)
    assert options[("torch_tuned", 25)] == (False, True)


@pytest.mark.gpu(count=2)
def test_on_gpus_variants_agree_and_phases_are_timed_by_events():
    rows = pd.DataFrame(rows_read(measure, Cell(size="micro", context_length=64), SMOKE))
    whole = rows[(rows["phase"] == "train_step") & (rows["clock"] == "host")].set_index(["impl", "bucket_size_mb"])
    averaging = whole.drop(index="none", level="impl")
    assert (averaging["rank_difference"] == 0).all()
    assert (averaging["variant_difference"] <= TOLERANCE["fp32"]).all()
    assert (averaging["all_reduce_bytes"] == averaging["gradient_bytes"]).all()
    assert (whole["peak_bytes"] > 0).all()
    assert set(rows.loc[rows["phase"] == "backward", "clock"]) == {"cuda_events"}
    captured = rows[rows["phase"] == "captured_step"].set_index("impl")
    assert (captured["communication_ms"] > 0).all()
    assert captured.loc["naive", "hidden_pct"] < 5
    assert (whole["gpu_busy_ms"] > whole["exposed_communication_ms"]).all()
    exposed_ms = whole["exposed_communication_ms"].droplevel("bucket_size_mb")
    assert exposed_ms["none"] == 0 < exposed_ms["naive"]
    assert (whole["launches"] > 100).all()
    assert whole["limited_by"].notna().all()
    assert (whole["mean_sm_clock_mhz"] > 0).all()
    assert whole["pinned_core"].nunique() == 1
