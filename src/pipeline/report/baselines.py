"""The page of others' figures: what five write-ups of the same assignment measured, beside ours."""

from collections.abc import Mapping
from pathlib import Path
from statistics import geometric_mean

import pandas as pd
from matplotlib.figure import Figure

from pipeline.cells.disk import write_text
from pipeline.cells.record import read_record
from pipeline.cells.stage import Stage, Stages
from pipeline.report.figures import footnote, log_values_axis, new_figure, save, shared_legend, style_for
from pipeline.report.markup import Markdown
from pipeline.report.page_parts import say
from pipeline.report.published import doubts_list
from pipeline.report.section_rows import Records, by_stage, shown_rows
from pipeline.report.table_rows import ok
from pipeline.report.tables import markdown, significant
from pipeline.report.users_own import without_users_own

# Of the pairs that a stage returns.
COLUMNS = ["what", "unit", "theirs", "ours", "write_up", "note"]
INTRODUCTION = Markdown(
    "Figures that five write-ups of the same assignment published, each beside ours for the same model, shape and"
    " setting. They were measured on other machines, by hand. A ratio below 1 means that ours is the smaller figure."
)


def write_baselines(stages: Stages, records: list[Path], out: Path, figures: Path) -> None:
    """Write the page of others' figures from the records of any stages, and draw its figure.

    Raises UserError, one line, for what is no record.
    """
    every = (read_record(path, stages) for path in records)
    found = by_stage(record for record in every if record["cell"].get("repeat", 1) == 1)  # a write-up has no other
    pairs = {name: _pairs(stage, found[name]) for name, stage in stages.items() if name in found}
    pairs = {name: group for name, group in pairs.items() if len(group)}
    parts: list[str] = [Markdown("# Others' figures beside ours"), INTRODUCTION]
    if not pairs:
        parts.append("None of what they published was measured here.")
    else:
        save(scatter(pairs), figures / "theirs_and_ours.svg")
        parts.append(f"![Ours over theirs](figures/{figures.name}/theirs_and_ours.svg)")
        parts += [part for name, found in pairs.items() for part in _stage_parts(name, found)]
    write_text(out, "\n\n".join(parts) + "\n")


def _pairs(stage: Stage, records: Records) -> pd.DataFrame:
    rows = without_users_own(shown_rows(stage, records), stage)
    pairs = pd.DataFrame() if ok(rows).empty else stage.baseline_pairs(rows)
    return pd.DataFrame(pairs).reindex(columns=COLUMNS)


def _stage_parts(name: str, pairs: pd.DataFrame) -> list[str]:
    """Write one stage: a row per write-up and unit, and the doubts about their figures, folded."""
    ratios = pairs.assign(ratio=pairs["ours"] / pairs["theirs"])
    lines = [
        {
            "source": write_up,
            "unit": unit,
            "figures": str(len(group)),
            "ours / theirs, geometric mean": significant(geometric_mean(group["ratio"]), 2),
            "lowest": _named(group.loc[group["ratio"].idxmin()]),
            "highest": _named(group.loc[group["ratio"].idxmax()]),
        }
        for (write_up, unit), group in ratios.groupby(["write_up", "unit"], sort=True)
    ]
    doubts = doubts_list(pairs)
    folded = Markdown(f"<details>\n<summary>Doubts</summary>\n\n{doubts}\n\n</details>")
    return [say("## {name}", name=name), markdown(pd.DataFrame(lines)), *([folded] if doubts else [])]


def _named(pair: pd.Series) -> str:
    return f"{significant(pair['ratio'], 2)} ({pair['what']})"


def scatter(pairs: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw ours over theirs, a marker per figure and a colour per stage; on the line both are the same."""
    figure, panels = new_figure()
    axes = panels[0, 0]
    for name, group in pairs.items():
        axes.plot(group["theirs"], group["ours"] / group["theirs"], label=name, **style_for(name) | {"linestyle": ""})
    axes.axhline(1, color="black", linewidth=0.8)
    log_values_axis(axes, "theirs, in the unit of the figure", "x")
    log_values_axis(axes, "ours / theirs")
    shared_legend(figure)
    footnote(figure, f"{sum(map(len, pairs.values()))} figures")
    return figure
