import pandas as pd

from pipeline.report.figures import new_figure
from pipeline.report.markup import Markdown
from pipeline.report.page_parts import Action, Figure, Problem, Section

from .sections import built, drawn_figures, linked_figures, numbers_that_stay, wide_tables


def rows():
    return pd.DataFrame(
        {"size": ["xl", "2.7B"], "seq_len": [512, 1024], "median_ms": [12.3, 45.6], "samples_ms": "1 2"}
    )


def section(rows, said=""):
    table = "| 99 |"
    return f"## 77\n{table}\nAt {rows['seq_len'][0]} tokens 2.7B takes {rows['median_ms'][1]:.1f} ms{said}. `n = 5`\n"


def test_a_number_out_of_the_tables_does_not_stay():
    assert numbers_that_stay(section, rows(), keys=["size", "seq_len"]) == set()


def test_a_number_written_by_hand_stays():
    for said in (", 3.7 times more", " within 1e-05", ", not 45.6", " with 1,500 steps"):
        found = numbers_that_stay(lambda table, said=said: section(table, said), rows(), keys=["size", "seq_len"])
        assert len(found) == 1


def test_a_constant_may_be_allowed():
    build = lambda table: section(table, " within 5%")  # noqa: E731
    assert numbers_that_stay(build, rows(), keys=["size", "seq_len"], allowed={"5"}) == set()


def test_an_axis_that_is_not_named_as_a_key_is_a_figure():
    fixed = lambda _: section(rows())  # noqa: E731
    assert numbers_that_stay(fixed, rows(), keys=["size"]) == {"512", "45.6"}


def test_a_table_is_too_wide_by_the_words_that_cannot_break():
    table = "| name | time |\n|:---|---:|\n| `{}` | 1.00 |\n"
    assert wide_tables(table.format("a kernel " * 20)) == []
    assert wide_tables(table.format("kernel_" * 20)) == ["| name | time |"]


def test_a_table_is_too_wide_by_its_columns_too():
    assert wide_tables("|a" * 8 + "|\n") == []
    assert wide_tables("|a" * 9 + "|\n") == ["|a" * 9 + "|"]


def test_a_section_made_of_parts_becomes_all_that_it_says_with_its_figures_drawn(tmp_path):
    text = built(made_of_parts, "copy")(rows(), tmp_path)
    assert [word for word in ("answer 12.3", "action", "cause", "(a): solved", "first") if word not in text] == []
    assert linked_figures(text, "copy") == drawn_figures(tmp_path) == {"one", "headline"}


def made_of_parts(rows):
    figures = [Figure(name, Markdown("Seen"), new_figure()[0]) for name in ("one", "headline")]
    return Section(
        title="How fast",
        exercise="copying",
        answer=Markdown(f"answer {rows['median_ms'][0]}"),
        parts=figures[:1],
        actions=[Action(1, Markdown("action"), Markdown("cause"))],
        problems=[Problem("copying (a)", Markdown("solved"))],
        headline=[Markdown("first"), figures[1]],
    )
