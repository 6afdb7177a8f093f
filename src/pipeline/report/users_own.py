"""What a section says of implementations of the user's own: their place among the others, or what is wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Drawing

from pipeline.cells.fields import text
from pipeline.cells.stage import Stage
from pipeline.report.figures import WORD_PT, footnote, new_figure, style_for
from pipeline.report.markup import Markdown, code
from pipeline.report.page_parts import MOST_TABLE_ROWS, Figure, Problem, Section, Table, say
from pipeline.report.section import ratio
from pipeline.report.side_by_side import step_words
from pipeline.report.table_rows import has_figures, ok
from pipeline.report.tables import significant
from pipeline.subjects.naming import Measured

MOST_PANELS = 4
FIGURES = ("median_ms", "q1_ms", "q3_ms")


def without_users_own(rows: pd.DataFrame, stage: Stage) -> pd.DataFrame:
    """Drop the rows of the user's own where the stage compares no implementations otherwise."""
    if stage.subjects is None or not stage.subjects.pipelines:
        return rows
    return rows[rows["impl"].isna()].reset_index(drop=True)


def with_users_own(section: Section, rows: pd.DataFrame, stage: Stage) -> Section:
    """Return a section with a ranking of the user's own implementations, where its rows have any; else as it is."""
    if stage.subjects is None:
        return section
    if stage.subjects.pipelines:
        rows = rows.assign(impl=rows["impl"].astype(object).fillna(stage.subjects.pipelines))
    if set(rows["impl"]) <= stage.row_types.names():
        return section
    ranked = ranking(rows, stage, stage.subjects)
    failures, timed = _failures(ranked[ranked["own"]]), _first_problems(ranked)
    parts: list[Any] = [*failures, *_remarks(ranked[ranked["own"]])]
    if len(timed):
        parts += [Figure("users_own", _sentence(timed), _bars(timed)), _table(timed, _by_phase(rows, stage, timed))]
    return replace(
        section,
        parts=[*section.parts, *parts],
        headline=[*section.headline, *failures],
        users_own=_rows(timed, stage),
        problems=[_with_place(problem, ranked, stage) for problem in section.problems],
    )


def ranking(rows: pd.DataFrame, stage: Stage, measured: Measured) -> pd.DataFrame:
    """Return the rows that rank implementations: of each problem, the user's own and what they are compared with.

    Columns are those of the rows, `problem` (the axes that differ between cells, as text), `label` (implementation and,
    say, bucket size), `own`, and among rows with figures `place` and `of`. The stage's first problem leads.
    """
    cells = {name: value for name, value in measured.whole.items() if name != "phase"}
    every = rows[(rows[list(cells)] == pd.Series(cells, dtype=object)).all(axis=1)]
    differing = [name for name in stage.axes if every[name].nunique() > 1]
    whole = every[every["phase"] == measured.whole["phase"]]
    whole = whole[~whole["impl"].isin(measured.apart)].reset_index(drop=True)
    whole = whole.reindex(columns=list(dict.fromkeys([*whole, *FIGURES])))  # of which there may be none
    keys = [name for name in stage.row_types.key_columns() if name in whole and name not in ("impl", *measured.whole)]
    whole["problem"] = [" ".join(f"{name}={text(row[name])}" for name in differing) for _, row in whole.iterrows()]
    whole["label"] = [_label(row, keys) for _, row in whole.iterrows()]
    whole["own"] = ~whole["impl"].isin(stage.row_types.names())
    timed = ok(whole).groupby("problem")["median_ms"]
    whole["place"], whole["of"] = timed.rank(method="min"), timed.transform("size")
    leads = whole[list(measured.first)] == pd.Series(measured.first, dtype=object)
    whole["first"] = leads.all(axis=1) if measured.first else False
    whole["longest_ms"] = whole.groupby("problem")["median_ms"].transform("max")
    return whole.sort_values(["first", "longest_ms", "problem", "median_ms"], ascending=[False, False, True, True])


