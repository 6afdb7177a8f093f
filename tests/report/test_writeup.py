import json
import re
import shlex
from dataclasses import asdict

import pandas as pd
import pytest

from pipeline.cells.disk import WholeFile
from pipeline.cells.record import write_record
from pipeline.cells.stage import Stage
from pipeline.errors import UserError
from pipeline.registry import stages
from pipeline.report.figures import new_figure
from pipeline.report.markup import Markdown
from pipeline.report.page_parts import MOST_ACTIONS, Figure, Section
from pipeline.report.writeup import write_section, write_writeup
from pipeline.report.written_section import WrittenSection, to_json

from ..records import attention_row, record
from ..stages.sections import HOSTILE, obeyed_markup
from .cell_lines import line


def leave_section(folder, name="timing", **parts):
    """Leave a written section; return the path of its text."""
    values = {
        "text": "## How fast?\n\nIt is fast.\n",
        "headline": "",
        "actions": (),
        "problems": (),
        "title": "How fast?",
        "trust": {},
        "models": (),
        "users_own": (),
    }
    (folder / f"{name}.json").write_text(to_json(WrittenSection(**{"stage": name, **values, **parts})))
    return folder / f"{name}.md"


def test_the_writeup_holds_machine_outcomes_and_sections(tmp_path):
    cells, out = tmp_path / "cells.csv", tmp_path / "writeup.md"
    skipped = [line(status="skipped", reason="needs 4 GPUs, 1 present", cell=f"size={size}") for size in ("a", "b")]
    pd.DataFrame([line(), *skipped]).to_csv(cells, index=False)
    write_writeup([leave_section(tmp_path)], [cells], "paper", [], out)
    text = out.read_text()
    assert "3 cells, each a setting measured in a process of its own, at scale `paper`, measured from" in text
    assert "UTC. 2 cells have no figures. [How far to trust it](#how-far-to-trust-it).\n" in text
    for part in (
        "# NVIDIA H200",
        "host: Xeon with 64 cores.",
        "1234567",
        "It is fast.",
        "| ok | timing 1 |\n| skipped | timing 2 |",
    ):
        assert part in text
    assert "2 cells of timing without figures, skipped: their machine lacked what they need.\n" in text


def test_results_that_failed_their_check_are_counted_in_one_line_whatever_each_says(tmp_path):
    cells, out = tmp_path / "cells.csv", tmp_path / "writeup.md"
    wrong = [line(status="wrong", reason=f"loss {loss}", cell=f"size={loss}") for loss in (4.6, 7.5)]
    pd.DataFrame([line(), *wrong]).to_csv(cells, index=False)
    write_writeup([leave_section(tmp_path)], [cells], "paper", [], out)
    assert "2 cells of timing without figures, wrong: the result failed its check.\n" in out.read_text()


def action(rank, what, topic="", covers=()):
    return {"rank": rank, "what": f"**{what}.**", "why": "It pays.", "topic": topic, "covers": covers}


def test_what_to_do_stands_on_the_first_screen_what_concerns_most_runs_first(tmp_path):
    cells, out = tmp_path / "cells.csv", tmp_path / "writeup.md"
    pd.DataFrame([line()]).to_csv(cells, index=False)
    many = tuple(action(5, f"Rare {number}") for number in range(MOST_ACTIONS))
    sections = [
        leave_section(tmp_path, "flash", actions=many),
        leave_section(tmp_path, "timing", actions=(action(2, "Second"), action(1, "First")), headline="| tokens/s |"),
    ]
    write_writeup(sections, [cells], "paper", [], out)
    first_screen = out.read_text().partition("\n## ")[0]
    assert "| tokens/s |" in first_screen
    assert re.findall(r"^(\d)\. \*\*(.*?)\.\*\* It pays\.$", first_screen, re.MULTILINE)[:3] == [
        *(("1", "First"), ("2", "Second"), ("3", "Rare 0")),
    ]
    assert first_screen.count("It pays.") == MOST_ACTIONS


