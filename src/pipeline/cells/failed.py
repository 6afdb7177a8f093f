"""Build the record of a cell that left none because it crashed, was killed, or ran out of memory or time."""

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

# The line of a traceback that names the exception; more may be printed after it while the process ends.
EXCEPTION = re.compile(r"[\w.]*(Error|Exception|Failed)\b")
# Only the end of a log is read, and a line is cut to what a table can show.
END_BYTES = 2**14
MOST_CHARACTERS = 200
# A shell's exit code for a process ended by a signal is this plus the signal's number.
SIGNAL_OFFSET = 128


def failed_record(stage: Stage, cell: Any, settings: Any, command: str, reason: str, log: Path) -> dict[str, Any]:
    """Return the record of a failed cell, with machine facts that need no torch, since torch may be what failed."""
    rows = outcome_rows(cell, "failed", reason)
    return new_record(
        stage,
        cell,
        settings,
        rows,
        slurm_job(),
        time.time(),
        code={"digest": "none"},
        machine={**identity.machine_without_torch(), **identity.allowed(), "threads": 0},
        command=command,
        process="none",
        log=str(log),
        seconds={"start_up": 0.0, "set_up": 0.0, "measuring": 0.0},
    )


def failures(paths: Iterable[Path], stages: Stages) -> list[str]:
    """Return a line for each existing record of a failed cell."""
    failed_paths = [path for path in paths if path.exists() and has_failed(read_head(path, stages))]
    records = [read_record(path, stages) for path in sorted(failed_paths)]
    return [f"{cell_name(record)}: {record['rows'][0]['reason']} ({record['log']})" for record in records]


def how_it_ended(log: Path, code: int) -> str:
    """Return, printably, the signal that a shell's exit code stands for, else the log's exception or last line."""
    if code - SIGNAL_OFFSET in set(signal.Signals):
        return f"ended by {signal.Signals(code - SIGNAL_OFFSET).name}"
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - END_BYTES))
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError as error:
        lines = [f"cannot read its log: {error.strerror}"]
    last_line = next((line for line in reversed(lines) if EXCEPTION.match(line)), lines[-1] if lines else "").strip()
    text = last_line or f"exit code {code}, nothing in its log"
    return printable(text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…")
