import json
from dataclasses import asdict

import pytest

from pipeline.cells import expected
from pipeline.errors import UserError
from pipeline.registry import stages
from pipeline.stages.timing import needs
from pipeline.stages.timing.cell import Cell, Settings

from ..records import record

SETTINGS = Settings(budget_s=3.0)
TOLD_S = needs.expected_s(Cell(), SETTINGS, on_gpu=False)


def expected_of(path, settings=SETTINGS):
    return expected.expected_s(stages()["timing"], {path: Cell()}, settings, on_gpu=False)[str(path)]


def leave_record(path, seconds, settings=SETTINGS):
    path.write_text(json.dumps(record(settings=asdict(settings), seconds=seconds)))


def test_a_cell_takes_what_it_took_before(tmp_path):
    path = tmp_path / "cell.json"
    assert expected_of(path) == TOLD_S
    leave_record(path, {"start_up": 1.5, "set_up": 0.5, "measuring": 40.0, "cpu_stolen": 3.0})
    assert expected_of(path) == 42.0
    others = Settings(budget_s=1.0)  # with other settings it takes another time
    assert expected_of(path, others) == needs.expected_s(Cell(), others, on_gpu=False)


def test_a_cell_that_does_not_fit_into_memory_takes_no_time(tmp_path, monkeypatch):
    monkeypatch.setattr(expected, "memory_limit_bytes", lambda: 1000)
    assert expected_of(tmp_path / "cell.json") == expected.SKIPPED_S
    (on_gpu_s,) = expected.expected_s(stages()["timing"], {tmp_path: Cell()}, SETTINGS, on_gpu=True).values()
    assert on_gpu_s > expected.SKIPPED_S


UNTOLD = [
    json.dumps(record(settings=asdict(SETTINGS), seconds=part)) for part in ({}, {"start_up": "x", "measuring": 1})
]


@pytest.mark.parametrize("content", [*UNTOLD, "{", "[]", '{"schema_version": 99}', ""])
def test_a_record_that_does_not_tell_or_is_damaged_is_passed_over(tmp_path, content):
    (tmp_path / "cell.json").write_text(content)
    assert expected_of(tmp_path / "cell.json") == TOLD_S


@pytest.mark.parametrize("stage", stages().values(), ids=stages())
@pytest.mark.parametrize("on_gpu", [False, True])
def test_every_stage_says_how_long_its_default_cell_takes(stage, on_gpu, tmp_path):
    cell, settings = stage.cell_type(), stage.settings_type()
    (seconds,) = expected.expected_s(stage, {tmp_path / "cell.json": cell}, settings, on_gpu).values()
    assert 0 < seconds < (600 if on_gpu else 1e9)  # a CPU would take weeks for one of an 8B model


def test_a_value_that_no_grid_has_is_measured_on_the_quickest_that_takes_it():
    grids = [
        {"seq_len": 4096, "dtype": "bf16"},
        {"seq_len": [128, 256], "dtype": ["fp32", "bf16"]},
        {"seq_len": 32, "num_heads": 3, "query_heads_per_kv_head": 2},
    ]
    flash = stages()["flash"]

    def quickest(value):
        return expected.quickest_grid(flash, grids, "dtype", value, flash.settings_type(), on_gpu=True)

    assert quickest("fp16") == [flash.cell_type(dtype="fp16", seq_len=4096)]
    grids[0]["seq_len"] = [4096, 8192, 16384]
    assert quickest("fp16") == [flash.cell_type(dtype="fp16", seq_len=length) for length in (128, 256)]
    with pytest.raises(UserError, match="flash: dtype must be one of bf16, fp16, fp32, got 'fp8'"):
        quickest("fp8")
