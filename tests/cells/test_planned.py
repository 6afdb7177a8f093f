import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.cells import planned
from pipeline.cells.config import Plan, StagePlan, load_plan
from pipeline.cells.disk import write_text
from pipeline.cells.planned import PlannedStage
from pipeline.formulas.parameters import parameter_count
from pipeline.formulas.sizes import SIZES
from pipeline.registry import stages
from pipeline.stages.timing import needs
from pipeline.stages.timing.cell import Cell, Settings

from ..complaints import complaint
from ..records import record

ROOT = Path(__file__).parents[2]
GB = 10**9
SETTINGS = Settings(budget_s=3.0)
ESTIMATE_S = needs.expected_s(Cell(), SETTINGS, on_gpu=False)


def planned_stage(stage, results, settings=None, grids=(), on_gpu=False, measure=True):
    declared = stages()[stage]
    stage_plan = StagePlan(stage, (declared.cell_type(),), settings or declared.settings_type(), grids=grids)
    return PlannedStage(declared, Plan("mine", measure, {stage: stage_plan}), results, on_gpu)


def expected_s(results, settings=SETTINGS, on_gpu=False):
    (seconds,) = planned_stage("timing", results, settings, on_gpu=on_gpu).expected_s().values()
    return seconds


def write_first_record(results, content):
    (path,) = planned_stage("timing", results).records()
    write_text(Path(path), content)


def record_with(seconds, **parts):
    return json.dumps(record(settings=asdict(SETTINGS), seconds=seconds, **parts))


def test_a_cell_is_expected_to_take_as_long_as_before_unless_it_failed(tmp_path):
    assert expected_s(tmp_path) == ESTIMATE_S
    write_first_record(tmp_path, record_with({"start_up": 1.5, "set_up": 0.5, "measuring": 40.0, "cpu_stolen": 3.0}))
    assert expected_s(tmp_path) == 42.0
    others = Settings(budget_s=1.0)  # the recorded time is for other settings
    assert expected_s(tmp_path, others) == needs.expected_s(Cell(), others, on_gpu=False)
    failure = record_with({"start_up": 1, "set_up": 1, "measuring": 1}, log="a.log")
    # A failure, a record without times, and damaged ones.
    for content in (failure, record_with({}), record_with({"start_up": "x", "measuring": 1}), "{", "[]", ""):
        write_first_record(tmp_path, content)
        assert expected_s(tmp_path) == ESTIMATE_S, content


def test_a_cell_without_a_record_is_missing_unless_the_run_measures(tmp_path):
    assert planned_stage("timing", tmp_path, measure=False).missing() == [{"stage": "timing", "cell": asdict(Cell())}]
    assert planned_stage("timing", tmp_path).missing() == []  # it will be measured


def test_a_cell_that_does_not_fit_into_memory_is_expected_to_be_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(planned, "memory_limit_bytes", lambda: 1000)
    assert expected_s(tmp_path) == planned.SKIPPED_S
    assert expected_s(tmp_path, on_gpu=True) > planned.SKIPPED_S


@pytest.mark.parametrize("stage", stages())
@pytest.mark.parametrize("on_gpu", [False, True])
def test_every_stage_says_how_long_its_default_cell_takes(stage, on_gpu, tmp_path):
    (seconds,) = planned_stage(stage, tmp_path, on_gpu=on_gpu).expected_s().values()
    assert 0 < seconds < (600 if on_gpu else 1e9)  # a CPU would take weeks for an 8B model


def test_a_value_outside_all_grids_uses_the_quickest_grid_that_accepts_it(tmp_path):
    grids = [
        {"seq_len": 4096, "dtype": "bf16"},
        {"seq_len": [128, 256], "dtype": ["fp32", "bf16"]},
        {"seq_len": 32, "num_heads": 3, "query_heads_per_kv_head": 2},
    ]
    flash = planned_stage("flash", tmp_path, grids=grids, on_gpu=True)

    def lengths(dtype):
        found = flash.records_of({"dtype": dtype})
        assert all(f"dtype={dtype}/" in path for path in found)
        return [int(path.split("seq_len=")[1].split("/")[0]) for path in found]

    assert lengths("fp16") == [4096]
    grids[0]["seq_len"] = [4096, 8192, 16384]
    assert lengths("fp16") == [128, 256]
    assert complaint(lengths, "fp8") == "flash: dtype must be one of bf16, fp16, fp32, got 'fp8'"
    grids.clear()
    assert complaint(lengths, "fp16") == "flash has no grid"


OVER_TWO = {"nodes": 2, "mpi": "srun", "tasks": 2, "tasks_per_gpu": 0}


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ({"gpus": 2}, {"gpu": 2, "nodes": 1}),
        ({"gpus": 2, "nodes": 1}, {"gpu": 2, "nodes": 1}),
        ({"gpus": 8, "nodes": 2}, {"gpu": 16, "gres": "gpu:8", **OVER_TWO}),
        ({"gpus": 0, "nodes": 2}, {"gpu": 0, "gres": None, **OVER_TWO}),
    ],
)
def test_a_cell_requests_gpus_and_over_several_nodes_a_task_on_each(tmp_path, monkeypatch, cell, expected):
    stage = planned_stage("collectives" if "nodes" in cell else "timing", tmp_path)
    monkeypatch.setattr(stage, "cell", lambda _wildcards: SimpleNamespace(**cell))
    assert stage.resources({}) == expected
    assert set(expected) <= set(stage.resource_names())


def needed_bytes(stage, settings=None, **axes):
    declared = stages()[stage]
    return declared.needed_bytes(declared.cell_type(**axes), declared.settings_type(**(settings or {})))


@pytest.mark.parametrize("scale", ["laptop", "smoke"])
def test_every_cell_of_the_cpu_scales_fits_into_four_gigabytes(scale):
    config = {"scale": scale, "measure": True, "overrides": {}}
    plan = load_plan(config, ROOT / "config/scales", ROOT / "workflow/schemas", stages(), False)
    for name, asked in plan.stages.items():
        assert all(stages()[name].needed_bytes(cell, asked.settings) < 4 * GB for cell in asked.cells)


@pytest.mark.parametrize("stage", ["timing", "profile", "memory", "ddp", "sharding", "fsdp"])
def test_training_needs_16_bytes_per_parameter_plus_activations(stage):
    ranks = 2 if stage in ("ddp", "sharding", "fsdp") else 1
    state = 16 * parameter_count(SIZES["xl"], vocab_size=10_000) * ranks
    assert state < needed_bytes(stage, size="xl") < 2 * state
    if ranks == 1:
        longer = needed_bytes(stage, size="xl", context_length=2048)
        assert longer > 1.3 * needed_bytes(stage, size="xl", context_length=256)


def test_attention_needs_three_score_matrices_and_gloo_a_buffer_per_rank():
    assert needed_bytes("attention", seq_len=65536) == pytest.approx(3 * 8 * 65536**2 * 4, rel=0.01)
    for dtype, size_bytes in (("fp32", 4), ("bf16", 2)):
        assert needed_bytes("flash", seq_len=65536, dtype=dtype) == pytest.approx(3 * 65536**2 * size_bytes, rel=0.01)
    assert needed_bytes("collectives", {"max_bytes": 10**9}, backend="gloo", world_size=4) == 4 * GB
    assert needed_bytes("collectives", backend="nccl") == 0
