from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from pipeline.cells import capacity
from pipeline.cells.capacity import too_large
from pipeline.cells.config import load_plan
from pipeline.cells.stage import Stage
from pipeline.formulas.parameters import parameter_count
from pipeline.formulas.sizes import SIZES
from pipeline.registry import stages

ROOT = Path(__file__).parents[2]
GB = 10**9


REFUSED = "takes 33.6 GB of memory or more, this machine has 16.0 GB; `measure --force` tries it"
WARNED = "takes 12.0 GB of memory or more, of which 9.0 GB are free: it may be killed\n"


@pytest.mark.parametrize(
    ("needed_bytes", "refused", "warned"),
    [(33_600_000_000, REFUSED, ""), (12 * GB, "None", WARNED), (8 * GB, "None", ""), (0, "None", "")],
)
def test_what_this_machine_cannot_hold_is_refused_and_what_is_not_free_now_measured_with_a_warning(
    monkeypatch, capsys, needed_bytes, refused, warned
):
    monkeypatch.setattr(capacity, "memory_limit_bytes", lambda: 16 * GB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=9 * GB))
    monkeypatch.setattr(Stage, "needed_bytes", lambda *_: needed_bytes)
    assert str(too_large(stages()["timing"], None, None)) == refused
    assert capsys.readouterr().err == warned


def needed_bytes(stage, settings=None, **axes):
    declared = stages()[stage]
    return declared.needed_bytes(declared.cell_type(**axes), declared.settings_type(**(settings or {})))


@pytest.mark.parametrize("scale", ["laptop", "smoke"])
def test_every_cell_of_the_scales_for_a_cpu_fits_into_four_gigabytes(scale):
    config = {"scale": scale, "measure": True, "overrides": {}}
    plan = load_plan(config, ROOT / "config/scales", ROOT / "workflow/schemas", stages(), False)
    for name, planned in plan.stages.items():
        assert all(stages()[name].needed_bytes(cell, planned.settings) < 4 * GB for cell in planned.cells)


@pytest.mark.parametrize("stage", ["timing", "profile", "memory", "ddp", "sharding", "fsdp"])
def test_training_takes_sixteen_bytes_a_parameter_and_what_the_forward_pass_keeps(stage):
    ranks = 2 if stage in ("ddp", "sharding", "fsdp") else 1
    state = 16 * parameter_count(SIZES["xl"], vocab_size=10_000) * ranks
    assert state < needed_bytes(stage, size="xl") < 2 * state
    if ranks == 1:
        longer = needed_bytes(stage, size="xl", context_length=2048)
        assert longer > 1.3 * needed_bytes(stage, size="xl", context_length=256)


def test_a_forward_pass_takes_less_than_a_step_and_checkpoints_less_than_all():
    step = needed_bytes("memory", size="xl", context_length=1024)
    forward = needed_bytes("memory", size="xl", context_length=1024, mode="forward")
    inference = needed_bytes("memory", size="xl", context_length=1024, mode="inference")
    assert inference < forward < step
    assert needed_bytes("memory", size="xl", context_length=1024, checkpoint_every=1) < step


def test_attention_takes_three_score_matrices_and_an_all_reduce_by_gloo_a_buffer_a_rank():
    assert needed_bytes("attention", seq_len=65536) == pytest.approx(3 * 8 * 65536**2 * 4, rel=0.01)
    for dtype, size_bytes in (("fp32", 4), ("bf16", 2)):
        assert needed_bytes("flash", seq_len=65536, dtype=dtype) == pytest.approx(3 * 65536**2 * size_bytes, rel=0.01)
    assert needed_bytes("collectives", {"max_bytes": 10**9}, backend="gloo", world_size=4) == 4 * GB
    assert needed_bytes("collectives", backend="nccl") == 0