def test_of_what_several_stages_advise_on_one_topic_the_first_screen_shows_the_first(tmp_path):
    pd.DataFrame([line()]).to_csv(tmp_path / "cells.csv", index=False)
    advice = {"profile": action(3, "Fuse", "attention"), "memory": action(2, "Flash", "attention")}
    sections = [leave_section(tmp_path, name, actions=(given,)) for name, given in advice.items()]
    write_writeup(sections, [tmp_path / "cells.csv"], "", [], tmp_path / "writeup.md")
    text = (tmp_path / "writeup.md").read_text()
    assert "1. **Flash.**" in text
    assert "Fuse" not in text


def test_advice_that_settles_topics_takes_the_place_of_advice_on_them_alone(tmp_path):
    pd.DataFrame([line()]).to_csv(tmp_path / "cells.csv", index=False)
    advice = {"timing": action(2, "Compile", "compile"), "levers": action(1, "All", covers=("compile", "graph"))}
    sections = [leave_section(tmp_path, name, actions=(given,)) for name, given in advice.items()]
    write_writeup(sections, [tmp_path / "cells.csv"], "", [], tmp_path / "writeup.md")
    text = (tmp_path / "writeup.md").read_text()
    assert "1. **All.**" in text
    assert "Compile" not in text


@pytest.mark.parametrize(
    ("status", "sizes", "told"),
    [("unstable", ["xl"], "; in the table below: xl"), ("ok", ["xl"], "; in the table below: none"), ("ok", [], "")],
)
def test_how_many_times_are_unstable_stands_on_the_first_screen_and_which_of_its_table(tmp_path, status, sizes, told):
    pd.DataFrame([line()]).to_csv(tmp_path / "cells.csv", index=False)
    trusts = ({"times": 900, "unstable": 12, "limit_pct": 5.0}, {"times": 300, "unstable": 0, "limit_pct": 10.0}, {})
    capped = {"power_capped": None, "tuned_power_capped": None}
    models = tuple({"size": size, "status": status, **capped} for size in sizes)
    sections = [
        leave_section(tmp_path, name, trust=trust, models=models if name == "timing" else ())
        for name, trust in zip(("timing", "flash", "accounting"), trusts, strict=True)
    ]
    write_writeup(sections, [tmp_path / "cells.csv"], "", [], tmp_path / "writeup.md")
    text = (tmp_path / "writeup.md").read_text()
    assert f"Of 1,200 medians 12 are *unstable*, too noisy to compare closely{told}. [How far" in text
    assert "between samples or between rounds, is above the limit (5% to 10% of the median), " in text


def test_the_user_s_own_of_all_stages_stand_in_one_table_of_the_first_screen(tmp_path):
    pd.DataFrame([line()]).to_csv(tmp_path / "cells.csv", index=False)
    sections = [
        leave_section(tmp_path, stage, users_own=({"your own": name, "median": "2.00 ms"},))
        for stage, name in (("flash", "my_triton"), ("ddp", "my_ddp"))
    ]
    write_writeup(sections, [tmp_path / "cells.csv"], "", [], tmp_path / "writeup.md")
    first_screen = (tmp_path / "writeup.md").read_text().partition("\n## ")[0]
    assert re.search(r"\| my_triton +\| +2.00 ms \|\n\| my_ddp +\| +2.00 ms \|", first_screen)


def test_the_page_says_how_to_run_it_again_in_words_that_a_shell_takes(tmp_path):
    pd.DataFrame([line()]).to_csv(tmp_path / "cells.csv", index=False)
    config = ["scale=smoke", 'only=["flash"]', 'subjects={"attention": {"mine": "my *kernels*.py:F"}}']
    write_writeup([], [tmp_path / "cells.csv"], "smoke", [], tmp_path / "writeup.md", config=config)
    (command,) = re.findall(r"^    (snakemake .*)$", (tmp_path / "writeup.md").read_text(), re.MULTILINE)
    assert shlex.split(command) == ["snakemake", "reports/writeup.md", "--config", *config]


def test_where_every_time_is_stable_the_first_screen_says_nothing_of_it(tmp_path):
    pd.DataFrame([line()]).to_csv(tmp_path / "cells.csv", index=False)
    trust = {"times": 900, "unstable": 0, "limit_pct": 5.0}
    write_writeup([leave_section(tmp_path, trust=trust)], [tmp_path / "cells.csv"], "", [], tmp_path / "writeup.md")
    assert "nstable" not in (tmp_path / "writeup.md").read_text().partition("\n## ")[0]


