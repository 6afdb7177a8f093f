"""The command line: parse each command's arguments and call the function that does the work."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.cells.disk import DISK_FULL, DiskFull, write_text
from pipeline.check_command import check_subjects
from pipeline.errors import UserError
from pipeline.measure_command import check, failed, measure
from pipeline.printing import escape_what_streams_cannot_write, print_lines
from pipeline.registry import stage, stages
from pipeline.worker import client

BAD_INPUT = 2
# Exit code of `compare --fail-if-slower`. Not 1, with which Python itself exits after an exception.
SLOWER = 4


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command: a cell in the warm worker, everything else in this process."""
    issued_at = client.process_started_at()
    client.open_closed_streams()
    escape_what_streams_cannot_write()
    try:
        words = sys.argv[1:] if argv is None else list(argv)
        arguments = _parsed(words)
        exit_code = None
        if arguments.run is measure:
            check(arguments)
            exit_code = client.hand_over(words, issued_at)
        sys.exit(run(words, "ordinary", issued_at) if exit_code is None else exit_code)
    except UserError as error:
        sys.exit(_report_error(error))
    except KeyboardInterrupt:
        client.end_by(signal.SIGINT)


def run(words: Sequence[str], process: str, issued_at: float, waited_s: float = 0.0) -> int:
    """Run one command in this process; return its exit code: 2 for bad input, 3 for a full disk, 4 if `compare` fails.

    process: how this process was started, "ordinary" or by the "worker"; issued_at: when the command was issued, in
    seconds since the epoch; waited_s: how long it then waited for another cell to start the worker.
    """
    arguments = _parsed(words)
    arguments.process, arguments.issued_at, arguments.waited_s = process, issued_at, waited_s
    try:
        return arguments.run(arguments) or 0
    except UserError as error:
        return _report_error(error)


def _report_error(error: UserError) -> int:
    print_lines([f"pipeline: {error}"], sys.stderr)
    return DISK_FULL if isinstance(error, DiskFull) else BAD_INPUT


