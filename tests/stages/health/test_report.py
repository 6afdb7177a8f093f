from dataclasses import asdict

import numpy as np
import pytest

from pipeline.registry import stages
from pipeline.report.page_request import PageRequest
from pipeline.report.pages import write_pages
from pipeline.stages.health.cell import Cell, Settings
from pipeline.stages.health.report import build

from ...records import record
from ...report.runs import GPU, written
from ..frames import gaps, shown, table
from .conftest import UNTOLD, recorded


def section(gpus, slower=None, change=lambda rows: None):
    """Build the section of a machine with this many GPUs; change: edits its rows first."""
    rows = recorded(np.random.default_rng(0), gpus, slower)
    change(rows)
    return build(table(Cell(), Settings(), rows), {})


def alarms(found):
    return found.alarms[0].rows.to_dict("records")


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_a_sound_machine_has_a_complete_section_without_warnings(gpus):
    found = section(gpus)
    assert gaps(found) == alarms(found) == []
    assert len(shown(found)["gpus"].rows) == gpus
    assert ("no other" in found.answer) == (gpus == 1)
    if gpus > 1:  # links are a matrix
        heads, _, *lines = [line for line in shown(found)["links"].markdown().splitlines() if line.startswith("|")]
        assert (heads.count("|"), len(lines)) == (gpus + 2, gpus)


@pytest.mark.parametrize(("wrong", "link_text"), [(85, "18 / 85"), (None, "18")])
def test_wrong_checksums_are_shown_next_to_the_links_that_are_up(wrong, link_text):
    found = section(2, change=lambda rows: [row.update(nvlinks_up=18, nvlink_crc_errors=wrong) for row in rows[:2]])
    assert shown(found)["gpus"].rows["links"].tolist() == [link_text] * 2


def test_slow_gpus_slow_links_and_findings_are_listed_with_their_values():
    rows = alarms(section(2, {1: 2.0}))
    assert {row["name"] for row in rows} == {"1 (1ace0123)"}
    assert len(rows) == 4
    assert all(45 < row["below_pct"] < 55 for row in rows)
    [row] = alarms(section(4, {(2, 0): 1.2}))
    assert (row["name"], row["what"]) == ("2 (2ace0123)", "copies to GPU 0")
    bad = {"ecc_uncorrected": 7, "failed_row_remaps": 1, "pcie_widths": [8], "nvlinks_up": 17, "nvlink_recoveries": 2}
    bad |= {"throttle_reasons": ["hw_slowdown", "sw_power_cap"], "utilization_before_pct": 97}
    here = [row["here"] for row in alarms(section(2, change=lambda rows: rows[0].update(bad)))]
    assert here == ["7", "yes", "generation 5, 8 lanes", "17", "2", "hw_slowdown", "97%"]


def test_out_of_memory_is_listed_and_a_card_without_nvml_readings_has_a_row():
    def break_one(rows):
        row = next(row for row in rows if row.get("work") == "copy")
        row.pop("samples_ms")
        row |= {"status": "oom", "reason": "CUDA out of memory"}

    [row] = alarms(section(2, change=break_one))
    assert row["here"] == "oom: CUDA out of memory"
    found = section(2, change=lambda rows: [row.update(UNTOLD) for row in rows if row["kind"] == "gpu"])
    assert gaps(found) == alarms(found) == []
    assert len(shown(found)["gpus"].rows) == 2


@pytest.mark.parametrize("slower", [None, {1: 2.0}])
def test_the_first_screen_names_slow_gpus_and_says_how_many_were_checked(slower, tmp_path):
    rows = recorded(np.random.default_rng(0), 2, slower)
    parts = {"cell": asdict(Cell()), "settings": asdict(Settings()), "rows": rows, "machine": GPU}
    write_pages(PageRequest(written(tmp_path, record(stage="health", **parts))), stages(), tmp_path / "reports")
    for page in ("writeup.md", "report.html"):
        assert ("1ace0123" in (tmp_path / "reports" / page).read_text()) is True
    first = (tmp_path / "reports/writeup.md").read_text().split("\n## ")[0]
    assert ("1 (1ace0123)" in first) is (slower is not None)
    assert "GPUs checked: 2, links between them: 2." in first
