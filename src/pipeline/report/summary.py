"""The first screen's figures as JSON, for programs: `summary.schema.json` declares them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jsonschema import validate

from pipeline.cells.disk import write_text
from pipeline.cells.rows import STATUSES
from pipeline.instruments.machine.identity import SOFTWARE
from pipeline.report.written_section import WrittenSection

VERSION = 1
SCHEMA = Path(__file__).parent / "summary.schema.json"


def write_summary(
    page: Mapping[str, Any],
    cells: pd.DataFrame,
    sections: Sequence[WrittenSection],
    actions: Sequence[Mapping[str, Any]],
    out: Path,
) -> None:
    """Write the figures of a first page; raises jsonschema.ValidationError for what the schema does not allow.

    page: the facts of the write-up's first page; cells: the table of them; actions: those that the page shows.
    """
    counts = {status: sum(line[status] for line in page["counts"]) for status in STATUSES}
    summary = {
        "version": VERSION,
        "machines": page["machines"],
        "software": {name: sorted(cells[name].astype(str).unique()) for name in SOFTWARE},
        "scale": page["scale"] or None,
        "commits": [commit for commit in page["commits"] if isinstance(commit, str)],  # none outside of a clone
        "measured": {"from": page["first_start"], "to": page["last_end"]},
        "cells": counts,
        "models": [model for section in sections for model in section.models],
        "actions": [{name: action[name] for name in ("rank", "what", "why")} for action in actions],
    }
    text = json.dumps(summary, indent=1, allow_nan=False)
    validate(json.loads(text), json.loads(SCHEMA.read_text(encoding="utf-8")))
    write_text(out, text + "\n")
