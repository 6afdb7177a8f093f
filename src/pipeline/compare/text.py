"""Write a comparison of two runs as text: how the runs differ, what changed, and a summary in one line."""

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd

from pipeline.compare.ceilings import ceilings_table
from pipeline.compare.judge import CODE, Comparison
from pipeline.compare.models import models_table
from pipeline.compare.times import QUARTILES, REPEATS, UNJUDGED, WITHIN, WORDS
from pipeline.report.intervals import FASTER, SAME, SLOWER, UNDECIDED
from pipeline.report.markup import Markdown
from pipeline.report.reasons import brief
from pipeline.report.section import count, counted, data_size, listing
from pipeline.report.tables import OUTCOME_WORDS, markdown, significant

# Of a table in order of importance, and of a list.
MOST_LINES, MOST_LISTED = 20, 10


def write_comparison(comparison: Comparison, name_a: str, name_b: str, show_all: bool = False) -> str:
    """Write a comparison as Markdown that is also readable in a terminal.

    Without `show_all`, only faster and slower times are listed, and long lists are counted by stage.
    """
    machine_a, machine_b = map(Markdown.escape, comparison.machines)
    parts = [
        f"A: {name_a}, {machine_a}\nB: {name_b}, {machine_b}",
        models_table(comparison.models, comparison.machines),
        ceilings_table(comparison.ceilings, comparison.machines),
        *comparison_parts(comparison, show_all),
        summary(comparison),
    ]
    return "\n\n".join(part for part in parts if part)


def comparison_parts(comparison: Comparison, show_all: bool = False) -> list[str]:
    """Return what differs and what changed, a Markdown text each; empty ones where there is nothing to say."""
    short = partial(_short, cells=comparison.cells)
    return [
        *_differences(comparison.differences),
        _part("Times by stage", _stage_table(comparison), show_all=True),
        _part("Times that differ" if not show_all else "Times", time_table(comparison, show_all), show_all),
        _how_sure(comparison),
        _part("Peak memory that differs", _memory_table(short(comparison.memory)), show_all),
        _list("Outcomes that changed", _outcome_table(short(comparison.outcomes)), show_all, by=["change"]),
        _list("Cells only in A", comparison.only_in_a, show_all),
        _list("Cells only in B", comparison.only_in_b, show_all),
        _list("Rows only in A, of cells that both have", _row_table(short(comparison.rows_only_in_a)), show_all),
        _list("Rows only in B, of cells that both have", _row_table(short(comparison.rows_only_in_b)), show_all),
        _list("Times only in A, of rows that both have", _lost_table(short(comparison.times_only_in_a)), show_all),
    ]


def summary(comparison: Comparison) -> str:
    """Say in one line how B compares with A."""
    outcomes, lost = len(comparison.outcomes), int(comparison.outcomes["worse"].sum())
    differing = len(comparison.memory.drop_duplicates(["stage", "cell"]))
    extras = {
        f"{counted(comparison.figures_lost, 'figure')} lost": comparison.figures_lost,
        f"{counted(outcomes, 'outcome')} changed, {lost} for the worse": outcomes,
        f"peak memory differs in {counted(differing, 'cell')}": differing,
        f"{counted(len(comparison.only_in_a), 'cell')} only in A": len(comparison.only_in_a),
        f"{counted(len(comparison.only_in_b), 'cell')} only in B": len(comparison.only_in_b),
        f"{counted(len(comparison.rows_only_in_a), 'row')} only in A": len(comparison.rows_only_in_a),
        f"{counted(len(comparison.rows_only_in_b), 'row')} only in B": len(comparison.rows_only_in_b),
    }
    parts = [_compared(comparison), *(words for words, count in extras.items() if count)]
    return f"B against A: {'; '.join(parts)}."


def _compared(comparison: Comparison) -> str:
    if comparison.timed.empty:
        return "no time is in both"
    counts, words = comparison.timed["verdict"].value_counts(), verdict_words(comparison.tolerance)
    verdicts = [f"{count(counts[verdict])} {word}" for verdict, word in words.items() if verdict in counts]
    mean = significant(statistics.geometric_mean(comparison.timed["ratio"]))
    every = counted(len(comparison.timed), "median time")
    return f"{every} in both, {', '.join(verdicts)}; geometric mean of B / A {mean}×"


