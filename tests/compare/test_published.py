from pathlib import Path

import pandas as pd
import pytest

from pipeline.cells import fields
from pipeline.cells.rows import columns
from pipeline.compare import page, published
from pipeline.compare.published import FILE, comparison_table, load
from pipeline.compare.runs import Run
from pipeline.registry import stages
from pipeline.report.frame import matching
from pipeline.snapshots.records import load_records

ROOT = Path(__file__).parents[2]

XL = {"precision": "fp32", "size": "xl", "context_length": 256, "mode": "eager", "batch_size": 4, "warmup_steps": 5}
XL |= {"mode": "eager", "phase": "forward", "clock": "host"}
EVERY = pd.read_csv(FILE, dtype=str, keep_default_na=False)


@pytest.fixture(scope="module")
def run():
    """Two stages of a published run: timing, published by most write-ups, and the one that the course published."""
    records = load_records(ROOT / "reports/h200", stages())
    return Run("h200", ROOT, [each for each in records if each["stage"] in ("timing", "step8b")], stages())


@pytest.fixture(scope="module")
def table(run, make_run):
    return comparison_table([run, make_run("levers", {"eager": [1.0]})])


def test_every_published_value_is_positive_unique_and_fits_the_rows_of_its_stage():
    assert not EVERY.duplicated(["source", "machine", "stage", "of", "quantity"]).any()
    assert (EVERY["value"].astype(float) > 0).all()
    assert load("levers").empty
    for stage, of, quantity in EVERY[["stage", "of", "quantity"]].drop_duplicates().itertuples(index=False):
        known, words = stages()[stage], dict(word.split("=") for word in of.split())
        fields.build(known.cell_type, {name: word for name, word in words.items() if name in known.axes}, of)
        keys = {name: word for name, word in words.items() if name not in known.axes}
        assert any(accepts(each, keys) for each in known.row_types.types.values()), of
        assert quantity in known.table_columns


def accepts(row_type, keys):
    known = columns(row_type)
    return set(keys) <= set(row_type.KEYS) and all(
        known[name].accepts(known[name].type(float(word)) if known[name].type in (int, float) else word)
        for name, word in keys.items()
    )


def test_published_values_are_beside_their_rows_with_one_column_per_source(run, table):
    rows = table.rows
    xl = rows["cell"].str.contains("precision=fp32 size=xl context_length=256") & rows["row"].eq("eager forward host")
    [line] = rows[xl].to_dict("records")
    [row] = matching(run.frames["timing"], XL).to_dict("records")
    assert line["write-up 000 (A100, other code)"] == pytest.approx(149)
    assert line["h200"] == pytest.approx(row["mean_ms"])
    assert rows["the course (B200, other code)"].dropna().tolist() == [10_000]
    assert not rows.duplicated(["stage", "cell", "row", "quantity"]).any()
    assert "levers" not in rows


def test_a_value_that_fits_several_rows_equally_well_is_left_out(run, monkeypatch):
    value = {"source": "x", "machine": "", "stage": "timing", "quantity": "mean_ms", "value": 1.0}
    for of, lines in (("size=xl mode=eager phase=forward", 1), ("size=xl phase=forward", 0)):
        values = pd.DataFrame([value | {"of": of}])
        monkeypatch.setattr(published, "load", lambda stage, values=values: values[values["stage"] == stage])
        assert len(comparison_table([run]).rows) == lines


def test_published_values_are_shown_without_verdicts(make_run, table):
    run = make_run("levers", {"eager": [1.0]})
    html = page.html([run], page.comparison([run], {}, None, table), page.filterable_tables(None, table))
    assert "write-up 004" in html
    assert "<option>published</option>" in html
    assert "verdict" not in [head for head, _, _ in table.columns]
    assert "write-up" not in page.markdown(page.comparison([run], {}, None, None))