def _label(row: pd.Series, keys: Sequence[str]) -> str:
    told = ", ".join(f"{key} {text(int(row[key]))}" for key in keys if pd.notna(row[key]))
    return f"{row['impl']} ({told})" if told else row["impl"]


def place_words(row: pd.Series, among: pd.DataFrame) -> Markdown:
    """Say which place an implementation takes among the timed rows of its problem, and who is first."""
    is_first = among.loc[among["median_ms"].idxmin(), "label"] == row["label"]
    others, beside = among[among["label"] != row["label"]], ""
    if len(others):
        fastest = others.loc[others["median_ms"].idxmin()]
        beside = f", the {'next' if is_first else 'first'}, {fastest['label']}, {step_words(fastest)}"
    return say(
        "{name} takes place {place} of {of} with {time}{beside}",
        name=code(row["label"]),
        place=int(row["place"]),
        of=int(row["of"]),
        time=step_words(row),
        beside=beside,
    )


def _unstable(row: pd.Series) -> str:
    return " (unstable)" if row["status"] == "unstable" else ""


def _rows(timed: pd.DataFrame, stage: Stage) -> list[dict[str, str]]:
    """Write the first screen's rows: each of the user's own at the first problem, beside the fastest of the others."""
    if timed.empty:
        return []
    among = timed[timed["problem"] == timed["problem"].iloc[0]]
    best = _best_of_others(among)
    return [
        {
            "your own": row["label"],
            "measured in": f"{stage.name} {row['problem']}".strip(),
            "median": step_words(row),
            "place": f"{int(row['place'])} of {int(row['of'])}",
            "fastest of the others": "–" if best is None else f"{best['label']}, {step_words(best)}",
            "your time over its": "–" if best is None else ratio(row["median_ms"] / best["median_ms"]),
        }
        for _, row in _best_of_own(among).iterrows()
    ]


def _with_place(problem: Problem, ranked: pd.DataFrame, stage: Stage) -> Problem:
    """Add the places of the user's own to the answer of the exercise that they were measured for."""
    timed = ok(ranked[ranked["first"]])
    if stage.subjects is None or problem.name != stage.subjects.exercise or not timed["own"].any():
        return problem
    return replace(problem, answer=problem.answer + say(" {places}.", places=_places(timed)))


def _places(timed: pd.DataFrame) -> Markdown:
    """Say the places of the user's own at the first problem."""
    among = timed[timed["problem"] == timed["problem"].iloc[0]]
    return Markdown("; ").join(place_words(row, among) for _, row in _best_of_own(among).iterrows())


def _best_of_own(group: pd.DataFrame) -> pd.DataFrame:
    """Keep the fastest row of each of the user's own: one that takes a bucket size has several."""
    own = group[group["own"]]
    return own.loc[own.groupby("impl", sort=False)["median_ms"].idxmin()]


def _best_of_others(group: pd.DataFrame) -> pd.Series | None:
    others = group[~group["own"]]
    return others.loc[others["median_ms"].idxmin()] if len(others) else None


def _sentence(timed: pd.DataFrame) -> Markdown:
    problem = timed["problem"].iloc[0]
    return say("{places}{where}", places=_places(timed), where=f" ({problem})" if problem else "")