def _print(text: str) -> None:
    """Print a command's result; if its reader (say `head`) has closed the pipe, end by SIGPIPE as other programs do."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        client.end_by(signal.SIGPIPE)


# Each command imports what it needs, because `doctor` must run even if torch cannot be imported.


def _tabulate(arguments: argparse.Namespace) -> None:
    from pipeline.cells.tabulate import cell_table, row_table

    table = {"rows": row_table, "cells": cell_table}[arguments.kind](arguments.records, stages())
    write_text(arguments.out, table)


def _pages(arguments: argparse.Namespace) -> None:
    from pipeline.report.page_request import read_page_request
    from pipeline.report.pages import write_pages

    write_pages(read_page_request(arguments.asked), stages(), arguments.out)


def _publish(arguments: argparse.Namespace) -> None:
    from pipeline.snapshots.publish import publish

    publish(Path("."), arguments.folder, stages())


def _account(arguments: argparse.Namespace) -> None:
    from pipeline.account_command import account

    _print(account(arguments))


def _compare(arguments: argparse.Namespace) -> int:
    from pipeline.compare_command import compare

    text, failure = compare(arguments)
    _print(text)
    if failure:
        print_lines([f"compare: --fail-if-slower fails: {failure}"], sys.stderr)
    return SLOWER if failure else 0


def _run(arguments: argparse.Namespace) -> None:
    from pipeline.run_command import run_workflow

    run_workflow(arguments.words, arguments.scale)


def _describe(arguments: argparse.Namespace) -> None:
    import shutil

    from pipeline.describe import described

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    chosen = [stage(arguments.stage)] if arguments.stage else stages().values()
    _print("\n\n".join(described(each, width) for each in chosen))


def _doctor(_arguments: argparse.Namespace) -> None:
    from pipeline.doctor import report

    _print(report())


def _add_cell(command: argparse.ArgumentParser, needs_out: bool) -> None:
    """Add the arguments that name a cell, what it is measured with, and where its record goes.

    needs_out: have the parser require --out; otherwise the command reports it missing after checking the cell.
    """
    command.add_argument("stage")
    command.add_argument("cell", nargs="*", metavar="AXIS=VALUE", help="axes left out take their default")
    command.add_argument("--set", dest="settings", action="append", default=[], metavar="NAME=VALUE", help="a setting")
    command.add_argument(
        "--subjects",
        metavar="YAML",
        help="your implementations: '{kind: {name: module:attribute}}', or a file of adapters",
    )
    command.add_argument("--gpus", type=int, help="GPUs the cell may use (default: as many as it needs)")
    command.add_argument("--force", action="store_true", help="measure even if the cell is too large for memory")
    command.add_argument("--out", required=needs_out, metavar="RECORD.json", help="the record to write (required)")
    command.add_argument("--files", metavar="FOLDER", help="where to keep captures (default: RECORD.files)")


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    """Parse a command's arguments; those that `run` does not know are for Snakemake."""
    parser = _parser(words)
    if words[:1] != ["run"]:
        return parser.parse_args(words)
    arguments, others = parser.parse_known_args(words)
    return argparse.Namespace(**vars(arguments), words=others)


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline", description=sys.modules["pipeline"].__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    epilog = "All other arguments go to Snakemake."
    summary = "measure this machine with Snakemake and write the report into this folder"
    workflow = commands.add_parser("run", help=summary, epilog=epilog, allow_abbrev=False)
    workflow.add_argument(
        "--scale", default="", metavar="SCALE", help="which cells (default: the scale in config.yaml)"
    )
    workflow.set_defaults(run=_run)

    describe = commands.add_parser("describe", help="print the axes, settings and columns of a stage, or of all")
    describe.add_argument("stage", nargs="?", metavar="STAGE")
    describe.set_defaults(run=_describe)

    hint = "`python -m pipeline describe STAGE` prints a stage's axes, settings and columns"
    one_cell = commands.add_parser("measure", help="measure one cell and write its record", epilog=hint)
    one_cell.set_defaults(run=measure)
    failed_cell = commands.add_parser("failed", help="write the record of a cell after `measure` failed", epilog=hint)
    failed_cell.add_argument("code", type=int, help="exit code of `measure`")
    failed_cell.add_argument("--log", type=Path, required=True, metavar="LOG", help="output of `measure`")
    failed_cell.set_defaults(run=failed)
    _add_cell(one_cell, needs_out=False)
    _add_cell(failed_cell, needs_out=True)

    check_parser = commands.add_parser("check", help="check your own implementations without measuring them")
    check_parser.add_argument(
        "subjects", metavar="YAML", help="'{kind: {name: module:attribute}}', or a file of adapters"
    )
    check_parser.add_argument(
        "--timeout-s", type=float, default=300.0, help="seconds per implementation (default: 300)"
    )
    check_parser.set_defaults(run=check_subjects)

    tabulate = commands.add_parser("tabulate", help="make a CSV table of rows or cells from records")
    tabulate.add_argument("kind", choices=["rows", "cells"])
    tabulate.add_argument("records", nargs="+", type=Path, metavar="RECORD.json")
    tabulate.add_argument("--out", type=Path, required=True, metavar="TABLE.csv")
    tabulate.set_defaults(run=_tabulate)

    pages = commands.add_parser("pages", help="write the pages of a run from its records")
    pages.add_argument("asked", type=Path, metavar="ASKED.json", help="records to show, and facts about the run")
    pages.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    pages.set_defaults(run=_pages)

    publish = commands.add_parser("publish", help="save a snapshot: pages, figures, tables and records")
    publish.add_argument("folder", type=Path, help="new, or an earlier snapshot")
    publish.set_defaults(run=_publish)

    account = commands.add_parser("account", help="compute memory, batch and bucket sizes for any model and machine")
    account.set_defaults(run=_account)
    if words[:1] == ["account"]:  # dozens of options; other commands do not wait for them
        from pipeline.account_command import add_options

        add_options(account)

    compare = commands.add_parser("compare", help="put runs side by side; for two runs, say which is faster")
    compare.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a results folder or a published snapshot")
    price = "USD per GPU hour of the run of this name; adds USD per million tokens"
    compare.add_argument("--price", action="append", default=[], metavar="NAME=USD", help=price)
    compare.add_argument(
        "--tolerance-pct",
        type=float,
        default=5.0,
        help="slowdown above which --fail-if-slower fails, memory difference to list (default: 5)",
    )
    compare.add_argument("--html", type=Path, metavar="PAGE.html", help="also write an interactive page")
    compare.add_argument("--all", action="store_true", help="list every time, not only those that differ")
    values = "add values published by the course and by write-ups"
    compare.add_argument("--published", action="store_true", help=values)
    row = "follow one row over the runs in the order measured, and mark the runs at which its time changed"
    compare.add_argument("--history", nargs="+", metavar=("STAGE", "AXIS=VALUE"), help=row)
    failing = f"exit with code {SLOWER} if B is slower beyond the tolerance, lost a result, or shares no timing with A"
    compare.add_argument("--fail-if-slower", action="store_true", help=failing)
    compare.set_defaults(run=_compare)

    doctor = commands.add_parser("doctor", help="show what this machine can measure and what it lacks")
    doctor.set_defaults(run=_doctor)
    return parser
