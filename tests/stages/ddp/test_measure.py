import gzip
import json
import math

import pandas as pd
import pytest
import torch

from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.instruments.sampling.weight_differences import TOLERANCE
from pipeline.stages.ddp.cell import CAPTURED, VARIANTS, Cell, Settings, variant_key
from pipeline.stages.ddp.measure import measure

from ...records import rows_read


@pytest.fixture(scope="module")
def steps(smoke_rows):
    """The rows of the whole steps by variant."""
    return {(row["impl"], row["bucket_size_mb"]): row for row in smoke_rows if row["phase"] == "train_step"}


def test_every_variant_has_a_figure(steps):
    assert list(steps) == [tuple(variant_key(variant).values()) for variant in VARIANTS]
    assert {row["status"] for row in steps.values()} <= {"ok", "unstable"}
    assert {row["tokens"] for row in steps.values()} == {2 * 1 * 16}  # ranks, batch, context
    assert all(row["n"] == 5 and math.isfinite(row["median_ms"]) for row in steps.values())


def test_weights_of_all_variants_that_average_agree(steps):
    averaging = [row for (impl, _), row in steps.items() if impl != "none"]
    assert all(row["rank_difference"] == 0 for row in averaging)
    assert all(row["variant_difference"] <= TOLERANCE["fp32"] for row in averaging)
    without = steps["none", None]
    assert without["rank_difference"] > 0.1
    assert without["variant_difference"] > 10 * max(TOLERANCE.values())


def test_the_number_of_all_reduces_is_that_of_the_variant(steps):
    tensors = 2 * 9 + 3  # two layers of nine, embedding, last norm and head
    assert steps["naive", None]["all_reduces"] == steps["overlap", None]["all_reduces"] == tensors
    assert steps["flat", None]["all_reduces"] == steps["bucketed", 1000]["all_reduces"] == 1
    assert steps["none", None]["all_reduces"] == 0
    for (impl, _), row in steps.items():
        assert row["all_reduce_bytes"] == (0 if impl == "none" else row["gradient_bytes"])


def test_phases_are_timed_apart_and_torchs_has_no_wait_of_its_own(smoke):
    times_ms = smoke.pivot_table(index="impl", columns="phase", values="median_ms")
    assert times_ms.loc["torch", ["forward", "backward", "communication", "optimizer"]].isna().to_dict() == {
        "forward": False,
        "backward": False,
        "communication": True,
        "optimizer": False,
    }
    assert times_ms.loc["naive", ["forward", "backward", "communication", "optimizer"]].gt(0).all()


def test_naive_communication_is_captured_and_hides_nothing(smoke_rows):
    captured = {row["impl"]: row for row in smoke_rows if row["phase"] == "captured_step"}
    assert set(captured) == set(CAPTURED)
    assert all(row["communication_ms"] > 0 and row["computation_ms"] > 0 for row in captured.values())
    assert captured["naive"]["hidden_pct"] < 1


def test_captures_are_kept_for_perfetto(smoke_rows, kept):
    for impl in CAPTURED:
        with gzip.open(kept / f"{impl}.perfetto.json.gz", "rt") as file:
            names = {event["name"] for event in json.load(file)["traceEvents"] if "name" in event}
        assert any(name.startswith("gloo:") for name in names)
        assert "aten::mm" in names


@pytest.mark.gpu
def test_on_gpus_the_same_holds_and_phases_are_told_apart_by_events():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs 2 GPUs")
    settings = Settings(vocab_size=300, warmup_steps=2, steps=5, rounds=1)
    rows = pd.DataFrame(rows_read(measure, Cell(size="micro", context_length=64), settings, Stopwatch()))
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
    assert exposed_ms["none"] == 0
    assert exposed_ms["naive"] > 0
    assert (whole["launches"] > 100).all()
    assert whole["limited_by"].notna().all()
    assert (whole["mean_sm_clock_mhz"] > 0).all()
    assert whole["pinned_core"].nunique() == 1
