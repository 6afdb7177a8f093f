"""Follow one row over runs in order of time, and find the runs at which its time changed by a step."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.cells import fields
from pipeline.cells.stage import Stage
from pipeline.compare.pair import words, work
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
    """Return the history of one row, for `table` and `chart`: a line for each run that has it, in order of time.

    given: words `axis=value` and `key=value`, enough to name one row; the column `row` has its full name.
    Raises UserError, one line, if the words name no row or several, or if fewer than two runs have a time.
    """
    request = f"compare: --history {' '.join([stage.name, *given])}"
    wanted = dict(word.partition("=")[::2] for word in given)
    allowed = list(dict.fromkeys([*stage.naming_axes, *stage.row_types.key_columns(), *stage.row_types.work_columns()]))
    if unknown := [name for name in wanted if name not in allowed]:
        raise UserError(f"{request}: unknown key '{unknown[0]}': must be one of {', '.join(allowed)}")
    rows = pd.DataFrame([line for run in runs if stage.name in run.frames for line in _lines(run, stage, wanted)])
    keys = pd.DataFrame([*rows.get("words", ())])
    ambiguous = {
        name: "|".join(map(str, each.unique())) for name, each in keys.items() if each.nunique(dropna=False) > 1
    }
    if ambiguous:
        differing = ", ".join(f"{name}={values}" for name, values in ambiguous.items())
        raise UserError(f"{request} names several rows; they differ in {differing}")
    if len(rows) < 2:
        raise UserError(f"{request} has a time in {len(rows)} of {len(runs)} runs: a history needs two")
    rows = rows.sort_values("measured", kind="stable", ignore_index=True)
    steps_by_place = {step.place: step for step in steps(rows["medians_ms"].tolist())}
    stretch_start = rows["run"].where(rows.index.isin([0, *steps_by_place])).ffill()
    row = " ".join([stage.name, *(f"{name}={word}" for name, word in keys.iloc[0].items())])
    step_labels = rows.index.map({place: _step_label(step) for place, step in steps_by_place.items()})
    return rows.assign(number=rows.index + 1, since="since " + stretch_start, step=step_labels, row=row)


def table(rows: pd.DataFrame) -> Table:
    """Return a history as a table with one line for each run."""
    names = "run measured commit cards median_ms:ms low_ms:ms high_ms:ms repeats step:text"
    return WORDS.table("runs", rows, names, alarm_rate=ALARM_RATE)


def chart(rows: pd.DataFrame) -> Chart:
    """Chart a history with its intervals; each stretch between two steps has its own colour."""
    axes, hover_columns = ("number", Axis("median_ms", zero=False), "since"), "run measured commit cards step"
    return WORDS.chart("history", rows, "line", *axes, low="low_ms", high="high_ms", hover=hover_columns)


def _lines(run: Run, stage: Stage, wanted: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a run that have a time and match these words."""
    for row in having(run.frames[stage.name], "median_ms").to_dict("records"):
        keys = words(row, stage) | work(row, stage)
        if wanted.items() <= keys.items():
            records = [
                record for record in run.records if record["stage"] == stage.name and _has_keys(record, stage, keys)
            ]
            low_ms, high_ms = median_interval(row)
            yield {
                **{name: row[name] for name in ("median_ms", "medians_ms", "status", "repeats", "cards")},
                **{"low_ms": low_ms, "high_ms": high_ms, "words": keys, "run": run.name},
                "measured": min(record["started_at"] for record in records),
                "commit": records[0]["code"]["commit"],
            }


def _has_keys(record: Mapping[str, Any], stage: Stage, keys: Mapping[str, str]) -> bool:
    """Tell whether a record has the axis values of a row; a record older than an axis has its default."""
    axes = fields.texts(stage.cell_type(**record["cell"]))
    return all(keys[name] == word for name, word in axes.items() if name in keys)


def _step_label(step: Step) -> str:
    word = SLOWER if step.ratio > 1 else FASTER
    return f"{times(max(step.ratio, 1 / step.ratio))} {word} (p = {step.p_value:.2g})"
