"""The caller's side of the warm worker: hand this process's command over, and end as its child ends.

`hand_over` gives the command to the worker of this user, checkout and environment (pipeline.cells.worker), starting one
where there is none. Between the two runs a private Unix socket:

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
import selectors
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import UserError

PACKAGE = Path(__file__).parents[1]
OWN_CODE = (Path(__file__), Path(__file__).with_name("worker.py"))
# These are read when a library is loaded, which in a worker is before the caller comes.
BINDING_VARIABLES = ("LD_", "PYTHON", "PYTORCH", "TORCH", "TRITON")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
# The compiler makes its kernels in the cell's own process: it has a handful of them, and to start inductor's pool of
# processes, each of which imports torch, takes longer than they do. Read when inductor is imported.
COMPILE_IN_PROCESS = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
OFF_VARIABLE = "PIPELINE_WORKER"
START_LIMIT_S = 120.0
FORWARDED_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def hand_over(argv: Sequence[str], issued_at: float) -> int | None:
    """Have the worker run `python -m pipeline <argv>` in our place; return its exit code, None if there is no worker.

    A child that a signal ended ends this process by the same signal. Raises UserError for a wish that is not known.
    """
    if not _is_wanted() or not hasattr(os, "pidfd_open"):
        return None
    try:
        connection = _connect()
    except OSError:
        return None
    with connection:
        # Held back until there is a child to pass them to: one that came in between would end this process alone.
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED_SIGNALS)
        _send_request(connection, argv, issued_at)
        return _await_child(connection)


def _is_wanted() -> bool:
    wish = os.environ.get(OFF_VARIABLE, "")
    if wish not in ("", "off"):
        raise UserError(f"{OFF_VARIABLE} is '{wish}', allowed is off; leave it unset for a worker")
    return not wish


def identity() -> str:
    """Return what a worker belongs to: user, checkout, interpreter, installed versions, and what libraries read."""
    # Not the caller's working directory, which `python -m` puts first: a worker serves callers from any.
    places = sorted({place for place in sys.path if Path(place).is_dir() and not Path(place).samefile(".")})
    installed = sorted(name for place in places for name in os.listdir(place) if name.endswith(".dist-info"))
    binding = sorted((name, value) for name, value in os.environ.items() if name.startswith(BINDING_VARIABLES))
    own_code = [path.read_text() for path in OWN_CODE]
    facts = [os.getuid(), str(PACKAGE), sys.executable, sys.version, sys.flags, places, installed, binding, own_code]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def runtime_folder() -> Path:
    """Return the user's folder for sockets; raises OSError where there is none that is theirs alone."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(base or tempfile.gettempdir()) / f"llm-systems-pipeline-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) != 0o700:
        raise PermissionError(f"{folder} is not this user's alone")
    return folder


def _connect() -> socket.socket:
    """Connect to the worker; start one, and one only, where there is none. Raises OSError where none can be had."""
    path = runtime_folder() / f"{identity()}.sock"
    connection = _try_connect(path)
    if connection is not None:
        return connection
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = _try_connect(path)
        if connection is None:
            _start_worker(path)
            connection = _try_connect(path)
    if connection is None:
        raise ConnectionError("the worker did not start")
    return connection


def _try_connect(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    return connection


def _start_worker(path: Path) -> None:
    """Start a worker and wait until it listens, or has ended."""
    readable, writable = os.pipe()
    with open(path.with_suffix(".log"), "w") as log:
        subprocess.Popen(
            [sys.executable, "-P", "-m", "pipeline.cells.worker", str(path), str(writable)],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[writable],
            start_new_session=True,
            env=_worker_environment(),
        )
    os.close(writable)
    with open(readable, "rb") as ready, selectors.DefaultSelector() as selector:
        selector.register(ready, selectors.EVENT_READ)
        selector.select(START_LIMIT_S)


def _worker_environment() -> dict[str, str]:
    """Return the environment that a worker imports its libraries in, not that of its children."""
    # With Snakemake's thread counts torch would load with those, and a cell that sets others starts threads by that.
    kept = {name: value for name, value in os.environ.items() if name not in THREAD_VARIABLES}
    # Otherwise a library that asks for GPUs while it is imported would start CUDA, here and for all children.
    return kept | COMPILE_IN_PROCESS | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


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


def _await_child(connection: socket.socket) -> int:
    with connection.makefile("r") as answers:
        started = answers.readline()
        if started:
            pid = json.loads(started)["pid"]
            for number in FORWARDED_SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup, or in a script's background
                    signal.signal(number, lambda number, _frame: _forward(pid, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
        ended = answers.readline()
    if not ended:
        print("pipeline: the worker died in the middle of the cell", file=sys.stderr)
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


def process_started_at() -> float:
    """Return when this process began, in seconds of the epoch, to the kernel's clock tick."""
    after_comm = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    ticks_since_boot = int(after_comm[19])  # field 22 of proc(5), the first after the name being 3
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks_since_boot / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s