def _first_problems(ranked: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows with figures of problems that the user's own have figures of, at most as many as a table shows."""
    timed = ok(ranked)
    problems = timed.loc[timed["own"], "problem"].unique()[:MOST_TABLE_ROWS]
    return timed[timed["problem"].isin(problems)]


def _failures(own: pd.DataFrame) -> list[Markdown]:
    """Say of each of the user's own without figures why it has none, each reason once."""
    failed = own[~has_figures(own["status"])]
    return [
        say("Your {name} is {status}: {reason}.", name=code(row["impl"]), status=row["status"], reason=row["reason"])
        for _, row in failed.drop_duplicates(["impl", "reason"]).head(MOST_TABLE_ROWS).iterrows()
    ]


def _remarks(own: pd.DataFrame) -> list[Markdown]:
    """Repeat what is told of each of the user's own that has a figure, such as what it changed for all."""
    told = own[own["status"] == "ok"].dropna(subset="reason").drop_duplicates(["impl", "reason"])
    return [
        say("Of your {name}: {reason}.", name=code(row["impl"]), reason=row["reason"])
        for _, row in told.head(MOST_TABLE_ROWS).iterrows()
    ]


def _by_phase(rows: pd.DataFrame, stage: Stage, timed: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return what is ranked by phase: first the whole, then each of its phases that the user's own have figures of."""
    measured = stage.subjects
    assert measured is not None
    whole = measured.whole["phase"]
    tables = {whole: timed}
    for phase in rows["phase"].dropna().unique():
        if phase != whole:
            of_phase = replace(measured, whole={**measured.whole, "phase": phase})
            part = ok(ranking(rows, stage, of_phase))
            with_own = part.loc[part["own"], "problem"]
            tables[phase] = part[part["problem"].isin(with_own) & part["problem"].isin(timed["problem"])]
    return {phase: table for phase, table in tables.items() if len(table)}


def _table(timed: pd.DataFrame, by_phase: Mapping[str, pd.DataFrame]) -> Table:
    """Write one line per problem and phase: for each of the user's own its time and place, and the fastest other."""
    lines = []
    for problem in timed["problem"].unique():
        for phase, ranked in by_phase.items():
            group = ranked[ranked["problem"] == problem]
            if len(group):
                phases = {"phase": phase} if len(by_phase) > 1 else {}
                lines.append({"problem": problem or "–", **phases, **_cells(group)})
    title = Markdown(
        "Your own beside the others, medians in ms; in brackets the place among all that have a figure, the time "
        "over that of the fastest of the others, and the rate where one is known:"
    )
    return Table(title, pd.DataFrame(lines[:MOST_TABLE_ROWS]).fillna("–"))


def _cells(group: pd.DataFrame) -> dict[str, str]:
    best = _best_of_others(group)
    own = {row["impl"]: _place_cell(row, best) for _, row in _best_of_own(group).iterrows()}
    fastest = "–" if best is None else f"{best['label']} {significant(best['median_ms'])}{_unstable(best)}"
    return {**own, "fastest of the others": fastest}


def _place_cell(row: pd.Series, best: pd.Series | None) -> str:
    label = row["label"].removeprefix(row["impl"]).strip(" ()")
    unstable = "unstable" if row["status"] == "unstable" else ""
    over = "" if best is None else ratio(row["median_ms"] / best["median_ms"])
    rate = row.get("tflops_per_s")
    reached = f"{significant(rate)} TFLOP/s" if pd.notna(rate) else ""
    told = ", ".join(filter(None, (label, unstable, f"{int(row['place'])} of {int(row['of'])}", over, reached)))
    return f"{significant(row['median_ms'])} ({told})"


def _bars(timed: pd.DataFrame) -> Drawing:
    """Draw one panel per problem, one bar per implementation, the fastest on top; the user's own are hatched."""
    panels_of = list(timed.groupby("problem", sort=False))[:MOST_PANELS]
    most = max(len(group) for _, group in panels_of)
    figure, panels = new_figure(len(panels_of), 1, panel_height_in=0.28 * most + 0.7)
    for axes, (problem, group) in zip(panels[:, 0], panels_of, strict=True):
        group = group.sort_values("median_ms")
        spread = [group["median_ms"] - group["q1_ms"], group["q3_ms"] - group["median_ms"]]
        bars = axes.barh(
            group["label"], group["median_ms"], xerr=spread, color=[style_for(impl)["color"] for impl in group["impl"]]
        )
        for bar, is_own in zip(bars, group["own"], strict=True):
            bar.set(hatch="//" if is_own else None, edgecolor="white", linewidth=0)
        axes.invert_yaxis()
        axes.set_title(problem, loc="left", fontsize=WORD_PT)
        axes.grid(visible=False, axis="y")
    panels[-1, 0].set_xlabel("ms, median and quartiles")
    row = timed.iloc[0]
    footnote(figure, f"{row['machine']}, torch {row['torch']}", "hatched: your own")
    return figure
