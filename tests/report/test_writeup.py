import io
import sys
import types

import pandas as pd
import pytest

from pipeline.errors import UserError
from pipeline.report.rows import read_rows
from pipeline.report.writeup import findings, first_page, write_section, write_writeup


def line(**changes):
    return {
        "stage": "timing",
        "cell": "size=xl",
        "status": "ok",
        "reason": "",
        "started_at": "2026-01-01T10:00:00Z",
        "start_up_s": 3.0,
        "set_up_s": 1.0,
        "measuring_s": 6.0,
        "machine": "NVIDIA H200",
        "python": "3.12.3",
        "torch": "2.11.0",
        "triton": "3.6.0",
        "cuda": "13.0",
        "driver": "580",
        "digest": "abc",
        "commit": "1234567",
        "command": "python",
    } | changes


def test_every_status_is_counted_by_stage():
    cells = pd.DataFrame([line(), line(status="oom"), line(stage="flash"), line(stage="flash")])
    assert first_page(cells)["counts"] == [
        {"stage": "timing", "ok": 1, "unstable": 0, "skipped": 0, "oom": 1},
        {"stage": "flash", "ok": 2, "unstable": 0, "skipped": 0, "oom": 0},
    ]


def test_the_time_is_shared_out_between_start_set_up_and_measuring():
    page = first_page(pd.DataFrame([line(), line()]))
    assert page["total_s"] == 20
    assert page["shares_pct"] == {"start_up_s": 30, "set_up_s": 10, "measuring_s": 60}


@pytest.mark.parametrize(
    ("starts", "wall_s"),
    [(["10:00:00", "10:00:05"], 12), (["10:00:05", "10:00:00", "11:00:00"], 19), (["10:00:00", "10:00:00"], 7)],
)
def test_wall_time_leaves_pauses_out_and_counts_cells_side_by_side_once(starts, wall_s):
    cells = pd.DataFrame([line(started_at=f"2026-01-01T{start}Z") for start in starts])
    assert first_page(cells)["wall_s"] == wall_s


def test_a_short_cell_inside_a_long_one_ends_no_time():
    times = {"10:00:00": 20.0, "10:00:02": 1.0, "10:00:15": 6.0}
    cells = [line(started_at=f"2026-01-01T{start}Z", measuring_s=seconds) for start, seconds in times.items()]
    assert first_page(pd.DataFrame(cells))["wall_s"] == 22


def test_cells_of_several_commits_name_them_all():
    cells = pd.DataFrame([line(commit="bbb"), line(commit="aaa"), line(commit="bbb")])
    assert first_page(cells)["commits"] == ["aaa", "bbb"]


def test_what_pytorch_says_of_memory_that_ran_out_is_cut_short():
    said = "CUDA out of memory. Tried to allocate 2.00 MiB. If reserved but unallocated memory is large try setting it."
    table = pd.DataFrame([line(), line(status="oom", reason=said)]).to_csv(index=False)
    (cell,) = first_page(read_rows(io.StringIO(table)))["not_ok"]
    assert cell["reason"] == "CUDA out of memory"


def test_the_writeup_holds_machine_outcomes_and_sections(tmp_path):
    cells, section, out = tmp_path / "cells.csv", tmp_path / "timing.md", tmp_path / "writeup.md"
    skipped = line(status="skipped", reason="needs 4 GPUs, 1 present")
    pd.DataFrame([line(), skipped]).to_csv(cells, index=False)
    section.write_text("## Timing\n\nIt is fast.\n")
    write_writeup([section], [cells], "paper", {}, out)
    text = out.read_text()
    assert "at scale `paper`, from" in text
    for part in ("NVIDIA H200", "1234567", "It is fast.", "needs 4 GPUs, 1 present", "| timing | 1 | 0 | 1 | 0 |"):
        assert part in text


def test_what_nobody_asked_for_in_this_run_has_no_scale(tmp_path):
    pd.DataFrame([line()]).to_csv(tmp_path / "cells.csv", index=False)
    write_writeup([], [tmp_path / "cells.csv"], "", {}, tmp_path / "writeup.md")
    assert "Measured on **NVIDIA H200**, from" in (tmp_path / "writeup.md").read_text()


@pytest.mark.parametrize(("digest", "is_told"), [("abc", False), ("def", True)])
def test_a_stage_whose_code_has_changed_since_is_told_of(tmp_path, digest, is_told):
    cells, out = tmp_path / "cells.csv", tmp_path / "writeup.md"
    pd.DataFrame([line(), line(stage="flash")]).to_csv(cells, index=False)
    write_writeup([], [cells], "", {"timing": digest, "flash": "abc"}, out)
    assert ("the code that measures timing has changed" in out.read_text()) == is_told


def test_no_cells_is_one_line(tmp_path):
    (tmp_path / "cells.csv").write_text("")
    with pytest.raises(UserError, match=r"cells.csv is no table"):
        write_writeup([], [tmp_path / "cells.csv"], "paper", {}, tmp_path / "writeup.md")


def test_a_section_gets_the_rows_of_the_stages_that_it_reads_apart(tmp_path, monkeypatch):
    cell = types.SimpleNamespace(READS=("allreduce", "timing"))
    section = types.SimpleNamespace(
        build=lambda rows, _figures, others: f"{list(rows.x)} {list(others['allreduce'].x)} {others['timing'].empty}"
    )
    monkeypatch.setattr("pipeline.cells.sweep.declaration", lambda _name: cell)
    monkeypatch.setitem(sys.modules, "pipeline.stages.ddp.section", section)
    monkeypatch.setitem(sys.modules, "pipeline.stages.ddp", types.SimpleNamespace())
    own, beside = tmp_path / "ddp/a.csv", tmp_path / "allreduce/b.csv"
    for path, text in ((own, "x\n1\n"), (beside, "x\n2\n")):
        path.parent.mkdir()
        path.write_text(text)
    write_section("ddp", [own], [beside], tmp_path / "out.md", tmp_path / "figures")
    assert (tmp_path / "out.md").read_text() == "[1] [2] True"


def test_what_a_section_wants_on_the_first_page_stands_there_under_its_title():
    marked = "## All-reduce, timed\n\n<!-- findings -->\n- It is fast.\n<!-- end of findings -->\n\nMore.\n"
    silent = "## Nothing\n\n<!-- findings -->\n\n<!-- end of findings -->\n"
    found = [{"title": "All-reduce, timed", "anchor": "all-reduce-timed", "text": "- It is fast."}]
    assert findings([silent, marked, "## Plain\n"]) == found
