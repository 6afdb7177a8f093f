"""Figures that others published of the same assignment: for comparison, never mixed with ours."""

import re
from importlib import resources

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.table_rows import read_rows

FOLDER = resources.files("pipeline.report") / "published"


def load(name: str) -> pd.DataFrame:
    """Read one file of others' figures and name each row's source for display.

    Returns the columns of `published/<name>.csv` and `write_up`, e.g. "write-up 0 (H100)". The doubts about
    a row stand in its `note`. Raises FileNotFoundError for a name that is not there.
    """
    with (FOLDER / f"{name}.csv").open() as file:
        # Only an empty cell is missing: "n/a" is a device's way to say that nothing was measured.
        rows = read_rows(file).rename(columns={"pass": "phase"})
    return rows.assign(write_up=[_display(*pair) for pair in zip(rows["source"], rows["device"], strict=True)])


def doubts(rows: pd.DataFrame) -> pd.DataFrame:
    """List each doubt about these rows once a source: the columns write_up and note, in the order of the rows."""
    noted = rows.loc[rows["note"].notna(), ["write_up", "note"]]
    clauses = noted.assign(note=noted["note"].str.split("; ")).explode("note")
    return clauses.drop_duplicates().reset_index(drop=True)


def doubts_list(rows: pd.DataFrame) -> Markdown:
    """Write the doubts about these rows as a Markdown list, one item a source; empty where there are none."""
    by_source = doubts(rows).groupby("write_up", sort=False)["note"].agg("; ".join)
    text = "\n".join(f"- {write_up}: {notes}." for write_up, notes in by_source.items())
    return Markdown(re.sub(r"source (\d+)", lambda match: f"write-up {int(match[1])}", text))


def _display(source: str, device: str) -> str:
    number = int(source.split("_")[0])
    if device == "n/a":
        return f"write-up {number}"
    return f"write-up {number} ({'device not named' if device == 'unknown' else device})"
