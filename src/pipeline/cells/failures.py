"""What failed in a run: what is made of the rest is made without it, and names it with its log."""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from pipeline.cells.disk import write_text
from pipeline.errors import UserError, printable

Place = TypeVar("Place", str, Path)
# The line of a traceback that says what happened: more may be printed while the process ends.
EXCEPTION = re.compile(r"[\w.]*(Error|Exception|Failed)\b")
# What Slurm's executor says of a job; the rest of its message is advice.
SLURM_ENDING = re.compile(r"SLURM-job '(\d+)' .*?status is: '(\w+)'")
# Of a log only its end is read, and of a line no more than a table can show.
END_BYTES = 2**14
LONGEST = 200


@dataclass(frozen=True)
class Failure:
    """One thing that could not be made.

    what: a line that says which; stage: whose cell it is, empty for what is made of records; outputs: the paths that it
    should have left; error: how its log ends.
    """

    what: str
    stage: str
    outputs: tuple[str, ...]
    log: str
    error: str


@dataclass(frozen=True)
class Failures:
    """All that failed in a run, and the paths that were not made for want of it."""

    failed: tuple[Failure, ...] = ()
    unmade: tuple[str, ...] = ()

    def without(self, paths: Iterable[Place]) -> list[Place]:
        """Return the paths without those that would be there but for a failure."""
        lost = {path for failure in self.failed for path in failure.outputs}
        return [path for path in paths if str(path) not in lost]


def told_by_scheduler(message: str) -> str:
    """Return what an executor's message says of a job's end: of Slurm's the job and its state, else the first line."""
    if (ending := SLURM_ENDING.search(message)) is not None:
        return f"Slurm job {ending[1]} ended as {ending[2]}"
    return message.partition("\n")[0].strip()


def how_it_ended(log: Path, told: str = "") -> str:
    """Return the exception that a log ends with, or else its last line: short, and fit to be printed.

    told: what a scheduler says of the job; it comes first.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - END_BYTES))
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError as error:
        lines = [f"cannot read its log: {error.strerror}"]
    said = next((line for line in reversed(lines) if EXCEPTION.match(line)), lines[-1] if lines else "").strip()
    text = ": ".join(filter(None, (told, said))) or "nothing in its log"
    return printable(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…")


def write_failures(path: Path, failures: Failures) -> None:
    """Write down what failed; raises UserError, one line, where that cannot be written."""
    write_text(path, json.dumps(asdict(failures), indent=1) + "\n")


def read_failures(path: Path) -> Failures:
    """Read what `write_failures` wrote; raises UserError, one line, for a file that is something else."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        failed = (Failure(**{**entry, "outputs": tuple(entry["outputs"])}) for entry in entries["failed"])
        return Failures(tuple(failed), tuple(entries["unmade"]))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{path} is no list of failures") from None
