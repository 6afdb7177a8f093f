"""Check an implementation in separate processes, and leave out those that break a measurement or a check."""

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
# An implementation raises one of these if it does not support a problem.
REFUSALS = (NotImplementedError, ValueError, AssertionError)
LONGEST_REASON = 300
FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)
ONLY_RANK, TOO_LONG = "rank 0 of 1", "sent no result"
WRONG = f"{__name__}.Wrong"
# Exceptions with which an implementation can end a measurement or a check; any other is a failure of ours.
ENDS = (Skipped, RuntimeError, MemoryError)
KILLED = "died by SIGKILL"
# How to give a measurement or a check more time.
LIMIT = "the setting timeout_s"
CHECK_LIMIT = "the setting check_timeout_s, of the command check --timeout-s"
# Errors that mean that the environment lacks something, and what to say instead.
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
    """A check failed on a rank; the message says what is off, by how much and where."""


@dataclass(frozen=True)
class Verdict:
    """The result of a check: `ok`, `wrong`, `skipped` or `oom`; why; how to call the subject; its limits if ok."""

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
    """The processes in which subjects are checked and measured: number of ranks, backend, device, time limit."""

    world_size: int
    backend: str
    device_type: str
    timeout_s: float

    def run(self, function: Callable[..., Result], *args: Any) -> Result:
        """Call `function(context, *args)` on every rank; return rank 0's result."""
        return run_ranks(
            function,
            self.world_size,
            backend=self.backend,
            device_type=self.device_type,
            timeout_s=self.timeout_s,
            args=args,
        )[0]


def verdict(check: Callable[..., Verdict], subject: Subject, processes: Processes, *args: Any) -> Verdict:
    """Run `check(context, subject, *args)` in separate processes; return rank 0's verdict.

    A subject that crashes or raises is wrong; one that times out, lacks something or raises Skipped is skipped.
    """
    try:
        return processes.run(check, subject, *args)
    except ENDS as end:
        return _verdict_of(end, CHECK_LIMIT)


def survivors(
    measure: Callable[[Sequence[Item], Path], Result], items: Sequence[Item], limit: str = LIMIT
) -> tuple[Result, dict[Item, Verdict]]:
    """Measure or check items together; after a failure, repeat without the item to blame, or with none if unknown.

    measure: takes the items left and the path of a file in which it notes the item that runs; limit: see `_verdict_of`.
    Returns its result, and a verdict on each item left out. Raises what the measurement raises with no item left.
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
    """Turn an exception into a verdict on a subject, or raise it if it is ours; limit: how to give it more time."""
    if isinstance(end, RankFailed):
        return _verdict_of_rank(end, limit)
    if is_out_of_memory(end):
        return Verdict("oom", _brief(str(end) or type(end).__name__))
    if isinstance(end, Skipped):
        return Verdict("skipped", _brief(str(end)))
    raise end


def _verdict_of_rank(failed: RankFailed, limit: str) -> Verdict:
    """Distinguish a wrong implementation from one that is unfinished, lacks something or takes too long."""
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
    # The stack of a rank that hangs begins with the innermost frame; a traceback ends with it.
    frames = FRAME.findall(str(failed))
    file, line = ("", "") if not frames else frames[0] if TOO_LONG in first else frames[-1]
    place = f" ({Path(file).name}:{line})" if file else ""
    if TOO_LONG in first:
        return Verdict("skipped", f"{said}{place}; for more time raise {limit}")
    hint = GLOO_ABORTS if "SIGABRT" in first and ONLY_RANK not in first else ""
    return Verdict("wrong", f"{said}{place}{hint}")


def lacks(said: str) -> str | None:
    """Say what the environment lacks, according to an error's type and message, and how to get it; None if nothing."""
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
