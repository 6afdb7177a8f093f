import json
from dataclasses import replace

import pandas as pd
import pytest

from pipeline.report.figures import new_figure
from pipeline.report.html.markdown_page import figure_titles
from pipeline.report.markup import Markdown
from pipeline.report.page_parts import (
    MOST_TABLE_ROWS,
    Action,
    Figure,
    Problem,
    Section,
    Table,
    say,
    write,
)
from pipeline.report.written_section import from_json, to_json

from ..stages.sections import HOSTILE

SECTION = Section(
    title="How fast does memory copy",
    exercise="copying",
    answer=Markdown("At 4 TB/s."),
    parts=[
        Markdown("A paragraph."),
        Table(Markdown("By dtype:"), pd.DataFrame({"dtype": ["bf16"], "GB/s": ["4,000"]})),
        Figure("copy", Markdown("bf16 copies as fast as fp32"), new_figure()[0]),
    ],
    method=Markdown("CUDA events, medians."),
    actions=[Action(2, Markdown("**Copy less.**"), Markdown("It takes time."))],
    problems=[Problem("copying (a)", Markdown("Fast."))],
    headline=[Table(Markdown("First:"), pd.DataFrame({"size": ["xl"]}))],
)


def test_values_in_a_sentence_are_escaped_unless_they_are_markdown():
    assert say("**{a}** {b}", a="x | y", b=Markdown("`z`")) == "**x &#124; y** `z`"


def test_a_section_is_a_question_a_bold_answer_its_parts_and_how_it_was_measured(tmp_path):
    written = write(SECTION, "copy", ["copy/bf16.csv"], tmp_path, trust={"capped": 2})
    heading, answer, paragraph, title, table, figure, method = written.text.strip().split("\n\n")
    assert heading == "## How fast does memory copy (copying)"
    assert (answer, paragraph, title) == ("**At 4 TB/s.**", "A paragraph.", "By dtype:")
    assert table.startswith("| dtype")
    assert figure == "![bf16 copies as fast as fp32](figures/copy/copy.svg)"
    assert method == "CUDA events, medians. All rows: [bf16](../results/copy/bf16.csv)."
    assert (tmp_path / "copy.svg").is_file()
    assert written.headline.startswith("First:")


def test_text_is_escaped_wherever_it_stands_unless_it_is_markdown(tmp_path):
    section = replace(
        SECTION,
        answer="a | b",
        parts=["c | d", Figure("copy", "e | f", new_figure()[0]), Table("g | h", pd.DataFrame({"size": ["i | j"]}))],
        method="k | l",
        actions=[Action(1, Markdown("**m**"), "n | o")],
        problems=[Problem("copying (a)", "p | q")],
    )
    written = write(section, "copy", [], tmp_path, trust={})
    text = "\n".join([written.text, written.actions[0]["why"], written.problems[0]["answer"]])
    assert " | " not in text.replace("| size   |", "").replace("| i ", "")
    assert text.count(" &#124; ") == 8
    assert written.actions[0]["what"] == "**m**"


def test_a_written_section_is_read_back_as_it_was_and_nothing_else_is(tmp_path):
    written = write(SECTION, "copy", [], tmp_path, trust={"capped": 2})
    assert from_json(to_json(written)) == written
    for other in ("[]", "{}", json.dumps({**json.loads(to_json(written)), "more": 1}), "x"):
        with pytest.raises((ValueError, TypeError)):
            from_json(other)


def test_of_a_long_table_the_first_rows_are_shown_and_the_others_counted(tmp_path):
    rows = pd.DataFrame({"n": map(str, range(MOST_TABLE_ROWS + 2))})
    text = write(replace(SECTION, parts=[Table("All:", rows)]), "copy", [], tmp_path, {}).text
    assert "|  11 |\n\n… and 2 rows more." in text
    assert "|  12 |" not in text


def test_a_figure_s_title_may_hold_anything(tmp_path):
    figure = Figure("copy", Markdown.escape(HOSTILE), new_figure()[0])
    text = write(replace(SECTION, parts=[figure]), "copy", [], tmp_path, {}).text
    title = figure_titles(text)["copy/copy"]
    assert title.startswith("</td></summary><script>alert(1)</script>")
    assert title.endswith("[2J")
