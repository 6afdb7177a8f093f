"""The precision section: what must stay in fp32 when all else is fp16 or bf16."""

from typing import Any

import pandas as pd

from pipeline.report.outcomes import not_measured, nothing_measured
from pipeline.report.page_parts import Section
from pipeline.stages.precision.report import formats, sums
from pipeline.stages.precision.report.selection import figures_of, shown

TITLE = "What must stay in fp32?"
EXERCISE = "mixed_precision_accumulation, benchmarking_mixed_precision (a), (b)"
METHOD = (
    "Sums are added step by step; errors are against exact arithmetic, those of layer norm against fp64 on the same"
    " input. Data types are those that hooks and a dispatch mode see in one training step."
)


def build(rows: pd.DataFrame) -> Section:
    """Return the section of the precision stage, from all its rows."""
    if (rows["status"] != "ok").all():
        return Section(TITLE, EXERCISE, nothing_measured(rows))
    # What was skipped on a device without any figure, such as a GPU where there is none, is not missing.
    present = rows["device"].isin(rows.loc[rows["status"] == "ok", "device"])
    rows = rows[present | (rows["status"] != "skipped")]
    added, norms, dtypes = shown(rows, "accumulation"), shown(rows, "layer_norm"), figures_of(rows, "autocast")
    answers = [f"{sums.sum_of(added)} give {sums.results(added)}."] if len(added) else []
    answers += [formats.layer_norm_answer(norms)] if len(norms) else []
    parts: list[Any] = [sums.figure(added), sums.table(added), sums.predictions(rows, added)] if len(added) else []
    return Section(
        TITLE,
        EXERCISE,
        " ".join(answers) or "Neither sums nor layer norm were measured.",
        parts=[*parts, not_measured(rows, "experiment")],
        method=METHOD,
        problems=[
            *([sums.problem(added)] if len(added) else []),
            *([formats.autocast_problem(dtypes)] if len(dtypes) else []),
            *formats.layer_norm_problem(norms, shown(rows, "layer_norm_eps")),
        ],
    )
