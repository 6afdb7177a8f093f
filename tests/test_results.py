import json

import pandas as pd
import pytest

from pipeline.errors import UserError
from pipeline.results import load

from .records import failed_row, record, timed_row


@pytest.fixture
def results(tmp_path):
    """A folder with one record: a row with all its values, and one without."""
    timed = timed_row("forward", samples_ms=[1.0, 2.0, 3.0], measured_peak_tflops_per_s=2)
    whole = record(rows=[timed, failed_row(phase="backward")])
    words = "/".join(f"{axis}={value}" for axis, value in whole["cell"].items())
    path = tmp_path / f"results/timing/cells/{words}.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(whole))
    return tmp_path / "results"


def test_a_frame_has_the_types_that_the_stage_declares(results):
    rows = load("timing", results)
    assert list(rows["phase"]) == ["forward", "backward"]
    dtypes = {name: str(rows[name].dtype) for name in rows}
    expected = {
        "size": "string",
        "context_length": "Int64",
        "n": "Int64",
        "median_ms": "Float64",
        "samples_ms": "object",
    }
    assert {name: dtypes[name] for name in expected} == expected
    assert dtypes["setting_vocab_size"] == "Int64"
    assert dtypes["machine"] == "string"
    assert rows["median_ms"][0] == 2.0
    assert rows["samples_ms"][0] == [1.0, 2.0, 3.0]
    assert pd.isna(rows["n"][1])


def test_what_is_not_there_is_one_line(results, tmp_path):
    assert load("flash", results).empty
    with pytest.raises(UserError, match="unknown stage 'timign'"):
        load("timign", results)
    with pytest.raises(UserError, match="holds no records"):
        load("timing", tmp_path / "results/timing/cells")