def test_how_far_repeats_lie_apart_stands_beside_the_outcomes_with_the_rule_of_verdicts(tmp_path):
    cells, out = tmp_path / "cells.csv", tmp_path / "writeup.md"
    pd.DataFrame([line(), line(stage="flash")]).to_csv(cells, index=False)
    trust = {
        "typical_pct": 0.42,
        "most_pct": 1.4,
        "unstable_most_pct": 35.2,
        "capped": 3,
        "clock_mhz": 1410.0,
        "full_clock_mhz": 1965.0,
    }
    others = {"capped": 12, "clock_mhz": 1300.0, "full_clock_mhz": 1980.0}
    sections = [leave_section(tmp_path, trust=trust), leave_section(tmp_path, "flash", trust=others)]
    write_writeup(sections, [cells], "", [], out)
    text = out.read_text()
    assert "| ok | timing 1, flash 1 |\n| repeats apart | timing 0.42% (1.4%; unstable ones 35%) |" in text
    assert "the same within 2%" in text
    capped = "clock of 1,980 MHz for 3 figures of timing and 12 of flash, to 1,300 MHz at the least.\n"
    assert f"\nA power limit lowered the GPU's {capped}" in text
    write_writeup([leave_section(tmp_path)], [cells], "", [], out)
    assert "No cell was repeated" in out.read_text()
    assert "A power limit lowered" not in out.read_text()


@pytest.mark.parametrize(
    ("capped", "told"),
    [
        ([("small", False, True), ("xl", True, True)], "eager xl; tuned small and xl"),
        ([("small", False, True), ("xl", None, None)], "tuned small"),
        ([("small", False, False)], "none"),
    ],
)
def test_steps_of_the_first_screen_at_a_lowered_clock_are_named(tmp_path, capped, told):
    pd.DataFrame([line()]).to_csv(tmp_path / "cells.csv", index=False)
    trust = {"capped": 3, "clock_mhz": 1410.0, "full_clock_mhz": None}
    models = [
        {"size": size, "status": "ok", "power_capped": eager, "tuned_power_capped": tuned}
        for size, eager, tuned in capped
    ]
    section = leave_section(tmp_path, trust=trust, models=tuple(models))
    write_writeup([section], [tmp_path / "cells.csv"], "", [], tmp_path / "writeup.md")
    page = (tmp_path / "writeup.md").read_text()
    assert (
        f"clock for 3 figures of timing, to 1,410 MHz at the least. Among them, in the first screen's table: {told}.\n"
        in page
    )


def test_where_there_is_nothing_to_do_the_page_does_not_ask_for_it(tmp_path):
    pd.DataFrame([line()]).to_csv(tmp_path / "cells.csv", index=False)
    write_writeup([leave_section(tmp_path)], [tmp_path / "cells.csv"], "paper", [], tmp_path / "writeup.md")
    assert "What to do" not in (tmp_path / "writeup.md").read_text()
    assert "problems" not in (tmp_path / "writeup.md").read_text()


def test_the_assignments_problems_lead_to_the_sections_that_answer_them(tmp_path):
    cells, out = tmp_path / "cells.csv", tmp_path / "writeup.md"
    pd.DataFrame([line()]).to_csv(cells, index=False)
    answered = [
        leave_section(tmp_path, stage, title=title, problems=({"name": "benchmarking (b)", "answer": answer},))
        for stage, title, answer in [("timing", "How fast?", "5 ms."), ("flash", "How long?", "6 ms.")]
    ]
    write_writeup(answered, [cells], "paper", [], out)
    assert "| [benchmarking (b)](#how-fast) | 5 ms. |" in out.read_text()
    assert "6 ms." not in out.read_text()