def verdict_words(tolerance: float) -> dict[str, str]:
    """Return how to write each verdict, in table order."""
    return {verdict: f"within {_pct(tolerance)}" if verdict == WITHIN else verdict for verdict in WORDS}


def _pct(fraction: float) -> str:
    return f"{100 * fraction:g}%"


def _how_sure(comparison: Comparison) -> str:
    """Say whether no time differs, how many may, and how many differences a host could have made."""
    timed = comparison.timed
    if timed.empty:
        return ""
    differing, unclear = (timed[timed["verdict"].isin(words)] for words in ([FASTER, SLOWER], [UNDECIDED]))
    unjudged = int((timed["verdict"] == UNJUDGED).sum())
    parts = ["No time is faster or slower."] if differing.empty else [_of_one_process(differing)]
    why = {
        REPEATS: f"known too loosely to call {SAME}",
        QUARTILES: f"more than {_pct(comparison.tolerance)} apart, but known too loosely to call faster or slower",
    }
    counts = unclear["rule"].value_counts()
    parts += [f"{_are(counts[rule])} {words} (--all lists them)." for rule, words in why.items() if rule in counts]
    if unjudged:
        parts.append(f"{_are(unjudged)} not judged: one side is unstable or a single sample (--all lists them).")
    return " ".join(filter(None, parts))


def _are(times: int) -> str:
    return f"{counted(times, 'time')} {'is' if times == 1 else 'are'}"


def _of_one_process(differing: pd.DataFrame) -> str:
    alone = int(((differing["medians_a"].map(len) == 1) & (differing["medians_b"].map(len) == 1)).sum())
    if not alone:
        return ""
    which = "all" if alone == len(differing) else count(alone)
    return f"One process in each run measured {which} of these: an effect of the host would look the same as a change."


def _differences(table: pd.DataFrame) -> list[str]:
    """Tell differences of machine and software line by line, of code in a sentence, of settings in a line per stage."""
    if table.empty:
        return ["Machine, software, code and settings are the same."]
    of_machine, is_code = table["stage"] == "", table["what"].str.startswith(CODE)
    shown = table[of_machine].drop(columns="stage").set_axis(["", "A", "B"], axis="columns")
    code = table[is_code]
    other_code = listing(code["stage"] + code["what"].str.removeprefix(CODE))
    return [
        "### What differs",
        "" if shown.empty else markdown(shown),
        f"The code differs of {other_code}." if other_code else "",
        _setting_table(table[~of_machine & ~is_code]),
    ]


def _setting_table(settings: pd.DataFrame) -> str:
    if settings.empty:
        return ""
    words = settings.assign(**{run.upper(): settings["what"] + "=" + settings[run] for run in "ab"})
    return markdown(words.groupby("stage", sort=False)[["A", "B"]].agg(" ".join).rename_axis("settings").reset_index())


def _list(title: str, table: pd.DataFrame, show_all: bool, by: Sequence[str] = ()) -> str:
    """Write a list whole, or where it is long how many lines it has by stage and the columns `by`."""
    if show_all or len(table) <= MOST_LISTED:
        return _part(title, table.drop(columns=[*by]), show_all=True)
    counts = table[["stage", *by]].agg(" ".join, axis="columns").value_counts(sort=False)
    told = ", ".join(f"{name} {count(lines)}" for name, lines in counts.items())
    return f"{title}: {told} (--all lists them)."


def _part(title: str, table: pd.DataFrame, show_all: bool) -> str:
    if table.empty:
        return ""
    shown = table if show_all else table.head(MOST_LINES)
    left_out = len(table) - len(shown)
    more = f"\n\n… and {left_out} more; --all shows them." if left_out else ""
    return f"### {title}\n\n{markdown(shown)}{more}"


def _outcome_table(outcomes: pd.DataFrame) -> pd.DataFrame:
    words = {
        run: [_outcome(*pair) for pair in zip(outcomes[f"status_{run}"], outcomes[f"reason_{run}"], strict=True)]
        for run in "ab"
    }
    change = [" → ".join(map(_outcome, pair, ("", ""))) for pair in outcomes[["status_a", "status_b"]].to_numpy()]
    return outcomes[["stage", "cell", "row"]].assign(change=change, A=words["a"], B=words["b"])


def _row_table(rows: pd.DataFrame) -> pd.DataFrame:
    """List rows by cell, timed rows first."""
    shown = rows.sort_values("timed", ascending=False, kind="stable")
    return shown.assign(status=shown["status"].map(lambda status: _outcome(status, ""))).drop(columns="timed")


