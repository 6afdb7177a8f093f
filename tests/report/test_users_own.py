import pandas as pd
import pytest

from pipeline.registry import stages
from pipeline.report.markup import Markdown
from pipeline.report.page_parts import Figure, Problem, Section, Table
from pipeline.report.users_own import ranking, with_users_own
from pipeline.stages.flash.cell import LEADERBOARD

FLASH = stages()["flash"]
SECTION = Section("Which?", "", Markdown("This."), problems=[Problem("leaderboard", Markdown("Ours takes 2 ms."))])


def rows(*, seq_len=1024, status="ok", reason=None, phase="forward_backward", **medians):
    """Make a row per implementation, by its median."""
    cell = {**LEADERBOARD, "dtype": "bf16", "repeat": 1, "seq_len": seq_len}
    times = pd.DataFrame(
        [
            {"impl": impl, "median_ms": ms, "q1_ms": 0.9 * ms, "q3_ms": 1.1 * ms, "status": status, "reason": reason}
            for impl, ms in medians.items()
        ]
    )
    return times.assign(**cell, phase=phase, machine="a GPU", torch="2.13")


def parts(frame, kind):
    return [part for part in with_users_own(SECTION, frame, FLASH).parts if isinstance(part, kind)]


def test_a_section_without_any_stays_as_it_is():
    assert with_users_own(SECTION, rows(triton=1.0, eager=2.0), FLASH) is SECTION
    assert with_users_own(SECTION, rows(mine=1.0), stages()["attention"]) is SECTION


def test_places_count_all_that_have_a_figure_at_the_same_problem_and_phase():
    frame = pd.concat(
        [
            rows(triton=1.0, mine=2.0, eager=3.0),
            rows(sdpa_flash=1.5, status="skipped", reason="no kernel"),
            rows(seq_len=2048, triton=5.0, mine=4.0),
            rows(mine=0.1, phase="forward"),
        ]
    )
    own = ranking(frame, FLASH, FLASH.subjects).query("own")
    assert [tuple(row) for row in own[["problem", "place", "of"]].to_numpy()] == [
        ("seq_len=2048", 1, 2),
        ("seq_len=1024", 2, 3),
    ]
    (table,) = parts(frame, Table)
    assert table.cells.to_dict("list") == {
        "problem": ["seq_len=2048", "seq_len=1024", "seq_len=1024"],
        "phase": ["forward_backward", "forward_backward", "forward"],
        "mine": ["4.00 (1 of 2, 0.800×)", "2.00 (2 of 3, 2.00×)", "0.100 (1 of 1)"],
        "fastest of the others": ["triton 5.00", "triton 1.00", "–"],
    }


def test_each_phase_is_compared_with_the_fastest_of_the_others_in_that_phase_and_rates_are_told():
    whole = rows(triton=3.0, eager=9.0, mine=6.0).assign(tflops_per_s=[400.0, 100.0, 200.0])
    forward = rows(phase="forward", triton=2.0, eager=1.0, mine=1.5)
    others_alone = rows(phase="backward", triton=2.0, eager=1.0)
    (table,) = parts(pd.concat([whole, forward, others_alone], ignore_index=True), Table)
    assert list(table.cells["phase"]) == ["forward_backward", "forward"]
    assert list(table.cells["mine"]) == ["6.00 (2 of 3, 2.00×, 200 TFLOP/s)", "1.50 (2 of 3, 1.50×)"]
    assert list(table.cells["fastest of the others"]) == ["triton 3.00", "eager 1.00"]


