"""Show the values of runs beside those published by the course and by five write-ups of its problems.

`published.csv` has one line per value: source (which write-up), stage, machine (empty if it is not named), of (what it
measures, as `name=value` of the stage's axes and row keys, as far as the source says), quantity (a column of the stage,
with its unit), value. Values taken under a profiler, or without waiting for the GPU, are left out.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.cells import fields
from pipeline.cells.stage import Stage
from pipeline.compare.pair import KEYS, row_names, words
from pipeline.compare.runs import Run
from pipeline.report.formats import number
from pipeline.report.table import Table, columns_of

FILE = Path(__file__).with_name("published.csv")
CAPTION = (
    "Compared with values published by the course and by write-ups, from other code on other machines, so without "
    "verdicts. Unstated axes are assumed to have the stage's defaults:"
)


def load(stage: str) -> pd.DataFrame:
    """Return the values of a stage; empty for a stage without any."""
    rows = pd.read_csv(FILE, dtype={"source": str}, keep_default_na=False)
    return rows[rows["stage"] == stage]


def comparison_table(runs: Sequence[Run]) -> Table:
    """Return one line per row of a run that a source has a value for, with a column for each run and each source."""
    found = [line for run in runs for name in run.frames for line in _matched(run, run.stages[name])]
    lines = pd.DataFrame(found, columns=[*KEYS, "of", "value"])
    names = [run.name for run in runs if run.name in set(lines["of"])]
    sources = sorted(set(lines["of"]) - {*names}, key=lambda name: (not name.startswith("write-up"), name))
    lines = lines.pivot_table("value", KEYS, "of", "first", sort=False).reset_index()
    values = [(name, name, number) for name in (*names, *sources)]
    return Table("published", CAPTION, lines, [*columns_of(lines, "stage cell:code row quantity"), *values])


def _matched(run: Run, stage: Stage) -> Iterator[dict[str, Any]]:
    """Yield each published value of a stage with that of the run's row that fits it best; ties are left out."""
    published = load(stage.name)
    rows = run.frames[stage.name].to_dict("records") if len(published) else []
    row_words = [words(row, stage) for row in rows]
    # Write-ups time with the host's clock.
    defaults = fields.texts(stage.cell_type()) | {"clock": "host"}
    for value in published.to_dict("records"):
        stated = dict(word.split("=") for word in value["of"].split()).items()
        matches = [place for place, each in enumerate(row_words) if stated <= each.items()]
        matches = [place for place in matches if pd.notna(rows[place].get(value["quantity"]))]
        scores = [len(defaults.items() & row_words[place].items()) for place in matches]
        if scores.count(max(scores, default=0)) == 1:
            row = rows[matches[scores.index(max(scores))]]
            line = row_names(row, stage) | {"quantity": value["quantity"]}
            yield {**line, "of": run.name, "value": row[value["quantity"]]}
            who = f"write-up {value['source']}" if value["source"].isdigit() else f"the {value['source']}"
            of = f"{who} ({value['machine'] or 'machine not named'}, other code)"
            yield {**line, "of": of, "value": value["value"]}
