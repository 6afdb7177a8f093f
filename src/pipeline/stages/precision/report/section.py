"""The precision section: what must stay in fp32 when all else is fp16 or bf16."""

from collections.abc import Callable
from typing import Any

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.outcomes import not_measured, nothing_measured
from pipeline.report.page_parts import Section
from pipeline.stages.precision.report import autocast, layer_norm, sums
from pipeline.stages.precision.report.facts import figures_of, shown, without_absent_devices

TITLE = "What must stay in fp32?"
EXERCISE = "mixed_precision_accumulation, benchmarking_mixed_precision (a), (b)"
METHOD = Markdown(
    "Sums are added step by step; errors are against exact arithmetic, those of layer norm against fp64 on the same"
    " input. Data types are those that hooks and a dispatch mode see in one training step."
)


def build(rows: pd.DataFrame) -> Section:
    """Return the section of the precision stage, from all its rows."""
    if (rows["status"] != "ok").all():
        return Section(TITLE, EXERCISE, nothing_measured(rows))
    rows = without_absent_devices(rows)
    added, norms = shown(rows, "accumulation"), shown(rows, "layer_norm")
    dtypes, eps = figures_of(rows, "autocast"), shown(rows, "layer_norm_eps")
    answers = [*_if(added, sums.answer), *_if(norms, layer_norm.answer)]
    return Section(
        TITLE,
        EXERCISE,
        Markdown(" ").join(answers) if answers else Markdown("Neither sums nor layer norm were measured."),
        parts=[
            *_if(added, sums.figure, sums.table, lambda shown_sums: sums.predictions(rows, shown_sums)),
            *_if(norms, layer_norm.table),
            not_measured(rows, "experiment"),
        ],
        method=METHOD,
        problems=[*_if(added, sums.problem), *_if(dtypes, autocast.problem), *layer_norm.problem(norms, eps)],
    )


def _if(rows: pd.DataFrame, *makers: Callable[[pd.DataFrame], Any]) -> list[Any]:
    return [make(rows) for make in makers] if len(rows) else []
