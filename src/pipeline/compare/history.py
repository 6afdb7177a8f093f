"""Follow one row over runs in the order of their time, and name the runs at which its time changed by a step."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.cells import fields
from pipeline.cells.stage import Stage
from pipeline.compare.pair import words
from pipeline.compare.runs import Run
from pipeline.errors import UserError
from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import times
from pipeline.report.frame import having
from pipeline.report.table import Table
from pipeline.report.versus import FASTER, SLOWER, median_interval
from pipeline.report.words import Words
from pipeline.statistics.steps import ALARM_RATE, Step, steps

WORDS = Words(__file__)


def history(runs: Sequence[Run], stage: Stage, given: Sequence[str]) -> pd.DataFrame:
    """Return one row's times, one line for each run that has it: `row`, its words, and what `table` and `chart` show.

    given: words `axis=value` and `key=value` that name the row, as many as it takes.
    Raises UserError, one line, for words that name no row or several, and where fewer than two runs have a time.
    """
    what = f"compare: --history {' '.join([stage.name, *given])}"
    said = dict(word.partition("=")[::2] for word in given)
    allowed = [*stage.naming_axes, *stage.row_types.key_columns()]
    if unknown := [name for name in said if name not in allowed]:
        raise UserError(f"{what}: {unknown[0]} must be one of {', '.join(allowed)}")
    rows = pd.DataFrame([line for run in runs if stage.name in run.frames for line in _lines(run, stage, said)])
    named = pd.DataFrame([*rows.get("words", ())])
    open_ = {name: "|".join(map(str, each.unique())) for name, each in named.items() if each.nunique(dropna=False) > 1}
    if open_:
        differing = ", ".join(f"{name}={values}" for name, values in open_.items())
        raise UserError(f"{what} names several rows; they differ in {differing}")
    if len(rows) < 2:
        raise UserError(f"{what} has a time in {len(rows)} of {len(runs)} runs: a history needs two")
    rows = rows.sort_values("measured", kind="stable", ignore_index=True)
    found = {step.place: step for step in steps(rows["medians_ms"].tolist())}
    first = rows["run"].where(rows.index.isin([0, *found])).ffill()
    row = " ".join([stage.name, *(f"{name}={word}" for name, word in named.iloc[0].items())])
    told = rows.index.map({place: _told(step) for place, step in found.items()})
    return rows.assign(number=rows.index + 1, since="since " + first, step=told, row=row)


def table(rows: pd.DataFrame) -> Table:
    """Write a history with one line for each run."""
    names = "run measured commit cards median_ms:ms low_ms:ms high_ms:ms repeats step:text"
    return WORDS.table("runs", rows, names, alarm_rate=ALARM_RATE)


def chart(rows: pd.DataFrame) -> Chart:
    """Draw a history with its intervals, in a colour of its own what lies between two steps."""
    axes, told = ("number", Axis("median_ms", zero=False), "since"), "run measured commit cards step"
    return WORDS.chart("history", rows, "line", *axes, low="low_ms", high="high_ms", hover=told)


def _lines(run: Run, stage: Stage, said: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a run that have a time and these words among those that name them."""
    for row in having(run.frames[stage.name], "median_ms").to_dict("records"):
        named = words(row, stage)
        if said.items() <= named.items():
            own = [record for record in run.records if record["stage"] == stage.name and _is_of(record, stage, named)]
            low_ms, high_ms = median_interval(row)
            yield {
                **{name: row[name] for name in ("median_ms", "medians_ms", "status", "repeats", "cards")},
                **{"low_ms": low_ms, "high_ms": high_ms, "words": named, "run": run.name},
                "measured": min(record["started_at"] for record in own),
                "commit": own[0]["code"]["commit"],
            }


def _is_of(record: Mapping[str, Any], stage: Stage, named: Mapping[str, str]) -> bool:
    """Tell whether a record is of the axes of a row; one from before an axis was there has its default."""
    axes = fields.texts(stage.cell_type(**record["cell"]))
    return all(named[name] == word for name, word in axes.items() if name in named)


def _told(step: Step) -> str:
    word = SLOWER if step.ratio > 1 else FASTER
    return f"{times(max(step.ratio, 1 / step.ratio))} {word} (p = {step.p_value:.2g})"