def test_text_of_records_is_shown_on_the_page_and_not_obeyed(tmp_path):
    cells, out = tmp_path / "cells.csv", tmp_path / "writeup.md"
    texts = ("stage", "cell", "reason", "machine", "python", "torch", "triton", "cuda", "driver", "commit", "command")
    hostile = dict.fromkeys(texts, HOSTILE) | {"status": "skipped"}
    pd.DataFrame([line(), busy(**hostile)]).to_csv(cells, index=False)
    write_writeup([leave_section(tmp_path, text="- It is **fast**.\n")], [cells], "", [], out)
    text = out.read_text().removeprefix("# ")
    assert text.count("alert(1)") > 5
    assert "- It is **fast**.\n" in text
    assert obeyed_markup(text) == []


def test_a_section_needs_a_record_of_its_own_stage(tmp_path):
    path = leave_record(tmp_path, "ceilings")
    with pytest.raises(UserError, match="no record of timing among those given"):
        write_section(stages()["timing"], stages(), [path], tmp_path / "out.md", tmp_path / "figures")


def test_what_nobody_asked_for_in_this_run_has_no_scale(tmp_path):
    pd.DataFrame([line()]).to_csv(tmp_path / "cells.csv", index=False)
    write_writeup([], [tmp_path / "cells.csv"], "", [], tmp_path / "writeup.md")
    text = (tmp_path / "writeup.md").read_text()
    assert "1 cell, measured from" in text
    assert "snakemake reports/writeup.md" in text


@pytest.mark.parametrize(
    ("digests", "told"),
    [
        (["abc"], None),
        (["def", "def"], "timing"),
        (["abc", "def", "abc"], "1 of the 3 cells of timing (size=xl)"),
        (["def", "def", "def", "abc"], "3 of the 4 cells of timing"),  # too many to name
    ],
)
def test_what_was_measured_by_code_that_has_changed_since_is_told(tmp_path, digests, told):
    cells, out = tmp_path / "cells.csv", tmp_path / "writeup.md"
    pd.DataFrame([*(line(digest=digest) for digest in digests), line(stage="flash")]).to_csv(cells, index=False)
    write_writeup([], [cells], "", ["def"], out)
    (words,) = re.findall(r"the code that measured (.*) has changed", out.read_text()) or [None]
    assert words == told


def busy(**changes):
    return line(host_busy=True, host_others_cores=1.73, host_cores=2.0, waiting_s=60.0) | changes


def test_cells_on_a_busy_host_are_counted_on_the_first_page_with_their_stages(tmp_path):
    cells, out = tmp_path / "cells.csv", tmp_path / "writeup.md"
    quiet = line(host_busy=False, host_others_cores=0.5, host_cores=2.0, cell="size=tiny")
    shared = line(host_busy=False, stage="accounting", cell="question=fsdp")
    pd.DataFrame([quiet, busy(), shared]).to_csv(cells, index=False)
    write_writeup([leave_section(tmp_path)], [cells], "paper", [], out)
    text = out.read_text()
    assert "**Measured on a busy host: 1 of 3 cells, of timing.**" in text[: text.index("\n## ")]
    assert "They waited 60.0 s" in text


@pytest.mark.parametrize("lines", [[line()], [line(host_busy=False, host_others_cores=0.1, host_cores=2.0)]])
def test_a_quiet_host_and_records_that_do_not_tell_are_not_mentioned(tmp_path, lines):
    cells, out = tmp_path / "cells.csv", tmp_path / "writeup.md"
    pd.DataFrame(lines).to_csv(cells, index=False)
    write_writeup([], [cells], "paper", [], out)
    assert "busy host" not in out.read_text()
    assert "They waited" not in out.read_text()


def test_records_of_before_and_after_the_host_was_told_make_one_page(tmp_path):
    tables = [tmp_path / "old.csv", tmp_path / "new.csv"]
    for path, cell in zip(tables, (line(), busy()), strict=True):
        pd.DataFrame([cell]).to_csv(path, index=False)
    write_writeup([], tables, "", [], tmp_path / "writeup.md")
    assert "**Measured on a busy host: 1 of 2 cells, of timing.**" in (tmp_path / "writeup.md").read_text()


def test_no_cells_is_one_line(tmp_path):
    (tmp_path / "cells.csv").write_text("")
    with pytest.raises(UserError, match=r"cells.csv is no table"):
        write_writeup([], [tmp_path / "cells.csv"], "paper", [], tmp_path / "writeup.md")


