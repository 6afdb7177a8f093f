"""What tests of a stage's report share: its parts by name, what is wrong with them."""

import re

from pipeline.report import drawing
from pipeline.report.chart import Chart

GAP = re.compile(r"\bnan\b|\bNone\b|\binf\b")


def parts(section):
    """Return all parts of a section by name; one name is one part's."""
    found = [*section.parts, *section.for_course]
    named = {part.name: part for part in found}
    assert len(named) == len(found)
    return named


def faults(section, folder):
    """Return what is wrong with a section: gaps in its words, a part that cannot be drawn."""
    texts = {"answer": section.answer}
    for name, part in parts(section).items():
        if part.is_empty:
            continue
        if isinstance(part, Chart):
            drawing.draw(part, folder / f"{name}.svg")
        else:
            texts[name] = part.markdown()
    return {name: GAP.findall(text) for name, text in texts.items() if GAP.search(text)}
