"""The flash section: its tables and figures, and a template that says what they show."""

from pathlib import Path

import pandas as pd

from pipeline.report.section import render
from pipeline.report.table_rows import ok
from pipeline.stages.flash.report import baselines, findings, tables
from pipeline.stages.flash.report.figures import draw_all
from pipeline.stages.flash.report.selection import LONG, main_grid, ordered, ours

TEMPLATE = Path(__file__).parent / "section.md.j2"


def build(rows: pd.DataFrame, figures_dir: Path) -> str:
    """Write the section's Markdown from the rows of all its tables, and its figures as SVG into a folder."""
    rows = ordered(rows)
    facts = {"missing": tables.missing(rows), "measured": ours(main_grid(rows)) is not None}
    if facts["measured"]:
        facts |= _facts(rows, figures_dir)
    return render(TEMPLATE, facts)


def _facts(rows: pd.DataFrame, figures_dir: Path) -> dict:
    pairs = baselines.beside_ours(rows)
    return {
        "ours": ours(rows),
        "setting": findings.setting(rows),
        "output_errors": findings.correctness(rows, ("output",)),
        "gradient_errors": findings.correctness(rows, ("dq", "dk", "dv")),
        "growth": findings.growth(rows),
        "backward": findings.backward_over_forward(rows),
        "ran_out": findings.ran_out(rows),
        "memory": findings.memory(rows),
        "peers": findings.against_peers(rows),
        "rates": findings.rates(rows),
        "latency": findings.latency(rows),
        "shapes": findings.shapes_standing(rows),
        "standing": findings.leaderboard_standing(rows),
        "long": LONG,
        "has_eager": bool((ok(rows)["impl"] == "eager").any()),
        "figures": draw_all(rows, figures_dir),
        "tables": {
            "errors": tables.errors(rows),
            "against_eager": tables.against_eager(rows),
            "all": tables.all_implementations(rows),
            "gains": tables.gains(rows),
            "latencies": tables.latencies(rows),
            "shapes": tables.shapes(rows),
            "leaderboard": tables.leaderboard_times(rows),
        },
        "others": [baselines.summary_table(pairs), *baselines.full_tables(pairs)] if len(pairs) else [],
        "others_leaderboard": baselines.leaderboard_table(rows),
    }
