"""A section as the write-up reads it. Without matplotlib and pandas: the workflow reads it too, whenever it plans."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

# Of the file beside a section's that has its charts and rows for the HTML page.
HTML_SUFFIX = ".html.json"


@dataclass(frozen=True)
class WrittenSection:
    """A section whose figures have been drawn: what the page is put together from.

    trust: how far its repeats lie apart, and how many figures a power limit lowered (pipeline.report.trust).
    """

    stage: str
    text: str
    headline: str
    actions: list[dict[str, Any]]
    problems: list[dict[str, str]]
    title: str
    trust: dict[str, Any]
    models: list[Mapping[str, Any]]
    users_own: list[Mapping[str, str]]


def to_json(section: WrittenSection) -> str:
    """Return a written section as JSON text."""
    return json.dumps(asdict(section), indent=1) + "\n"


def from_json(text: str) -> WrittenSection:
    """Read what `to_json` wrote; raises ValueError or TypeError for anything else."""
    return WrittenSection(**json.loads(text))
