import re
from pathlib import Path

import pandas as pd
import pytest

import pipeline
from pipeline.report.chart import Axis
from pipeline.report.words import Words

PACKAGE = Path(pipeline.__file__).parent
ROWS = pd.DataFrame({"size": ["small", "large"], "median_ms": [1.5, 30.0], "part": ["forward", "forward"]})
TEXT = """\
A *note* on
two lines.

[answer]: {row[size]} takes {row[median_ms]:ms},
    which is {what}.
[steps]: Steps of {size}, {where}:
[steps.median_ms]: {where}, ms
[other]: Others:
[.size]: name
[.part]:
[.median_ms]: time
"""


@pytest.fixture
def words(tmp_path):
    (tmp_path / "report.md").write_text(TEXT)
    return Words(str(tmp_path / "report.py"))


def test_the_note_precedes_the_definitions_and_values_in_a_sentence_are_escaped(words):
    assert words.note == "A *note* on two lines."
    assert words.say("answer", row=ROWS.iloc[0], what="*it*") == "small takes 1.50 ms, which is &#42;it&#42;."
    for name in ("answer", "unknown"):
        with pytest.raises(KeyError):
            words.say(name, row=ROWS.iloc[0])


def test_a_caption_is_filled_from_the_first_row_unless_a_value_is_given(words):
    assert words.table("steps", ROWS, "median_ms", where="here").caption == "Steps of small, here:"
    assert words.table("steps", ROWS, "median_ms", where="here", size="all").caption == "Steps of all, here:"
    assert words.table("steps", ROWS.head(0), "median_ms", where="here").is_empty


def test_a_heading_comes_from_the_table_else_the_column_else_its_name(words):
    def heads(*named, **more):
        return [head for head, _, _ in words.table(*named, **more).columns]

    rows = ROWS.assign(mfu_pct=50.0)
    assert heads("steps", rows, "size median_ms mfu_pct", where="here") == ["name", "here, ms", "MFU"]
    assert heads("other", rows, "size median_ms part") == ["name", "time", ""]
    across = words.table("other", ROWS.assign(part=["a", "b"]), "size part median_ms:number", across="part")
    assert "| name | a | b |" in across.markdown()
    # A column without values is left out only if asked.
    rows = ROWS.assign(mfu_pct=None)
    assert heads("other", rows, "size mfu_pct") == ["name", "MFU"]
    assert heads("other", rows, "size mfu_pct", only_filled=True) == ["name"]


def test_a_chart_has_defined_titles_and_hover_headings(words):
    chart = words.chart("other", ROWS, "point", Axis("median_ms", log=True), "mfu_pct", hover="size mfu_pct")
    assert (chart.title, chart.x.title, chart.x.log, chart.y.title) == ("Others:", "time", True, "")
    assert chart.hover == {"name": "size", "MFU": "mfu_pct"}


def test_every_definition_is_used():
    unused = {}
    for file in PACKAGE.rglob("*.md"):
        # Any module may use the definitions of these two packages.
        is_shared = file.parent.name in ("report", "compare")
        modules = PACKAGE.rglob("*.py") if is_shared else file.parent.glob(f"{file.stem}*.py")
        code = "\n".join(path.read_text() for path in modules)
        # The beginnings of names that are built, such as f"fusion_{name}".
        beginnings = tuple(re.findall(r'f"(\w+_)\{', code))
        named = {*re.findall(r"\w+", code)}
        for name in Words(str(file)).defined:
            if not all(each in named or each.startswith(beginnings) for each in name.split(".") if each):
                unused[f"{file.parent.name}: {name}"] = file
    assert not unused