@pytest.mark.parametrize("lacking", ["start_up_s", "digest", "driver", "reason"])
def test_a_table_that_is_none_of_cells_is_named_with_what_it_lacks(tmp_path, lacking):
    cells, out = tmp_path / "cells.csv", tmp_path / "writeup.md"
    pd.DataFrame([line()]).drop(columns=lacking).to_csv(cells, index=False)
    with pytest.raises(UserError, match=f"cells.csv is no table of cells, for it has no {lacking}$"):
        write_writeup([], [cells], "paper", [], out)
    assert not out.exists()


@pytest.mark.parametrize("content", [None, "{", "[]", '{"stage": 1}', '{"text": "x"}'])
def test_parts_of_a_section_that_cannot_be_read_are_named(tmp_path, content):
    cells, section, out = tmp_path / "cells.csv", tmp_path / "timing.md", tmp_path / "writeup.md"
    pd.DataFrame([line()]).to_csv(cells, index=False)
    if content is not None:
        section.with_suffix(".json").write_text(content)
    complaint = "is not the parts of a section" if content else "No such file"
    with pytest.raises(UserError, match=rf"timing\.json.*{complaint}"):
        write_writeup([section], [cells], "paper", [], out)
    assert not out.exists()


@pytest.fixture
def stand_in(monkeypatch):
    """Put a section's `build` in the place of that of the stage ddp, which reads allreduce too."""

    def put(build):
        monkeypatch.setattr(Stage, "build_section", lambda _stage: build)
        return stages()["ddp"]

    return put


def leave_record(folder, stage, name="cell", axes=None, **columns):
    """Leave the record of a stage's cell that could not be measured, by default the default one; return its path."""
    cell, settings = stages()[stage].cell_type(**(axes or {})), stages()[stage].settings_type()
    rows = [{**cell.row_keys()[0], "status": "skipped", "reason": "needs 2 GPUs, 0 present", **columns}]
    left = record(stage=stage, cell=asdict(cell), settings=asdict(settings), rows=rows)
    write_record(WholeFile(folder / stage / f"{name}.json"), left)
    return folder / stage / f"{name}.json"


def test_a_section_gets_the_rows_of_the_stages_that_it_reads_apart(tmp_path, stand_in):
    ddp = stand_in(lambda rows, beside: Section(rows["impl"][0], "", Markdown(beside["allreduce"]["timing"][0])))
    records = [leave_record(tmp_path, "ddp"), leave_record(tmp_path, "allreduce")]
    write_section(ddp, stages(), records, tmp_path / "out.md", tmp_path / "figures")
    assert (tmp_path / "out.md").read_text().startswith("## naive\n\n**burst**\n")


def test_of_repeats_without_times_a_section_gets_the_first_alone(tmp_path, stand_in):
    ddp = stand_in(lambda rows, _beside: Section(", ".join(map(str, rows["repeat"])), "", Markdown("So.")))
    records = [leave_record(tmp_path, "ddp", f"cell{repeat}", {"repeat": repeat}) for repeat in (2, 1, 3)]
    write_section(ddp, stages(), records, tmp_path / "out.md", tmp_path / "figures")
    assert (tmp_path / "out.md").read_text().startswith("## 1\n")


STEP = {"status": "ok", "reason": None, "samples_ms": [1.99, 2.0, 2.01], "first_step_ms": 9.0}


def test_a_section_gets_rates_held_against_one_peak(tmp_path, stand_in):
    stand_in(lambda rows: Section(", ".join(f"{share:g}" for share in rows["mfu_pct"]), "", Markdown("So.")))
    records = [
        leave_record(tmp_path, "levers", name, {"combinations": name}, **STEP, measured_peak_tflops_per_s=peak)
        for name, peak in (("fused", 4.0), ("sdpa", 2.0))
    ]
    write_section(stages()["levers"], stages(), records, tmp_path / "out.md", tmp_path / "figures")
    shares = (tmp_path / "out.md").read_text().splitlines()[0].removeprefix("## ").split(", ")
    assert len(shares) == 2
    assert shares[0] == shares[1]


