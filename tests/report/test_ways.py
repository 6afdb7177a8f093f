import pandas as pd
import pytest

from pipeline.report import ways
from pipeline.report.versus import FASTER, UNDECIDED

from .frames import failed, folded, repeated, timed

BASE = "DDP"
DOUBTED = {"fully_shard": [310.0, 397.0, 378.0], BASE: [324.0, 387.0, 324.0]}


def steps(*rows):
    found = [{"clock": "host", "case": "a cell", "limited_by": "gpu", **row} for row in rows]
    frame = folded(*found, keys=("name", "case")).rename(columns={"name": "way"})
    return ways.whole_steps(frame, [BASE, "fully_shard"], BASE)


def verdicts(found):
    return found.dropna(subset="verdict").set_index(["case", "way"])["verdict"].to_dict()


def doubted():
    return [row for name, medians_ms in DOUBTED.items() for row in repeated(name, medians_ms)]


def test_ways_whose_repeats_contradict_each_other_are_not_ranked():
    assert verdicts(steps(*doubted())) == {("a cell", "fully_shard"): UNDECIDED}


def test_nor_is_a_single_process_of_another_cell_while_such_repeats_lie_far_apart():
    singles = [timed("fully_shard", 348.0, case="another"), timed(BASE, 387.0, case="another")]
    assert verdicts(steps(*doubted(), *singles))["another", "fully_shard"] == UNDECIDED
    assert verdicts(steps(*singles))["another", "fully_shard"] == FASTER


def test_a_way_is_held_against_the_base_of_its_own_cell_alone():
    found = steps(
        timed(BASE, 100.0),
        timed("fully_shard", 50.0),
        failed(BASE, case="another"),
        timed("fully_shard", 50.0, case="another"),
    )
    ratios = found.set_index(["case", "way"])["ratio"]
    assert ratios["a cell", "fully_shard"] == pytest.approx(2.0)
    assert pd.isna(ratios["another", "fully_shard"])


def test_the_host_limited_cell_is_told_last_however_often_it_was_repeated():
    limited = [row | {"limited_by": "host", "case": "on the host"} for row in doubted()]
    cases = ways.by_trust(steps(*limited, timed(BASE, 100.0), failed(BASE, case="failed")))
    assert [own["case"].iloc[0] for own in cases] == ["a cell", "on the host"]


def test_the_table_shows_what_each_repeat_gave_and_how_many_cards_did():
    rows = [row | {"cards": f"GPU {row['repeat']}"} for row in doubted()]
    table = ways.table("ways", steps(*rows), BASE, [])
    shown = table.rows.set_index("way")["each"]
    assert shown["fully_shard"] == "310 / 397 / 378"
    assert "GPU sets: 3" in table.caption


def test_what_limits_steps_is_a_column_where_it_differs_from_way_to_way():
    by_host = timed("fully_shard", 90.0, limited_by="host")
    tables = [
        ways.table("ways", steps(timed(BASE, 100.0), other), BASE, [])
        for other in (timed("fully_shard", 90.0), by_host)
    ]
    assert ["limited_by" in [column for _, column, _ in table.columns] for table in tables] == [False, True]


def test_columns_without_any_value_are_left_out_and_rows_without_a_time_stay():
    table = ways.table(
        "ways", steps(timed(BASE, 100.0, limited_by=None), failed("fully_shard", limited_by=None)), BASE, []
    )
    assert "limited_by" not in [column for _, column, _ in table.columns]
    assert "OOM" in table.markdown()


def test_weights_agree_only_within_what_rounding_allows():
    rows = pd.DataFrame({"ranks": [0.0, 0.0, None, 1.0], "ways": [0.0, 0.02, None, None], "weight_tolerance": 0.01})
    assert list(ways.agreement(rows, ["ranks", "ways"])) == ["yes", "no", None, "no"]
