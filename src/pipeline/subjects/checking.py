"""Check an implementation in processes of its own before it is measured, and leave out those that end a measurement."""

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pipeline.errors import Skipped, printable
from pipeline.instruments.memory.out_of_memory import is_out_of_memory
from pipeline.parallel.processes.starting import RankFailed, run_ranks
from pipeline.subjects.marks import note_last, noted, noted_changes
from pipeline.subjects.naming import Subject

Result = TypeVar("Result")
Row = dict[str, Any]
# By these an implementation says of itself that it does not take a problem.
REFUSALS = (NotImplementedError, ValueError, AssertionError)
LONGEST_REASON = 300
FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)
ONLY_RANK, HANGS = "rank 0 of 1", "sent no result"
WRONG = f"{__name__}.Wrong"
GLOO_ABORTS = ": gloo aborts where ranks begin collectives in different orders or of different sizes"


class Wrong(Exception):
    """A check failed on a rank; the message says how far off what is, and where."""


@dataclass(frozen=True)
class Verdict:
    """What a check found: `ok`, `wrong` or `skipped`, why, and how the implementation wants to be called."""

    status: str
    reason: str = ""
    way: str = ""

    @property
    def outcome(self) -> dict[str, str]:
        """Return the columns of a row without figures."""
        return {"status": self.status, "reason": self.reason}


@dataclass(frozen=True)
class Processes:
    """Where subjects are checked and measured: how many ranks, on what, for how long at most."""

    world_size: int
    backend: str
    device_type: str
    timeout_s: float

    def run(self, function: Callable[..., Result], *args: Any) -> Result:
        """Run a function of a rank's context and these arguments on every rank; return rank 0's result."""
        return run_ranks(
            function,
            self.world_size,
            backend=self.backend,
            device_type=self.device_type,
            timeout_s=self.timeout_s,
            args=args,
        )[0]


def verdict(check: Callable[..., Verdict], subject: Subject, processes: Processes, *args: Any) -> Verdict:
    """Check one subject in processes of its own: `check(context, subject, *args)`, of which rank 0's verdict counts.

    One that raises on any rank, crashes or hangs is wrong; one whose check raises Skipped is skipped.
    """
    try:
        return processes.run(check, subject, *args)
    except Skipped as skipped:
        return Verdict("skipped", _brief(str(skipped)))
    except RankFailed as failed:
        return _verdict_of(failed)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return Verdict("oom", _brief(str(error)))


def measure_survivors(
    measure: Callable[[Sequence[Subject], Path], list[Row]], subjects: Sequence[Subject]
) -> tuple[list[Row], dict[Subject, Verdict]]:
    """Measure with these subjects in processes of their own; where those end, again without the one to blame.

    measure: takes subjects and the path of the file that is to tell who ran last and what they changed for all.
    Returns its rows, in which `impl` names the subject and `reason` says what it changed, and a verdict on each subject
    that was left out. Raises RankFailed where the measurement fails without any subject.
    """
    left, out = list(subjects), dict[Subject, Verdict]()
    with tempfile.TemporaryDirectory(prefix="subjects-") as folder:
        mark = Path(folder) / "last"
        while True:
            note_last(mark, None)
            try:
                rows = measure(left, mark)
                changes = {left[number].name: words for number, words in noted_changes(mark).items()}
                return [_with_changes(row, changes.get(row.get("impl", ""), [])) for row in rows], out
            except RankFailed as failed:
                if not left:
                    raise
                last = noted(mark)
                to_blame = left if last is None else [left[last]]
                out |= dict.fromkeys(to_blame, _verdict_of(failed))
                left = [subject for subject in left if subject not in to_blame]


def _with_changes(row: Row, changes: Sequence[str]) -> Row:
    if not changes:
        return row
    said = f"it set {', '.join(changes)}, which was undone: all run alike"
    return row | {"reason": "; ".join([*filter(None, [row.get("reason")]), said])}


def _verdict_of(failed: RankFailed) -> Verdict:
    """Say in a line how a subject ended its process; what it says of itself not to be written is skipped."""
    first = str(failed).partition("\n")[0]
    if "raised NotImplementedError" in first:
        return Verdict("skipped", "not implemented")
    if WRONG in first:
        return Verdict("wrong", _brief(first.replace(f" raised {WRONG}", "").removeprefix(f"{ONLY_RANK}: ")))
    # A stack of a rank that hangs begins with the innermost frame, a traceback ends with it.
    frames = FRAME.findall(str(failed))
    file, line = ("", "") if not frames else frames[0] if HANGS in first else frames[-1]
    place = f" ({Path(file).name}:{line})" if file else ""
    hint = GLOO_ABORTS if "SIGABRT" in first and ONLY_RANK not in first else ""
    return Verdict("wrong", _brief(first.replace(ONLY_RANK, "its process")) + place + hint)


def _brief(text: str) -> str:
    text = printable(text.partition("\n")[0])
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}…"
