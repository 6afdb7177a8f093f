"""The caller's side of the warm worker: hand this process's command over, and end as its child ends.

`hand_over` gives the command to the worker of this user, checkout and environment (`server` beside this), starting
one where there is none. Between the two runs a private Unix socket:

    worker -> caller   one JSON line {"worker": ...}: it is awake
    caller -> worker   one JSON line: argv, cwd, environ, umask, affinity, issued_at; with it the standard streams
    worker -> caller   one JSON line {"pid": ...}, and when the child has ended {"status": wait status}

The connection is also the life line: a caller that is gone takes its child with it, and a worker that is gone shows as
the end of the stream. Every cell starts here, so this module imports little.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import resource
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from pipeline.cells.library_environment import COMPILE_IN_PROCESS, PREFIXES, THREAD_VARIABLES
from pipeline.errors import UserError

PACKAGE = Path(__file__).parents[1]
OWN_CODE = tuple(Path(__file__).with_name(f"{name}.py") for name in ("client", "server", "child"))
# Beside what libraries read: the interpreter's, and what tells imports where compilers and files are.
WORKER_VARIABLES = (*PREFIXES, "PYTHON", "PATH", "HOME", "LANG", "LC_", "TZ", "CC", "CXX")
# What names a scheduler's job, and in an array of jobs the one: Slurm, PBS, LSF, Grid Engine, Flux, OAR, HTCondor.
JOB_VARIABLES = (
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "PBS_JOBID", "LSB_JOBID", "LSB_JOBINDEX", "JOB_ID", "SGE_TASK_ID"),
    *("FLUX_JOB_ID", "OAR_JOB_ID", "_CONDOR_JOB_AD"),
)
OWN_PROCESS = Path("/proc/self")
OFF_VARIABLE = "PIPELINE_WORKER"
START_LIMIT_S = 120.0
ANSWER_LIMIT_S = 10.0
FORWARDED_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def hand_over(argv: Sequence[str], issued_at: float) -> int | None:
    """Have the worker run `python -m pipeline <argv>` in our place; return its exit code, None if no worker takes it.

    A child that a signal ended ends this process by the same signal. Raises UserError for a wish that is not known.
    """
    if not _is_wanted() or not hasattr(os, "pidfd_open"):
        return None
    try:
        connection = _connect()
    except OSError:
        return None
    with connection, connection.makefile("r") as answers:
        # Held back until there is a child to pass them to: one that came in between would end this process alone.
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED_SIGNALS)
        try:
            pid = _start_child(connection, answers, argv, issued_at)
            if pid is not None:
                _forward_signals(pid)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
        return None if pid is None else _await_child(connection, answers, pid)


def _is_wanted() -> bool:
    wish = os.environ.get(OFF_VARIABLE, "")
    if wish not in ("", "off"):
        raise UserError(f"{OFF_VARIABLE} must be off or unset, got '{wish}'")
    return not wish


def identity() -> str:
    """Return what a worker belongs to, and what its children are held to; raises OSError where that cannot be told."""
    facts = [os.getuid(), str(PACKAGE), sys.executable, sys.version, sys.flags, *_libraries(), *_bounds()]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _libraries() -> list[object]:
    """Tell the libraries that a worker loads: where they are, their versions, their environment, and its own code."""
    # Not the caller's working directory, which `python -m` puts first: a worker serves callers from any.
    places = sorted({place for place in sys.path if Path(place).is_dir() and not Path(place).samefile(".")})
    installed = sorted(name for place in places for name in os.listdir(place) if name.endswith(".dist-info"))
    code = [path.read_text(encoding="utf-8") for path in OWN_CODE]
    return [places, installed, sorted(_worker_environment().items()), code]


def _bounds() -> list[object]:
    """Tell what a process inherits and cannot always take on later: its job, cgroup, namespaces, priority, limits."""
    limits = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    return [
        {name: os.environ.get(name) for name in JOB_VARIABLES},
        (OWN_PROCESS / "cgroup").read_text(encoding="utf-8"),
        (OWN_PROCESS / "oom_score_adj").read_text(encoding="utf-8"),
        sorted(os.readlink(namespace) for namespace in (OWN_PROCESS / "ns").iterdir()),
        sorted(os.getgroups()),
        (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), os.sched_getparam(0).sched_priority),
        [(name, resource.getrlimit(getattr(resource, name))) for name in limits],
    ]


def runtime_folder() -> Path:
    """Return the user's folder for sockets; raises OSError where there is none that is theirs alone."""
    # Not under TMPDIR, whose path may be too long for a socket's.
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp") / f"llm-systems-pipeline-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) != 0o700:
        raise PermissionError(f"{folder} is not this user's alone")
    return folder


