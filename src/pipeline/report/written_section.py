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
    actions: tuple[dict[str, Any], ...]
    problems: tuple[dict[str, str], ...]
    title: str
    trust: dict[str, Any]
    models: tuple[Mapping[str, Any], ...]
    users_own: tuple[Mapping[str, str], ...]
    eager_steps: tuple[Mapping[str, Any], ...]


def to_json(section: WrittenSection) -> str:
    """Return a written section as JSON text."""
    return json.dumps(asdict(section), indent=1) + "\n"


def from_json(text: str) -> WrittenSection:
    """Read what `to_json` wrote; raises ValueError for anything else."""
    values: Mapping[str, Any] = json.loads(text)
    if not isinstance(values, dict) or set(values) != set(WrittenSection.__dataclass_fields__):
        raise ValueError("not a section")
    lists = ("actions", "problems", "models", "users_own", "eager_steps")
    return WrittenSection(**{**values, **{name: tuple(values[name]) for name in lists}})