def test_the_leaderboards_problem_comes_first_and_its_answer_tells_the_place():
    frame = pd.concat([rows(seq_len=65536, triton=50.0, mine=40.0), rows(seq_len=16384, triton=1.0, mine=2.0)])
    section = with_users_own(SECTION, frame, FLASH)
    (answer,) = [problem.answer for problem in section.problems]
    assert answer == "Ours takes 2 ms. `mine` takes place 2 of 2 with 2.00 ms, the first, triton, 1.00 ms."
    assert section.users_own == [
        {
            "your own": "mine",
            "measured in": "flash seq_len=16384",
            "median": "2.00 ms",
            "place": "2 of 2",
            "fastest of the others": "triton, 1.00 ms",
            "your time over its": "2.00×",
        }
    ]
    (figure,) = parts(frame, Figure)
    assert figure.title.startswith("`mine` takes place 2 of 2")
    assert [bar.get_text() for bar in figure.drawing.axes[0].get_yticklabels()] == ["triton", "mine"]


def test_unstable_times_are_marked_wherever_a_place_is_told():
    section = with_users_own(SECTION, rows(triton=1.0, mine=2.0, status="unstable", seq_len=16384), FLASH)
    (row,) = section.users_own
    assert (row["median"], row["fastest of the others"]) == ("2.00 ms (unstable)", "triton, 1.00 ms (unstable)")
    (problem,) = section.problems
    assert problem.answer.endswith("place 2 of 2 with 2.00 ms (unstable), the first, triton, 1.00 ms (unstable).")
    (table,) = [part for part in section.parts if isinstance(part, Table)]
    assert table.cells.to_dict("records") == [
        {"problem": "–", "mine": "2.00 (unstable, 2 of 2, 2.00×)", "fastest of the others": "triton 1.00 (unstable)"}
    ]


def test_where_keys_are_shared_none_is_ranked_nor_called_a_failure():
    shared = rows(mine=float("nan"), status="skipped", reason="no").assign(query_heads_per_kv_head=4)
    section = with_users_own(SECTION, pd.concat([rows(triton=1.0, mine=2.0), shared]), FLASH)
    assert not section.headline
    assert [row["place"] for row in section.users_own] == ["2 of 2"]


def test_a_wrong_one_is_told_once_with_its_reason_and_is_not_ranked():
    wrong = [rows(mine=float("nan"), seq_len=length, status="wrong", reason="dq is off by 3|1") for length in (16, 32)]
    frame = pd.concat([rows(triton=1.0, eager=2.0, seq_len=16), *wrong])
    section = with_users_own(SECTION, frame, FLASH)
    assert section.headline == [Markdown("Your `mine` is wrong: dq is off by 3&#124;1.")]
    assert not parts(frame, Table) + parts(frame, Figure)
    assert not section.users_own


def test_what_is_told_of_one_with_a_figure_stands_before_its_place():
    frame = pd.concat([rows(triton=1.0), rows(mine=2.0, reason="it set num_threads from 2 to 1")])
    section = with_users_own(SECTION, frame, FLASH)
    assert section.parts[0] == "Of your `mine`: it set num_threads from 2 to 1."
    assert not section.headline


@pytest.mark.parametrize("sizes", [(1, 10), (1, 1000)])
def test_of_one_with_buckets_the_fastest_is_told(sizes):
    ddp = stages()["ddp"]
    lines = [
        {"impl": impl, "bucket_size_mb": size, "median_ms": ms, "q1_ms": ms, "q3_ms": ms}
        for impl, size, ms in [
            ("mine", sizes[0], 3.0),
            ("mine", sizes[1], 2.0),
            ("flat", None, 2.5),
            ("none", None, 1.0),
        ]
    ]
    cell = {"precision": "fp32", "size": "xl", "batch_size_per_rank": 2, "context_length": 512, "world_size": 2}
    row = {"repeat": 1, "phase": "train_step", "clock": "host"}
    frame = pd.DataFrame(lines).assign(**cell, **row, status="ok", reason=None, machine="a GPU", torch="2.13")
    section = with_users_own(SECTION, frame, ddp)
    (row,) = section.users_own
    assert (row["your own"], row["place"]) == (f"mine (bucket_size_mb {sizes[1]})", "1 of 3")
    assert (row["median"], row["fastest of the others"]) == ("2.00 ms", "flat, 2.50 ms")
