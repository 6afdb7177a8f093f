"""The commands `measure` and `failed`: one cell, from its command line to its record."""

import argparse
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pipeline.cells import fields
from pipeline.cells.disk import DISK_FULL, prepare_files_folder, raising_disk_full, reserve_record
from pipeline.cells.rows import WITH_VALUES
from pipeline.cells.stage import reserved_names
from pipeline.errors import UserError
from pipeline.printing import print_lines
from pipeline.registry import stage, stages
from pipeline.subjects import naming

DISK_IS_FULL = "snakemake: the disk is full, nothing more is measured: free some space and run the same command again"
# Functions import the rest themselves, so that a process that only hands a cell to the worker starts fast.


def check(arguments: argparse.Namespace) -> None:
    """Raise UserError for an unknown cell or an unusable path before a worker starts."""
    try:
        os.getcwd()
    except FileNotFoundError:  # torch would fail to import
        raise UserError("the working directory has been deleted: change to one that exists") from None
    _cell_and_settings(arguments)
    _subjects(arguments)
    if arguments.out is None:
        raise UserError("--out must be given: the path of the record, as in --out cell.json")
    reserve_record(arguments.out).close()


def measure(arguments: argparse.Namespace) -> None:
    """Measure the cell in this process, write its record and print a line per row; raises UserError for bad input."""
    from pipeline.cells.record import with_derived, write_record
    from pipeline.cells.run import ProcessStart, run_cell

    cell, settings = _cell_and_settings(arguments)
    if arguments.gpus is not None and arguments.gpus < 0:
        raise UserError(f"--gpus must be at least 0, got {arguments.gpus}")
    with reserve_record(arguments.out) as out:
        files = _files_folder(arguments, out.path)
        subjects = _subjects(arguments)
        command = _command(arguments, cell, settings, naming.words(subjects), out.path, files)
        start = ProcessStart(arguments.process, arguments.issued_at, command, arguments.waited_s)
        with raising_disk_full():
            record = run_cell(
                stage(arguments.stage), cell, settings, arguments.gpus, start, files, arguments.force, subjects
            )
        write_record(out, record)
    print_lines(_row_lines(arguments.stage, with_derived(record, stages())["rows"]), sys.stdout)


def failed(arguments: argparse.Namespace) -> int:
    """Write the record of a cell whose `measure` failed and return 0; if the disk is full, only return DISK_FULL."""
    from pipeline.cells.failed import failed_record, how_it_ended
    from pipeline.cells.record import write_record

    if arguments.code == DISK_FULL:
        print_lines([DISK_IS_FULL], sys.stderr)
        return DISK_FULL
    cell, settings = _cell_and_settings(arguments)
    subjects = ["--subjects", arguments.subjects] if arguments.subjects else []
    with reserve_record(arguments.out) as out:
        files = _files_folder(arguments, out.path)
        command = _command(arguments, cell, settings, subjects, out.path, files)
        reason = how_it_ended(arguments.log, arguments.code)
        write_record(out, failed_record(stage(arguments.stage), cell, settings, command, reason, arguments.log))
    return 0


def _cell_and_settings(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """Return the cell and the settings of the command line; raises UserError if a value is not allowed."""
    chosen = stage(arguments.stage)
    cell = fields.parse_words(chosen.cell_type, arguments.cell, f"{chosen.name} cell")
    return cell, fields.parse_words(chosen.settings_type, arguments.settings, f"{chosen.name} settings")


def _subjects(arguments: argparse.Namespace) -> tuple[Any, ...]:
    """Return those of the user's implementations that the cell measures; raises UserError if it measures none."""
    if arguments.subjects is None:
        return ()
    from pipeline.cells.yaml_files import yaml_value

    given = naming.read(yaml_value(arguments.subjects, "--subjects"), "--subjects", reserved_names(stages()))
    chosen = stage(arguments.stage)
    if not chosen.subjects_among(given):
        allowed = f"have kind {chosen.subjects.kind}" if chosen.subjects else "be left out"
        raise UserError(f"--subjects must {allowed} for {chosen.name}, got {arguments.subjects}")
    measured = chosen.subjects_among(given, _cell_and_settings(arguments)[0])
    if not measured:
        raise UserError(f"--subjects has no implementation that this cell of {chosen.name} measures")
    return measured


def _row_lines(name: str, rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    """Yield one line per row with values, then one per reason for having none, with the keys that those rows share."""
    keys = stage(name).row_types.key_columns()
    without_values: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for row in rows:
        if row["status"] in WITH_VALUES:
            yield _line(row, [*keys, "status", "reason", "median_ms"])
        else:
            without_values.setdefault((row["status"], row.get("reason")), []).append(row)
    for group in without_values.values():
        if len(group) == 1 < len(rows):
            yield _line(group[0], [*keys, "status", "reason"])
        else:
            count = {} if len(group) == len(rows) else {"rows": len(group)}
            shared = [key for key in keys if len({row.get(key) for row in group}) == 1] if count else []
            yield _line(group[0] | count, ["rows", *shared, "status", "reason"])


def _line(row: dict[str, Any], names: Sequence[str]) -> str:
    filled = {name: row[name] for name in names if row.get(name) is not None}
    return " ".join(f"{name}={f'{value:.4g}' if isinstance(value, float) else value}" for name, value in filled.items())


def _command(
    arguments: argparse.Namespace, cell: Any, settings: Any, subjects: Sequence[str], out: Path, files: Path | None
) -> str:
    """Return the full command with all defaults spelled out, so that a later version runs the same cell."""
    set_options = [f"--set={word}" for word in fields.words(settings)]
    paths = ["--out", str(out), *(["--files", str(files)] if files else [])]
    force = ["--force"] if arguments.force else []
    words = [arguments.stage, *fields.words(cell), *set_options, *subjects, *force, *paths]
    return shlex.join(["python", "-m", "pipeline", "measure", *words])


def _files_folder(arguments: argparse.Namespace, out: Path) -> Path | None:
    if stage(arguments.stage).keeps_files:
        return prepare_files_folder(arguments.files, out)
    if arguments.files is not None:
        raise UserError(f"--files must be left out, because {arguments.stage} keeps no files, got '{arguments.files}'")
    return None
