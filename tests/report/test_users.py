import pandas as pd
import pytest

from pipeline.registry import stages
from pipeline.report.section import Section, StageReport
from pipeline.report.users import first_table, parts, ranked, without_users

from .frames import failed, folded, timed

SHAPE = {"dtype": "bf16", "head_dim": 64, "batch_size": 1, "num_heads": 16}
SHAPE |= {"query_heads_per_kv_head": 1, "is_causal": True}
FLASH = stages()["flash"]


def rows(*rows):
    made = [SHAPE | row | {"impl": row["name"], "phase": "forward_backward"} for row in rows]
    return folded(*made, keys=("impl", "phase", "seq_len", *SHAPE))


def timed_at(seq_len, **each_ms):
    return [timed(name, ms, seq_len=seq_len) for name, ms in each_ms.items()]


def measured():
    long = [*timed_at(16384, triton=100.0, mine=90.0), failed("broken", "wrong", "dv is off", seq_len=16384)]
    return rows(*timed_at(1024, triton=10.0, eager=40.0, mine=20.0), *long, *timed_at(512, triton=5.0))


def test_own_implementations_are_ranked_and_compared_with_the_fastest_other():
    found = ranked(measured(), FLASH)
    assert list(found["seq_len"].unique()) == [16384, 1024]  # only problems that the user's own were measured on
    ours = found[found["is_users"]].set_index(["impl", "seq_len"])
    long, short, broken = (ours.loc[each] for each in (("mine", 16384), ("mine", 1024), ("broken", 16384)))
    assert (long["place"], long["verdict"]) == (1, "faster")
    assert (short["place"], short["of"], short["ratio"]) == (2, 3, pytest.approx(0.5))
    assert (pd.isna(broken["place"]), broken["reason"]) == (True, "dv is off")


def test_a_problem_is_named_by_what_differs_or_by_all_axes_if_it_is_the_only_one():
    assert set(ranked(measured(), FLASH)["problem"]) == {"seq_len=16384", "seq_len=1024"}
    single = ranked(rows(*timed_at(1024, triton=10.0, mine=20.0)), FLASH)
    assert all("head_dim=64 seq_len=1024" in each for each in single["problem"])


def test_own_rows_get_a_table_and_chart_and_are_hidden_from_the_section():
    others = without_users(measured(), FLASH)
    assert set(others["impl"]) == {"triton", "eager"}
    assert len(without_users(measured().assign(impl=None), FLASH)) == len(measured())  # rows without an implementation
    assert [[part.name for part in parts(rows, FLASH)] for rows in (measured(), others)] == [
        ["users", "users_chart"],
        [],
    ]


def test_only_the_unstable_one_of_two_compared_times_is_marked():
    frame = rows(timed("triton", 10.0, seq_len=1024, status="unstable"), timed("mine", 20.0, seq_len=1024))
    [line] = [line for line in parts(frame, FLASH)[0].markdown().splitlines() if line.startswith("| `mine` |")]
    assert ["| ~10.0 |" in line, "| 20.0 |" in line] == [True, True]


def test_an_unstable_time_has_no_rank():
    frame = rows(timed("triton", 10.0, seq_len=1024), timed("mine", 5.0, seq_len=1024, status="unstable"))
    places = ranked(frame, FLASH).set_index("impl")["place"]
    assert (places["triton"], pd.isna(places["mine"])) == (2, True)


def test_memory_and_bytes_sent_stand_beside_the_rank_where_a_stage_measures_them():
    cell = {"size": "tiny", "precision": "fp32", "world_size": 2, "batch_size_per_rank": 1, "context_length": 64}

    def of(impl, ms, held, sent):
        state = {"kind": "optimizer_state", "measured_bytes": held}
        return [
            timed(impl, ms, impl=impl, measures="time", clock="host", **cell),
            *(
                failed(impl, "ok", None, impl=impl, moment=moment, **state, **cell)
                for moment in ("before_step", "after_step")
            ),
            failed(impl, "ok", None, impl=impl, measures="traffic", sent_bytes=sent, **cell),
        ]

    frame = folded(
        *of("adamw", 10.0, 800, 5), *of("mine", 9.0, 400, 7), keys=("impl", "measures", "kind", "moment", *cell)
    )
    mine = ranked(frame, stages()["sharding"]).set_index("impl").loc["mine"]
    assert (mine["place"], mine["rank_bytes"], mine["sent_bytes"]) == (1, 400, 7)


def first_rows(frame):
    found = first_table([StageReport(FLASH, Section(""), (), "", frame)])
    return [(row["impl"], row["seq_len"]) for _, row in found.rows.iterrows()]


def test_the_first_screen_has_each_own_implementation_on_the_first_problem_or_where_it_is_wrong():
    assert first_rows(measured()) == [("broken", 16384), ("mine", 16384)]
    late = [
        *timed_at(16384, triton=100.0, mine=90.0),
        *timed_at(1024, triton=10.0),
        failed("mine", "wrong", "dv", seq_len=1024),
    ]
    assert first_rows(rows(*late)) == [("mine", 1024)]
    assert first_table([StageReport(FLASH, Section(""), (), "", without_users(measured(), FLASH))]).is_empty
