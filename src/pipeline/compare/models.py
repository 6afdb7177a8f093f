"""The models of the reports' first screens, of two runs beside each other."""

from collections.abc import Callable
from typing import Any

import pandas as pd

from pipeline.cells.stage import Stages
from pipeline.compare.runs import Record
from pipeline.report.markup import Markdown
from pipeline.report.page_parts import say
from pipeline.report.section import count, number, ratio
from pipeline.report.section_rows import by_stage, section_rows
from pipeline.report.table_rows import has_figures
from pipeline.report.tables import markdown, with_outcomes

SETTING = ["precision", "context_length", "batch_size"]
STEP = ["size", *SETTING]
FIGURES = ["tokens_per_s", "tuned_tokens_per_s", "peak_bytes"]
TITLE = (
    "Training steps as on a report's first screen: {precision}, batch {batch}, context {context}. "
    "×: times as fast as {a}.{tuned}"
)
NONE_IN_BOTH = Markdown("The two runs have no model in common at the same precision, context and batch.")
TUNED = " tuned: with the fastest optimizations that each run measured."

Models = Callable[..., list[dict[str, Any]]]


def models_of_both(a: list[Record], b: list[Record], stages: Stages) -> pd.DataFrame | None:
    """Return STEP and, as NAME_a and NAME_b, FIGURES and status of each model.

    At the larger context of both first screens, if both runs have figures there, or else at the smaller one; empty
    where they have no model in common. None where a run has no first screen. status: NaN for a model that a run has not
    measured.
    """
    for stage in stages.values():
        if models := stage.models():
            runs = [section_rows(stage, stages, by_stage(records)) for records in (a, b)]
            return None if any(rows.empty for rows, *_ in runs) else _beside(models, runs)
    return None


def _beside(models: Models, runs: list[list[Any]]) -> pd.DataFrame:
    own = pd.concat([_told(models, *run) for run in runs])
    for setting in own[SETTING].drop_duplicates().sort_values("context_length", ascending=False).to_dict("records"):
        rows = [_at(run[0], setting) for run in runs]
        a, b = (_told(models, shown, *beside) for shown, (_, *beside) in zip(rows, runs, strict=True))
        if {*a["size"]} & {*b["size"]}:
            steps = pd.concat([a, b])[STEP].drop_duplicates()
            both = steps.merge(a, "left").merge(b, "left", on=STEP, suffixes=("_a", "_b"))
            failed = {f"status_{run}": both["size"].map(_failed(shown)) for run, shown in zip("ab", rows, strict=True)}
            return both.astype(dict.fromkeys(failed, object)).fillna(failed)
    return pd.DataFrame()


def _told(models: Models, rows: pd.DataFrame, *beside: Any) -> pd.DataFrame:
    found = [] if rows.empty else models(rows, *beside)
    table = pd.DataFrame(found, columns=[*STEP, *FIGURES, "status"]).astype(dict.fromkeys(FIGURES, float))
    return table.dropna(subset="tokens_per_s")


def _at(rows: pd.DataFrame, setting: dict[str, Any]) -> pd.DataFrame:
    return rows[(rows[SETTING] == pd.Series(setting)).all(axis=1)]


def _failed(rows: pd.DataFrame) -> pd.Series:
    """Return what became of the models that have rows without figures."""
    return rows[~has_figures(rows["status"])].groupby("size")["status"].first()


def models_table(models: pd.DataFrame | None, machines: tuple[str, str]) -> Markdown:
    """Write the models of two runs as a table, which calls the runs by their machines where these differ.

    Nothing where a run has no first screen.
    """
    if models is None:
        return Markdown()
    if models.empty:
        return NONE_IN_BOTH
    a, b = machines if machines[0] != machines[1] else "AB"
    columns = {
        "model": models["size"],
        f"tokens/s {a}": _tokens(models, "a"),
        f"tokens/s {b}": _tokens(models, "b"),
        "×": _gain(models, "tokens_per_s"),
        f"tuned {a}": models["tuned_tokens_per_s_a"].map(count, na_action="ignore"),
        f"tuned {b}": models["tuned_tokens_per_s_b"].map(count, na_action="ignore"),
        "tuned ×": _gain(models, "tuned_tokens_per_s"),
        "peak GB": [_peaks(*pair) for pair in zip(models["peak_bytes_a"], models["peak_bytes_b"], strict=True)],
    }
    table = pd.DataFrame(columns).dropna(axis="columns", how="all")
    precision, context, batch = models[SETTING].iloc[0]
    tuned = TUNED if {f"tuned {a}", f"tuned {b}"} & {*table} else ""
    title = say(TITLE, precision=precision, batch=batch, context=context, a=a, tuned=tuned)
    return Markdown("\n\n").join([title, markdown(table.fillna("–"))])


def _tokens(models: pd.DataFrame, run: str) -> pd.Series:
    """Write a run's tokens/s: OOM, say, where it has none, and a dash where it has not measured the model."""
    told = pd.DataFrame({"status": models[f"status_{run}"].fillna("ok"), "reason": None})
    return with_outcomes(models[f"tokens_per_s_{run}"].map(count, na_action="ignore").fillna("–"), told)


def _gain(models: pd.DataFrame, figure: str) -> pd.Series:
    return (models[f"{figure}_b"] / models[f"{figure}_a"]).map(ratio, na_action="ignore")


def _peaks(*peaks_bytes: float) -> str | None:
    """Write the peaks that are known, as one where they look the same; None where none is."""
    return " and ".join(dict.fromkeys(number(peak / 1e9) for peak in peaks_bytes if pd.notna(peak))) or None
