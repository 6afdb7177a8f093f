import pandas as pd
import pytest

from pipeline.registry import stages
from pipeline.report.own import first_table, parts, ranked, without_own
from pipeline.report.section import Section, Told

from .frames import failed, folded, timed

SHAPE = {"dtype": "bf16", "head_dim": 64, "batch_size": 1, "num_heads": 16}
SHAPE |= {"query_heads_per_kv_head": 1, "is_causal": True}
FLASH = stages()["flash"]


def rows(*rows):
    made = [
        {**SHAPE, "impl": row.pop("name"), **row, "phase": "forward_backward", "reason": row["reason"]} for row in rows
    ]
    return folded(*made, keys=("impl", "phase", "seq_len", *SHAPE))


def measured():
    return rows(
        timed("triton", 10.0, seq_len=1024),
        timed("eager", 40.0, seq_len=1024),
        timed("mine", 20.0, seq_len=1024),
        timed("triton", 100.0, seq_len=16384),
        timed("mine", 90.0, seq_len=16384),
        failed("broken", "wrong", "dv is off", seq_len=16384),
        timed("triton", 5.0, seq_len=512),
    )


def test_each_of_the_user_s_own_is_placed_among_all_and_beside_the_fastest_other_the_first_problem_leading():
    found = ranked(measured(), FLASH)
    assert list(found["seq_len"].unique()) == [16384, 1024]  # and none that nobody brought anything for
    own = found[found["own"]].set_index(["impl", "seq_len"])
    assert (own.loc[("mine", 1024), "place"], own.loc[("mine", 1024), "of"]) == (2, 3)
    assert own.loc[("mine", 16384), "place"] == 1
    assert own.loc[("mine", 1024), "ratio"] == pytest.approx(0.5)
    assert own.loc[("mine", 16384), "verdict"] == "faster"
    broken = own.loc[("broken", 16384)]
    assert pd.isna(broken["place"])
    assert broken["reason"] == "dv is off"


def test_a_problem_is_named_by_what_differs_and_a_single_one_by_all_its_axes():
    assert set(ranked(measured(), FLASH)["problem"]) == {"seq_len=16384", "seq_len=1024"}
    single = ranked(rows(timed("triton", 10.0, seq_len=1024), timed("mine", 20.0, seq_len=1024)), FLASH)
    assert all("head_dim=64 seq_len=1024" in each for each in single["problem"])


def test_a_section_gets_a_table_and_a_chart_of_them_or_nothing_and_does_not_see_them_itself():
    others = without_own(measured(), FLASH)
    assert set(others["impl"]) == {"triton", "eager"}
    assert len(without_own(measured().assign(impl=None), FLASH)) == len(measured())  # rows of no implementation
    assert [[part.name for part in parts(rows, FLASH)] for rows in (measured(), others)] == [["own", "own_chart"], []]


def test_an_unstable_time_of_the_fastest_other_is_marked_as_its_own():
    frame = rows(timed("triton", 10.0, seq_len=1024, status="unstable"), timed("mine", 20.0, seq_len=1024))
    [line] = [line for line in parts(frame, FLASH)[0].markdown().splitlines() if line.startswith("| `mine` |")]
    assert ["| ~10.0 |" in line, "| 20.0 |" in line] == [True, True]


def test_the_first_screen_has_each_at_the_first_problem():
    found = first_table([Told(FLASH, Section(""), (), "", measured())]).rows
    assert [(row["impl"], row["seq_len"]) for _, row in found.iterrows()] == [("mine", 16384), ("broken", 16384)]
    assert first_table([Told(FLASH, Section(""), (), "", without_own(measured(), FLASH))]).is_empty