@pytest.mark.usefixtures("undrawn")
def test_times_of_a_reference_are_neither_counted_nor_doubted(tmp_path):
    flash = stages()["flash"]
    error = {"output_rel_error": 1e-3}
    rows = [attention_row(impl, **error) for impl in ("triton", "eager")]
    rows.append(attention_row("tiled", [1.0, 2.0, 3.0], **error))
    cell, settings = asdict(flash.cell_type()), asdict(flash.settings_type())
    path = tmp_path / "cell.json"
    write_record(WholeFile(path), record(stage="flash", cell=cell, settings=settings, rows=rows))
    write_section(flash, stages(), [path], tmp_path / "out.md", tmp_path / "figures")
    trust = json.loads((tmp_path / "out.json").read_text())["trust"]
    assert (trust["times"], trust["unstable"]) == (2, 0)


@pytest.mark.parametrize("fails", ["the folder", "a figure"])
def test_figures_that_cannot_be_drawn_are_one_line_and_no_section(tmp_path, stand_in, fails):
    part = Figure("step", Markdown("A step"), new_figure()[0])
    ddp = stand_in(lambda _rows, _beside: Section("How fast?", "", Markdown("So."), parts=[part]))
    figures = tmp_path / "figures"
    if fails == "the folder":
        figures.write_text("a file")
    else:
        (figures / "step.svg").mkdir(parents=True)
    with pytest.raises(UserError, match=r"cannot draw figures into .*figures: ") as raised:
        write_section(ddp, stages(), [leave_record(tmp_path, "ddp")], tmp_path / "out.md", figures)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out.md").exists()


@pytest.mark.parametrize(
    ("stage", "columns", "complaint"),
    [
        ("flash", {}, 'cell.json is no record: stage must be one of timing, ceilings, levers, got "flash"'),
        ("timing", {"peak_bytes": -1}, "row 1: peak_bytes must be a whole number, at least 0, got -1"),
        ("timing", {"clock": "sundial"}, "row 1: clock must be one of host, cuda_events"),
    ],
)
def test_a_record_of_something_else_is_named_and_leaves_no_figures(tmp_path, stage, columns, complaint):
    path = leave_record(tmp_path, stage, **columns)
    with pytest.raises(UserError, match=complaint) as raised:
        write_section(stages()["timing"], stages(), [path], tmp_path / "out.md", tmp_path / "figures")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "figures").exists()


@pytest.mark.parametrize("status", ["skipped", "failed"])
@pytest.mark.parametrize("stage", stages())
def test_a_cell_without_a_figure_makes_a_section(tmp_path, stage, status):
    path = leave_record(tmp_path, stage, status=status)
    write_section(stages()[stage], stages(), [path], tmp_path / "out.md", tmp_path / "figures")
    assert (tmp_path / "out.md").read_text()


@pytest.mark.parametrize("failures", [1, 15])
def test_what_failed_is_named_at_the_top_with_its_log(tmp_path, failures):
    failed = line(cell="size=xl", status="failed", reason="KeyError: 'a | b'", log="logs/timing/size=xl.log")
    pd.DataFrame([line(), *[failed] * failures]).to_csv(tmp_path / "cells.csv", index=False)
    write_writeup([], [tmp_path / "cells.csv"], "", [], tmp_path / "writeup.md")
    page = (tmp_path / "writeup.md").read_text()
    top, _, _ = page.partition("\n## ")
    assert f"**Missing, because it failed: {failures} cell" in top
    assert top.count("| `timing size=xl` | KeyError: 'a &#124; b' | `logs/timing/size=xl.log` |\n") == min(failures, 12)
    assert ("\n\n… and 3 cells more: " in top) == (failures == 15)


def test_a_run_in_which_nothing_failed_says_nothing_of_it(tmp_path):
    pd.DataFrame([line()]).to_csv(tmp_path / "cells.csv", index=False)
    write_writeup([], [tmp_path / "cells.csv"], "", [], tmp_path / "writeup.md")
    assert "failed" not in (tmp_path / "writeup.md").read_text().partition("\n## ")[0]
