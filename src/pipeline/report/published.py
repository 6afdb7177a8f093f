"""Figures that others published of the same assignment: for comparison, never mixed with ours."""

import re
from pathlib import Path

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.table_rows import read_rows

FOLDER = Path(__file__).parent / "published"


def load(name: str) -> pd.DataFrame:
    """Read one file of others' figures and name each row's source for display.

    Returns the columns of `published/<name>.csv` and `write_up`, e.g. "write-up 0 (H100)". The doubts about
    a row stand in its `note`. Raises UserError for a name that is not there.
    """
    rows = read_rows(FOLDER / f"{name}.csv").rename(columns={"pass": "phase"})
    return rows.assign(write_up=[_display(*pair) for pair in zip(rows["source"], rows["device"], strict=True)])


def doubts_list(rows: pd.DataFrame) -> Markdown:
    """Write each doubt about these rows once a source, as a Markdown list of sources; empty where there are none."""
    noted = rows.loc[rows["note"].notna(), ["write_up", "note"]]
    doubts = noted.assign(note=noted["note"].str.split("; ")).explode("note").drop_duplicates()
    by_source = doubts.groupby("write_up", sort=False)["note"].agg("; ".join)
    text = "\n".join(f"- {write_up}: {notes}." for write_up, notes in by_source.items())
    return Markdown(re.sub(r"source (\d+)", lambda match: f"write-up {int(match[1])}", text))


def _display(source: str, device: str) -> str:
    number = int(source.split("_")[0])
    if device == "n/a":
        return f"write-up {number}"
    return f"write-up {number} ({'device not named' if device == 'unknown' else device})"
