import json

import pandas as pd
import pytest

from pipeline.cells.layout import record_path
from pipeline.results import load
from pipeline.stages.timing.cell import Cell

from .complaints import complaint
from .records import failed_row, record, timed_row


@pytest.fixture
def results(tmp_path):
    timed = timed_row("forward", samples_ms=[1.0, 2.0, 3.0], measured_peak_tflops_per_s=2)
    path = record_path(tmp_path / "results", "timing", Cell())
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record(rows=[timed, failed_row(phase="backward")])))
    return tmp_path / "results"


def test_a_frame_has_the_types_that_the_stage_declares(results):
    rows = load("timing", results)
    dtypes = {"size": "string", "context_length": "Int64", "n": "Int64", "median_ms": "Float64"}
    dtypes |= {"samples_ms": "object", "setting_vocab_size": "Int64", "machine": "string"}
    assert {name: str(rows[name].dtype) for name in dtypes} == dtypes
    assert list(rows["phase"]) == ["forward", "backward"]
    assert (rows["median_ms"][0], rows["samples_ms"][0]) == (2.0, [1.0, 2.0, 3.0])
    assert pd.isna(rows["n"][1])


def test_a_stage_without_records_is_empty_and_a_mistake_is_one_line(results, tmp_path):
    assert load("flash", results).empty
    assert complaint(load, "timign", results).startswith("unknown stage 'timign'")
    assert "holds no records" in complaint(load, "timing", tmp_path / "results/timing/cells")
