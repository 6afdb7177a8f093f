"""Others' memory and step time with and without sharding beside ours."""

import pandas as pd

from pipeline.report import published
from pipeline.report.markup import paragraphs
from pipeline.report.table_rows import ok
from pipeline.report.tables import markdown, significant
from pipeline.stages.sharding.report import findings
from pipeline.stages.sharding.report.selection import steps


def beside_ours(rows: pd.DataFrame) -> str:
    """Write others' figures with ours of every cell under them, and their doubts."""
    theirs = published.load("sharding")
    lines = [
        {
            "source": line["write_up"],
            "optimizer state": "shared out" if line["sharded"] == "yes" else "in full",
            "peak memory (GB)": significant(line["peak_memory_gb"]),
            "step (ms)": significant(line["step_ms"]),
        }
        for _, line in theirs.iterrows()
    ]
    return paragraphs(markdown(pd.DataFrame([*lines, *_ours(rows)])), published.doubts_list(theirs))


def _ours(rows: pd.DataFrame) -> list[dict]:
    lines = []
    for name, cell in rows.groupby("cell_name", sort=False):
        peaks = findings.peaks(cell)
        for _, line in ok(steps(cell)).iterrows():
            known = line["optimizer"] in peaks.index
            peak_gb = peaks.loc[line["optimizer"], "measured_bytes"] / 1e9 if known else float("nan")
            lines.append(
                {
                    "source": f"here: {line['optimizer']}, {line['size']}, {name}",
                    "optimizer state": "in full" if line["impl"] == "adamw" else "shared out",
                    "peak memory (GB)": significant(peak_gb),
                    "step (ms)": significant(line["median_ms"]),
                }
            )
    return lines
