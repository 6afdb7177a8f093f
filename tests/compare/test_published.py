import pandas as pd
import pytest

from pipeline.cells import fields
from pipeline.cells.rows import columns
from pipeline.compare.published import FILE, load
from pipeline.registry import stages

EVERY = pd.read_csv(FILE, dtype=str, keep_default_na=False)


def test_every_value_is_of_words_that_its_stage_knows_and_in_a_unit_of_its_columns():
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


def test_no_value_stands_twice_and_all_are_numbers_above_zero():
    assert not EVERY.duplicated(["source", "machine", "stage", "of", "quantity"]).any()
    assert (EVERY["value"].astype(float) > 0).all()


def test_the_words_of_a_stage_are_columns():
    row = (
        load("timing")
        .query("machine == 'A100' and precision == 'fp32' and size == 'xl' and phase == 'forward'")
        .iloc[0]
    )
    assert (row["source"], row["quantity"], row["value"]) == ("000", "mean_ms", pytest.approx(149))


def test_a_stage_without_values_has_none():
    assert load("levers").empty