def _connect() -> socket.socket:
    """Connect to the worker; start one, and one only, where there is none. Raises OSError where none can be had."""
    folder = runtime_folder()
    path = folder / f"{identity()}.sock"
    connection = _try_connect(path)
    if connection is not None:
        return connection
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = _try_connect(path)
        if connection is None:
            _remove_leftovers(folder)
            _start_worker(path)
            connection = _try_connect(path)
    finally:
        os.close(lock)
    if connection is None:
        raise ConnectionError("the worker did not start")
    return connection


def _try_connect(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(ANSWER_LIMIT_S)  # a worker that was stopped still gets connections, and never answers
    try:
        connection.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    return connection


def _remove_leftovers(folder: Path) -> None:
    """Remove what dead workers have left; the folder is locked, for a worker that starts has no socket yet."""
    for file in folder.iterdir():
        connection = _try_connect(file.with_suffix(".sock"))
        if connection is None:
            file.unlink(missing_ok=True)
        else:
            connection.close()


def _start_worker(path: Path) -> None:
    """Start a worker and wait until it listens, or has ended."""
    readable, writable = os.pipe()
    with open(path.with_suffix(".log"), "w", encoding="utf-8") as log:
        subprocess.Popen(
            [sys.executable, "-P", "-m", "pipeline.worker.server", str(path), str(writable)],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[writable],
            start_new_session=True,
            env=_worker_environment(),
        )
    os.close(writable)
    with open(readable, "rb") as ready:
        select.select([ready], [], [], START_LIMIT_S)


def _worker_environment() -> dict[str, str]:
    """Return the environment that a worker imports its libraries in, not that of its children.

    All of it is part of the worker's identity, so that nothing that one caller alone has reaches another.
    """
    kept = {name: value for name, value in os.environ.items() if name.startswith(WORKER_VARIABLES)}
    # With Snakemake's thread counts torch would load with those, and a cell that sets others starts threads by that.
    for name in THREAD_VARIABLES:
        kept.pop(name, None)
    # OpenBLAS minds being forked with threads. And a library that asks for GPUs while it is imported would start CUDA,
    # here and for all children.
    alone = {"OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    return kept | COMPILE_IN_PROCESS | alone


def _start_child(connection: socket.socket, answers: TextIO, argv: Sequence[str], issued_at: float) -> int | None:
    """Send the request and return the number of the child; None where it cannot be sent or the worker refuses it."""
    try:
        # Not to one that was stopped: it would keep our standard streams open, and whoever reads them waiting.
        if not answers.readline():
            return None
        _send_request(connection, argv, issued_at)
        started = answers.readline()
    except OSError:
        return None
    return json.loads(started)["pid"] if started else None


def _send_request(connection: socket.socket, argv: Sequence[str], issued_at: float) -> None:
    umask = os.umask(0)
    os.umask(umask)
    request = {
        "argv": list(argv),
        "cwd": os.getcwd(),
        "environ": dict(os.environ),
        "umask": umask,
        "affinity": sorted(os.sched_getaffinity(0)),
        "issued_at": issued_at,
    }
    message = json.dumps(request).encode() + b"\n"
    # The descriptors travel with the first byte.
    socket.send_fds(connection, [message[:1]], [0, 1, 2])
    connection.sendall(message[1:])


def _forward_signals(pid: int) -> None:
    for number in FORWARDED_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup, or in a script's background
            signal.signal(number, lambda number, _frame: _forward(pid, number))


def _await_child(connection: socket.socket, answers: TextIO, pid: int) -> int:
    """Wait for the child's end and what the worker tells of it; a worker that was stopped may see neither."""
    with contextlib.suppress(ProcessLookupError):  # it has ended, and the worker has noted it
        child = os.pidfd_open(pid)
        select.select([connection.fileno(), child], [], [])
        os.close(child)
    try:
        ended = answers.readline()
    except TimeoutError:
        ended = ""
    if not ended:
        print("pipeline: the worker died or was stopped in the middle of the cell", file=sys.stderr)
        return 1
    return _end_like(json.loads(ended)["status"])


def _forward(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _end_like(status: int) -> int:
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    end_by(os.WTERMSIG(status))
    return 128 + os.WTERMSIG(status)


def end_by(number: int) -> None:
    """End this process by a signal, as one does that has no handler for it."""
    with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def open_closed_streams() -> None:
    """Make the standard streams that this process was started without, as by `<&-`: files would take their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 It takes the lowest number that is free, and stays open.
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def process_started_at() -> float:
    """Return when this process began, in seconds of the epoch, to the kernel's clock tick."""
    after_comm = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    ticks_since_boot = int(after_comm[19])  # field 22 of proc(5), the first after the name being 3
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks_since_boot / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s
