"""Put values that five write-ups of the course's problems, and the course, published beside the values of runs.

`published.csv` has one line per value: source (which write-up), stage, machine (empty where it is not named), of (what
it measures, in the words of the stage's axes and row keys, as far as the source says), quantity (a column of the stage,
with its unit), value. Values taken under a profiler, or without waiting for the GPU, are left out.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.cells import fields
from pipeline.cells.stage import Stage
from pipeline.compare.pair import KEYS, named, words
from pipeline.compare.runs import Run
from pipeline.report.formats import number
from pipeline.report.table import Table
from pipeline.report.table import named as columns

FILE = Path(__file__).with_name("published.csv")
CAPTION = (
    "Beside what write-ups and the course published, by other code and on machines of their own, so without verdicts. "
    "What a source does not say is taken for the stage's default:"
)


def load(stage: str) -> pd.DataFrame:
    """Return the values of a stage; empty for a stage without any."""
    rows = pd.read_csv(FILE, dtype={"source": str}, keep_default_na=False)
    return rows[rows["stage"] == stage]


def beside(runs: Sequence[Run]) -> Table:
    """Return one line per row of a run that a source has a value for, with a column for each run and each source."""
    found = [line for run in runs for name in run.frames for line in _matched(run, run.stages[name])]
    lines = pd.DataFrame(found, columns=[*KEYS, "of", "value"])
    names = [run.name for run in runs if run.name in set(lines["of"])]
    sources = sorted(set(lines["of"]) - {*names}, key=lambda name: (not name.startswith("write-up"), name))
    lines = lines.pivot_table("value", KEYS, "of", "first", sort=False).reset_index()
    values = [(name, name, number) for name in (*names, *sources)]
    return Table("published", CAPTION, lines, [*columns(lines, "stage cell:code row quantity"), *values])


def _matched(run: Run, stage: Stage) -> Iterator[dict[str, Any]]:
    """Yield for each value of a stage that a row of the run is of the row's own value, and the published one."""
    published = load(stage.name)
    rows = run.frames[stage.name].to_dict("records") if len(published) else []
    known = [words(row, stage) for row in rows]
    # Write-ups time by the host's clock.
    defaults = fields.texts(stage.cell_type()) | {"clock": "host"}
    for value in published.to_dict("records"):
        said = dict(word.split("=") for word in value["of"].split()).items()
        fits = [place for place, each in enumerate(known) if said <= each.items()]
        fits = [place for place in fits if pd.notna(rows[place].get(value["quantity"]))]
        alike = [len(defaults.items() & known[place].items()) for place in fits]
        if alike.count(max(alike, default=0)) == 1:
            row = rows[fits[alike.index(max(alike))]]
            line = named(row, stage) | {"quantity": value["quantity"]}
            yield {**line, "of": run.name, "value": row[value["quantity"]]}
            who = f"write-up {value['source']}" if value["source"].isdigit() else f"the {value['source']}"
            of = f"{who} ({value['machine'] or 'machine not named'}, other code)"
            yield {**line, "of": of, "value": value["value"]}