def _outcome(status: str, reason: str) -> str:
    word = OUTCOME_WORDS.get(status, status)
    return f"{word}: {brief(reason)}" if reason else word


def time_table(comparison: Comparison, show_all: bool) -> pd.DataFrame:
    """List faster and slower times, or all of them; slower ones first, then by size of the difference."""
    timed = _short(comparison.timed, comparison.cells)
    shown = timed if show_all else timed[timed["verdict"].isin([FASTER, SLOWER])]
    if shown.empty:
        return shown
    away = shown["ratio"].where(shown["ratio"] >= 1, 1 / shown["ratio"])
    rank = shown["verdict"].map(WORDS.index)
    shown = shown.assign(rank=rank, away=-away).sort_values(["rank", "away"], kind="stable")
    ratios = zip(shown["ratio"], shown["low"], shown["high"], strict=True)
    return pd.DataFrame(
        {
            "stage": shown["stage"],
            "cell": shown["cell"],
            "row": _time_names(shown),
            "A (ms)": shown["median_a"].map(significant),
            "B (ms)": shown["median_b"].map(significant),
            "B / A (from–to)": [
                f"{significant(r)} ({significant(low)}–{significant(high)})" for r, low, high in ratios
            ],
            "verdict": shown["verdict"].map(verdict_words(comparison.tolerance)),
            "judged by": [_rule(line) for line in shown.to_dict("records")],
        }
    )


def _rule(line: dict[str, Any]) -> str:
    """Say what a verdict rests on, and how many processes measured the time in each run."""
    if line["rule"] != REPEATS:
        return line["rule"]
    a, b = len(line["medians_a"]), len(line["medians_b"])
    return f"95% interval, {a} and {b} processes" if (a, b) != (1, 1) else "95% interval, 1 process each"


def _lost_table(times: pd.DataFrame) -> pd.DataFrame:
    return times[["stage", "cell"]].assign(row=_time_names(times))


def _time_names(times: pd.DataFrame) -> pd.Series:
    """Name each time by its row and, unless it is the row's only kind of time, its quantity."""
    return (times["row"] + " " + times["quantity"].str.removesuffix("ms").str.rstrip("_")).str.strip()


def _memory_table(memory: pd.DataFrame) -> pd.DataFrame:
    shown = memory.sort_values("ratio", ascending=False, kind="stable")
    return pd.DataFrame(
        {
            "stage": shown["stage"],
            "cell": shown["cell"],
            "row": shown["row"],
            "of": shown["quantity"].str.removesuffix("_bytes").str.replace("_", " "),
            "A": shown["a"].map(data_size),
            "B": shown["b"].map(data_size),
            "B / A": shown["ratio"].map(significant),
        }
    )


def _short(rows: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """Drop from each stage's cell names the axes that have a single value over both runs.

    An axis with a single value only in these rows stays: the name must still identify the cell.
    """
    short = dict(zip(cells.itertuples(index=False, name=None), _varying_axes(cells), strict=True))
    return rows.assign(cell=[short[pair] for pair in zip(rows["stage"], rows["cell"], strict=True)])


def _varying_axes(cells: pd.DataFrame) -> pd.Series:
    def varying(names: pd.Series) -> pd.Series:
        if len(names) == 1:
            return names
        axes = names.str.split(" ", expand=True)
        return axes.loc[:, axes.nunique(dropna=False) > 1].fillna("").agg(" ".join, axis=1).str.strip()

    return cells.groupby("stage", sort=False)["cell"].transform(varying)


def _stage_table(comparison: Comparison) -> pd.DataFrame:
    """Summarise each stage by quantity: GPU times may agree where times of host calls do not."""
    timed = comparison.timed
    found = {
        verdict: word
        for verdict, word in verdict_words(comparison.tolerance).items()
        if verdict in set(timed["verdict"])
    }
    lines = [
        {
            "stage, quantity": f"{stage}, {quantity}",
            "times": count(len(group)),
            **{word: count((group["verdict"] == verdict).sum()) for verdict, word in found.items()},
            "B / A, geometric mean": significant(statistics.geometric_mean(group["ratio"])),
        }
        for (stage, quantity), group in timed.groupby(["stage", "quantity"], sort=False)
    ]
    return pd.DataFrame(lines)
