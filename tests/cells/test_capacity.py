from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from pipeline.cells import capacity, sweep
from pipeline.cells.capacity import too_large
from pipeline.cells.config import read_scale
from pipeline.cells.stage import Stage
from pipeline.formulas.parameters import parameter_count
from pipeline.formulas.sizes import SIZES
from pipeline.registry import stages

ROOT = Path(__file__).parents[2]
GB = 10**9


@pytest.fixture
def memory(monkeypatch):
    """Return a function that says how much memory there is, and how much of it is free."""

    def give(allowed, free):
        monkeypatch.setattr(capacity, "memory_limit_bytes", lambda: allowed)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free))

    return give


def needing(monkeypatch, needed):
    monkeypatch.setattr(Stage, "needed_bytes", lambda *_: needed)
    return too_large(stages()["timing"], None, None)


def test_what_this_machine_cannot_hold_is_refused_with_the_figures(monkeypatch, memory, capsys):
    memory(allowed=16 * GB, free=9 * GB)
    told = "takes 33.6 GB of memory or more, this machine has 16.0 GB; `measure --force` tries it"
    assert str(needing(monkeypatch, 33_600_000_000)) == told
    assert capsys.readouterr().err == ""


def test_what_is_not_free_now_is_measured_with_a_warning(monkeypatch, memory, capsys):
    memory(allowed=16 * GB, free=9 * GB)
    assert needing(monkeypatch, 12 * GB) is None
    assert capsys.readouterr().err == "takes 12.0 GB of memory or more, of which 9.0 GB are free: it may be killed\n"


def test_what_fits_is_measured_in_silence(monkeypatch, memory, capsys):
    memory(allowed=16 * GB, free=9 * GB)
    assert needing(monkeypatch, 8 * GB) is None
    assert capsys.readouterr().err == ""


def test_a_stage_that_does_not_say_is_never_refused(memory):
    memory(allowed=1, free=1)
    assert too_large(Stage("silent", "pipeline.silent"), None, None) is None


def needed_bytes(stage, settings=None, **axes):
    declared = stages()[stage]
    return declared.needed_bytes(declared.cell_type(**axes), declared.settings_type(**(settings or {})))


@pytest.mark.parametrize("scale", ["laptop", "smoke"])
def test_every_cell_of_the_scales_for_a_cpu_fits_into_four_gigabytes(scale):
    asked = read_scale(ROOT / f"config/scales/{scale}.yaml", ROOT / "workflow/schemas/scale.schema.yaml")
    for name, words in asked.items():
        stage = stages()[name]
        settings = stage.settings_type(**words.get("settings", {}))
        cells = sweep.expand(stage.cell_type, words["grids"], "")
        assert all(stage.needed_bytes(cell, settings) < 4 * GB for cell in cells)


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


def test_of_a_compiled_step_only_the_state_is_certain():
    assert needed_bytes("timing", size="xl", mode="compiled") < needed_bytes("timing", size="xl")


def test_attention_takes_three_score_matrices():
    assert needed_bytes("attention", seq_len=65536) == pytest.approx(3 * 8 * 65536**2 * 4, rel=0.01)
    assert needed_bytes("flash", seq_len=65536, dtype="fp32") == pytest.approx(3 * 65536**2 * 4, rel=0.01)
    assert needed_bytes("flash", seq_len=65536, dtype="bf16") == pytest.approx(3 * 65536**2 * 2, rel=0.01)


def test_an_all_reduce_takes_a_buffer_a_rank_on_the_host_by_gloo_alone():
    assert needed_bytes("allreduce", {"max_bytes": 10**9}, backend="gloo", world_size=4) == 4 * GB
    assert needed_bytes("allreduce", backend="nccl") == 0
