"""The titles of a section's figures as captions of Snakemake's own report, which are reStructuredText."""

import re
from pathlib import Path

from pipeline.report.html.markdown_page import figure_titles
from pipeline.report.written_section import from_json


def captions(parts: Path) -> dict[str, str]:
    """Return the title of each figure by its name, from what a section leaves.

    Nothing where that is not there yet, or was left by another version, whose section is about to be written again.
    """
    try:
        section = from_json(parts.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, TypeError):
        return {}
    titles = figure_titles(f"{section.headline}\n\n{section.text}")
    return {key.partition("/")[2]: as_rst(title) for key, title in titles.items()}


def as_rst(text: str) -> str:
    """Return text as reStructuredText that shows just its characters: a title may hold anything that a record does."""
    return re.sub(r"([\W_])", lambda found: " " if found[1].isspace() else rf"\{found[1]}", text)
