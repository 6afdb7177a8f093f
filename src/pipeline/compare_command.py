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
from pipeline.report.table import Table


def compare(arguments: argparse.Namespace) -> tuple[str, str]:
    """Write the page that is asked for; return what to print, and why --fail-if-slower fails, empty if it does not.

    Raises UserError, one line, for options that do not go together, and for what is no run.
    """
    _check(arguments)
    found = load_runs(arguments.runs, stages())
    return _one_row(arguments, found) if arguments.history else _side_by_side(arguments, found)


def _check(arguments: argparse.Namespace) -> None:
    if not arguments.tolerance_pct >= 0:
        raise UserError(f"compare: --tolerance-pct must be at least 0, got {arguments.tolerance_pct:g}")
    if arguments.fail_if_slower and len(arguments.runs) != 2:
        raise UserError(f"compare: --fail-if-slower needs two runs, got {len(arguments.runs)}")
    if arguments.history and (arguments.fail_if_slower or arguments.published or arguments.price):
        raise UserError("compare: --history can be combined only with --html")


def _one_row(arguments: argparse.Namespace, found: Sequence[Run]) -> tuple[str, str]:
    name, *given = " ".join(arguments.history).split()
    parts = page.one_row(history.history(found, stage(name), given))
    _write_page(arguments.html, found, parts)
    return page.markdown(parts), ""


def _side_by_side(arguments: argparse.Namespace, found: Sequence[Run]) -> tuple[str, str]:
    prices = machines.prices(arguments.price, found)
    two = pair.compare(found[0], found[1], arguments.tolerance_pct / 100) if len(found) == 2 else None
    beside = published.beside(found) if arguments.published else None
    parts, shown = (page.comparison(found, prices, two, beside, every) for every in (False, arguments.all))
    _write_page(arguments.html, found, parts, two, beside)
    return page.markdown(shown), two.failure if two and arguments.fail_if_slower else ""


def _write_page(
    path: Path | None,
    found: Sequence[Run],
    parts: page.Parts,
    two: pair.Pair | None = None,
    beside: Table | None = None,
) -> None:
    """Write the page, if one is asked for."""
    if path is not None:
        write_text(path, page.html(found, parts, page.explored(two, beside)))
        print(f"wrote {path}", file=sys.stderr)
