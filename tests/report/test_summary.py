import json

import pandas as pd
import pytest
from jsonschema import ValidationError

from pipeline.report.summary import SCHEMA, VERSION
from pipeline.report.writeup import write_writeup

from .test_writeup import action, leave_section, line

MODEL = {
    "size": "xl",
    "precision": "bf16",
    "context_length": 1024,
    "batch_size": 4,
    "status": "ok",
    "median_ms": 310.0,
    "q1_ms": 308.0,
    "q3_ms": 311.0,
    "tokens_per_s": 13312.0,
    "model_tflops_per_s": 171.0,
    "mfu_pct": 17.0,
    "times_fp32": 4.33,
    "times_tf32": None,
    "peak_bytes": 77_600_000_000,
    "gpu_idle_pct": None,
    "limited_by": None,
    "power_capped": False,
    "tuned_tokens_per_s": 29_800.0,
    "tuned_peak_bytes": 43_100_000_000,
    "tuned_power_capped": True,
    "tuned_with": "fused+sdpa+compile+graph",
}


def summary_of(tmp_path, cells, **parts):
    pd.DataFrame(cells).to_csv(tmp_path / "cells.csv", index=False)
    out = tmp_path / "summary.json"
    section, page = leave_section(tmp_path, **parts), tmp_path / "writeup.md"
    write_writeup([section], [tmp_path / "cells.csv"], "paper", [], page, out)
    return json.loads(out.read_text())


def test_the_summary_has_the_first_screen_s_figures_as_numbers(tmp_path):
    first = action(1, "First")
    found = summary_of(
        tmp_path,
        [line(), line(status="oom"), line(status="failed")],
        models=(MODEL,),
        actions=(action(3, "Last"), first),
    )
    assert found["version"] == VERSION
    assert found["machines"] == ["NVIDIA H200"]
    assert found["software"]["torch"] == ["2.11.0"]
    assert found["cells"] == {"ok": 1, "unstable": 0, "skipped": 0, "oom": 1, "wrong": 0, "failed": 1}
    assert found["models"] == [MODEL]
    assert found["actions"][0] == {name: first[name] for name in ("rank", "what", "why")}
    assert found["scale"] == "paper"


@pytest.mark.parametrize(
    "wrong", [{"tokens_per_s": 0}, {"mfu_pct": "7%"}, {"limited_by": "me"}, {"peak_bytes": 1.5}, {"more": 1}]
)
def test_figures_that_the_schema_does_not_allow_are_not_written(tmp_path, wrong):
    with pytest.raises(ValidationError):
        summary_of(tmp_path, [line()], models=({**MODEL, **wrong},))
    assert not (tmp_path / "summary.json").exists()


def test_a_run_outside_of_a_clone_has_no_commit(tmp_path):
    assert summary_of(tmp_path, [line(commit=None)])["commits"] == []


def test_the_schema_names_the_version():
    assert json.loads(SCHEMA.read_text())["properties"]["version"]["const"] == VERSION
