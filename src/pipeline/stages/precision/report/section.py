"""The precision section: its tables and figures, and a template that says what they show."""

from pathlib import Path

import pandas as pd

from pipeline.report.section import render
from pipeline.report.tables import OUTCOME_WORDS
from pipeline.stages.precision.report import (
    accumulation_findings,
    autocast_findings,
    baselines,
    epsilon_findings,
    layer_norm_findings,
)
from pipeline.stages.precision.report.figures import draw_all
from pipeline.stages.precision.report.selection import device_lines, missing

TEMPLATE = Path(__file__).parent / "section.md.j2"
TITLES = {
    "accumulation": "running sums",
    "autocast": "data types under autocast",
    "layer_norm": "layer norm",
    "layer_norm_eps": "layer norm's eps",
}


def build(rows: pd.DataFrame, figures_dir: Path) -> str:
    """Write the section's Markdown from the rows of all its tables, and its figures as SVG into a folder."""
    return render(TEMPLATE, facts(rows) | {"figures": draw_all(rows, figures_dir)})


def facts(rows: pd.DataFrame) -> dict:
    """Return all that the template fills in but the figures."""
    return {
        "devices": device_lines(rows),
        "sums": accumulation_findings.facts(rows),
        "sums_of_others": baselines.sum_facts(rows),
        "dtypes": autocast_findings.facts(rows),
        "dtypes_of_others": baselines.dtype_facts(rows),
        "norms": layer_norm_findings.facts(rows),
        "eps": epsilon_findings.facts(rows),
        "missing": [_readable(line) for line in missing(rows)],
    }


def _readable(line: dict) -> dict:
    return {
        **line,
        "experiments": [TITLES[name] for name in line["experiments"]],
        "status": OUTCOME_WORDS[line["status"]],
    }
