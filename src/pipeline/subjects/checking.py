"""Check an implementation in processes of its own, and leave out those that end a measurement or a check."""

import re
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pipeline.errors import Skipped, printable
from pipeline.instruments.memory.out_of_memory import is_out_of_memory
from pipeline.parallel.processes.starting import RankFailed, run_ranks
from pipeline.subjects.naming import Subject
from pipeline.subjects.turns import note_last, noted

Result = TypeVar("Result")
Item = TypeVar("Item")  # a subject, say
Row = dict[str, Any]
# By these an implementation says of itself that it does not take a problem.
REFUSALS = (NotImplementedError, ValueError, AssertionError)
LONGEST_REASON = 300
FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)
ONLY_RANK, TOO_LONG = "rank 0 of 1", "sent no result"
WRONG = f"{__name__}.Wrong"
# What ends a measurement or a check, beside failures of ours.
ENDS = (Skipped, RuntimeError, MemoryError)
KILLED = "died by SIGKILL"
# What gives a measurement and a check more time.
LIMIT = "the setting timeout_s"
CHECK_LIMIT = "the setting check_timeout_s, of the command check --timeout-s"
# Words of errors for want of something, and what to say instead.
OWN_PACKAGE = "pip install --no-deps -e PROJECT, and -e PROJECT/cs336-basics if it has that"
LACKS = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"No (?:module named|package metadata was found for) '?(cs336_\w+)", f"{{}} is not installed: {OWN_PACKAGE}"),
        (r"PackageNotFoundError: No package metadata was found for (\S+)", "{0} is not installed: pip install {0}"),
        (
            r"ModuleNotFoundError: No module named '(\w+)",
            "there is no module {0}: pip install {0}, or put the folder that holds it into PYTHONPATH",
        ),
        (r"(ImportError: .*)", "cannot be imported: {}"),
        (
            r"Found no NVIDIA driver|No CUDA GPUs are available|not compiled with CUDA enabled|0 active drivers"
            r"|driver version is insufficient|libcuda\.so",
            "needs a CUDA GPU with its driver",
        ),
        (
            r"Unable to (?:find|resolve) (?:address|interface|hostname)|unsupported gloo device",
            "gloo finds no network interface: set GLOO_SOCKET_IFNAME to one, for instance to lo",
        ),
    )
)
GLOO_ABORTS = ": gloo aborts where ranks begin collectives in different orders or of different sizes"


class Wrong(Exception):
    """A check failed on a rank; the message says how far off what is, and where."""


@dataclass(frozen=True)
class Verdict:
    """What a check found: `ok`, `wrong`, `skipped` or `oom`, why, how to call it, and what one that is ok is not."""

    status: str
    reason: str = ""
    way: str = ""
    limits: tuple[str, ...] = ()

    @property
    def outcome(self) -> dict[str, str]:
        """Return the columns of a row without values."""
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

    One that crashes or raises is wrong; one that takes too long, lacks something or raises Skipped is skipped.
    """
    try:
        return processes.run(check, subject, *args)
    except ENDS as end:
        return _verdict_of(end, CHECK_LIMIT)


def survivors(
    measure: Callable[[Sequence[Item], Path], Result], items: Sequence[Item], limit: str = LIMIT
) -> tuple[Result, dict[Item, Verdict]]:
    """Measure subjects, or check parts, in processes that they may end; then again without the one to blame.

    measure: takes some of them and the path of the file that is to tell which ran last; limit: see `_verdict_of`.
    Returns its result, and a verdict on each that was left out. Raises what the measurement raises without any.
    """
    left, out = list(items), dict[Item, Verdict]()
    with tempfile.TemporaryDirectory(prefix="subjects-") as folder:
        mark = Path(folder) / "last"
        while True:
            note_last(mark, None)
            try:
                return measure(left, mark), out
            except ENDS as end:
                if not left:
                    raise
                last = noted(mark)
                to_blame = left if last is None else [left[last]]
                out |= dict.fromkeys(to_blame, _verdict_of(end, limit))
                left = [item for item in left if item not in to_blame]


def _verdict_of(end: Exception, limit: str) -> Verdict:
    """Say how a subject ended its processes; limit: what gives it more time; raises the exception if that is ours."""
    if isinstance(end, RankFailed):
        return _verdict_of_rank(end, limit)
    if is_out_of_memory(end):
        return Verdict("oom", _brief(str(end) or type(end).__name__))
    if isinstance(end, Skipped):
        return Verdict("skipped", _brief(str(end)))
    raise end


def _verdict_of_rank(failed: RankFailed, limit: str) -> Verdict:
    """Tell what is wrong from what an implementation or its environment lacks, and from what takes too long."""
    first = str(failed).partition("\n")[0]
    if "raised NotImplementedError" in first:
        return Verdict("skipped", "not implemented")
    if lacking := lacks(first):
        return Verdict("skipped", _brief(lacking))
    if is_out_of_memory(RuntimeError(first)):
        return Verdict("oom", _brief(first.partition(" raised ")[2]))
    if WRONG in first:
        return Verdict("wrong", _brief(first.replace(f" raised {WRONG}", "").removeprefix(f"{ONLY_RANK}: ")))
    said = _brief(first.replace(ONLY_RANK, "its process"))
    if first.endswith(KILLED):
        return Verdict("oom", f"{said}, which is how the kernel ends what takes the last memory")
    # A stack of a rank that hangs begins with the innermost frame, a traceback ends with it.
    frames = FRAME.findall(str(failed))
    file, line = ("", "") if not frames else frames[0] if TOO_LONG in first else frames[-1]
    place = f" ({Path(file).name}:{line})" if file else ""
    if TOO_LONG in first:
        return Verdict("skipped", f"{said}{place}; for more time raise {limit}")
    hint = GLOO_ABORTS if "SIGABRT" in first and ONLY_RANK not in first else ""
    return Verdict("wrong", f"{said}{place}{hint}")


def lacks(said: str) -> str | None:
    """Say what an environment lacks, by an error's type and words, and what brings it; None where it lacks nothing."""
    for pattern, words in LACKS:
        if match := pattern.search(said):
            return words.format(*match.groups())
    return None


def is_of_triton(error: Exception) -> bool:
    """Tell whether an error was raised in Triton."""
    return any("/triton/" in frame.filename for frame in traceback.extract_tb(error.__traceback__))


def _brief(text: str) -> str:
    text = printable(text.partition("\n")[0])
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}…"
