"""The command `compare`: several runs side by side, or one row over many."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.cells.disk import write_text
from pipeline.compare import history, machines, page, pair, published
from pipeline.compare.runs import Run, load_runs
from pipeline.errors import UserError
from pipeline.registry import stage, stages
from pipeline.report.markup import plain
from pipeline.report.table import Table


def compare(arguments: argparse.Namespace) -> tuple[str, str]:
    """Write the page if one is asked for; return the text to print, and why --fail-if-slower fails, "" if it does not.

    Raises UserError, one line, for options that cannot be combined, or a path that is not a run.
    """
    _check(arguments)
    runs = load_runs(arguments.runs, stages())
    return _one_row(arguments, runs) if arguments.history else _side_by_side(arguments, runs)


def _check(arguments: argparse.Namespace) -> None:
    if not arguments.tolerance_pct >= 0:
        raise UserError(f"compare: --tolerance-pct must be at least 0, got {arguments.tolerance_pct:g}")
    if arguments.fail_if_slower and len(arguments.runs) != 2:
        raise UserError(f"compare: --fail-if-slower needs two runs, got {len(arguments.runs)}")
    if arguments.history and (arguments.fail_if_slower or arguments.published or arguments.price):
        raise UserError("compare: --history can be combined only with --html")


def _one_row(arguments: argparse.Namespace, runs: Sequence[Run]) -> tuple[str, str]:
    name, *given = " ".join(arguments.history).split()
    parts = page.one_row(history.history(runs, stage(name), given))
    _write_page(arguments.html, runs, parts)
    return plain(page.markdown(parts)), ""


def _side_by_side(arguments: argparse.Namespace, runs: Sequence[Run]) -> tuple[str, str]:
    prices = machines.prices(arguments.price, runs)
    two_runs = pair.compare(runs[0], runs[1], arguments.tolerance_pct / 100) if len(runs) == 2 else None
    published_table = published.comparison_table(runs) if arguments.published else None
    parts, shown = (
        page.comparison(runs, prices, two_runs, published_table, show_all) for show_all in (False, arguments.all)
    )
    _write_page(arguments.html, runs, parts, two_runs, published_table)
    return plain(page.markdown(shown)), two_runs.failure if two_runs and arguments.fail_if_slower else ""


def _write_page(
    path: Path | None,
    runs: Sequence[Run],
    parts: page.Parts,
    two_runs: pair.Pair | None = None,
    published_table: Table | None = None,
) -> None:
    """Write the page, if one is asked for."""
    if path is not None:
        write_text(path, page.html(runs, parts, page.filterable_tables(two_runs, published_table)))
        print(f"wrote {path}", file=sys.stderr)
