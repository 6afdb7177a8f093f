"""Write the first screen's values as JSON for programs, as `summary.schema.json` declares them."""

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from jsonschema import validate

from pipeline.cells.rows import STATUSES
from pipeline.instruments.machine.identity import SOFTWARE
from pipeline.report.asked import Asked
from pipeline.report.section import Told
from pipeline.report.writeup import changes

VERSION = 2
SCHEMA = Path(__file__).parent / "summary.schema.json"


def summary(asked: Asked, cells: pd.DataFrame, told: Sequence[Told]) -> str:
    """Return the summary as JSON text; raises jsonschema.ValidationError for what the schema does not allow."""
    sections = [each.section for each in told if each.section]
    shown = changes([change for section in sections for change in section.changes])
    found = {
        "version": VERSION,
        "machines": sorted(cells["machine"].unique()),
        "software": {name: sorted(cells[name].astype(str).unique()) for name in SOFTWARE},
        "scale": asked.scale or None,
        "commits": sorted(cells["commit"].dropna().astype(str).unique()),
        "measured": {"from": cells["started_at"].min(), "to": cells["started_at"].max()},
        "cells": {status: int((cells["status"] == status).sum()) for status in STATUSES},
        "models": [model for section in sections if section.first_screen for model in section.first_screen.summary],
        "changes": json.loads(shown.drop(columns=["gain", "order"], errors="ignore").to_json(orient="records")),
    }
    validate(found, json.loads(SCHEMA.read_text(encoding="utf-8")))
    return json.dumps(found, indent=1, allow_nan=False) + "\n"
