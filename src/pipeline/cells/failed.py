"""The record of a cell that left none of its own, for it crashed, was killed, or ran out of memory or time."""

import os
import re
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.cells.record import cell_name, has_failed, new_record, read_head, read_record
from pipeline.cells.rows import outcome_rows
from pipeline.cells.scheduler import slurm_job
from pipeline.cells.stage import Stage, Stages
from pipeline.errors import printable
from pipeline.instruments.machine import identity

# The line of a traceback that says what happened: more may be printed while the process ends.
EXCEPTION = re.compile(r"[\w.]*(Error|Exception|Failed)\b")
# Of a log only its end is read, and of a line no more than a table can show.
END_BYTES = 2**14
LONGEST = 200
# What a shell adds to the number of the signal that ended a process.
BY_SIGNAL = 128


def failed_record(stage: Stage, cell: Any, settings: Any, command: str, reason: str, log: Path) -> dict[str, Any]:
    """Return the record of a cell that failed; of the machine it holds what is told without torch, which may be why."""
    rows = outcome_rows(cell, "failed", reason)
    return new_record(
        *(stage, cell, settings, rows, slurm_job(), time.time()),
        code={"digest": "none"},
        machine={**identity.machine_without_torch(), **identity.allowed(), "threads": 0},
        command=command,
        process="none",
        log=str(log),
        seconds={"start_up": 0.0, "set_up": 0.0, "measuring": 0.0},
    )


def failures(paths: Iterable[Path], stages: Stages) -> list[str]:
    """Return a line for each record of a cell that failed, of those that are there."""
    there = [path for path in paths if path.exists() and has_failed(read_head(path, stages))]
    records = [read_record(path, stages) for path in sorted(there)]
    return [f"{cell_name(record)}: {record['rows'][0]['reason']} ({record['log']})" for record in records]


def how_it_ended(log: Path, code: int) -> str:
    """Return, to be printed, the signal that a shell's exit code tells of, else the exception or last line of a log."""
    if code - BY_SIGNAL in set(signal.Signals):
        return f"ended by {signal.Signals(code - BY_SIGNAL).name}"
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - END_BYTES))
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError as error:
        lines = [f"cannot read its log: {error.strerror}"]
    said = next((line for line in reversed(lines) if EXCEPTION.match(line)), lines[-1] if lines else "").strip()
    text = said or f"exit code {code}, nothing in its log"
    return printable(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…")
