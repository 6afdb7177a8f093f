import re

import pytest
from docutils.core import publish_parts

from pipeline.report.captions import as_rst, captions
from pipeline.report.figures import new_figure
from pipeline.report.markup import Markdown
from pipeline.report.page_parts import Figure, Section, write
from pipeline.report.written_section import to_json

from ..stages.sections import HOSTILE


def test_each_figure_of_a_section_has_its_own_title_for_a_caption(tmp_path):
    figures = [Figure(name, Markdown(f"{name} is `fast`"), new_figure()[0]) for name in ("one", "two", "three")]
    section = Section("How fast?", "", Markdown("Fast."), parts=figures[:2], headline=figures[2:])
    parts = tmp_path / "timing.json"
    assert captions(parts) == {}
    parts.write_text(to_json(write(section, "timing", [], tmp_path, {})))
    assert captions(parts) == {name: f"{name} is fast" for name in ("three", "one", "two")}
    parts.write_text('{"stage": "as an earlier version wrote it"}')
    assert captions(parts) == {}


@pytest.mark.parametrize(
    "text", [HOSTILE, ".. raw:: html <b>x</b>", ":raw-html:`<b>x</b>` x_ |x| [1]_ *x* ``x`` {{ x }}"]
)
def test_a_caption_shows_just_its_characters(text):
    html = publish_parts(as_rst(text), writer="html")["body"]
    assert "system-message" not in html
    assert set(re.findall(r"<(\w+)", html)) == {"p"}
