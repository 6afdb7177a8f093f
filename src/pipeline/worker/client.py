"""The caller's side of the warm worker: start it for a run, hand a cell over to it, and end as the cell ends.

`start` starts the worker (`server`) beside Snakemake, for as long as Snakemake runs. All that Snakemake starts inherits
SNAKEMAKE_VARIABLE, which names the worker's abstract Unix socket.

    caller -> worker   one JSON line: argv, cwd, environ, issued_at; with it the standard streams
    worker -> caller   one JSON line {"pid": ...}, and when the cell has ended {"status": wait status}

The connection also shows who is alive: if the caller goes, the worker kills its cell; if the worker goes, the caller
sees the end of the stream. Every cell starts here, so this module imports little.
"""

import contextlib
import json
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from pipeline.cells.library_environment import COMPILE_IN_PROCESS, THREAD_VARIABLES
from pipeline.errors import UserError

SNAKEMAKE_VARIABLE = "PIPELINE_SNAKEMAKE"
OFF_VARIABLE = "PIPELINE_WORKER"
ENDING_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
FORWARDED_SIGNALS = (*ENDING_SIGNALS, signal.SIGUSR1, signal.SIGUSR2)
# Time for a cell to end by itself: it may be in a long call, or in a callback that swallows an interrupt.
GRACE_S = 1.0


def start() -> int:
    """Start a worker for all that this process starts from now on; return a descriptor that ends it when closed."""
    # Only this process has the writing end, so the stream ends when this process does, even by SIGKILL.
    read_end, write_end = os.pipe()
    token = secrets.token_hex(16)
    subprocess.Popen(
        [sys.executable, "-P", "-m", "pipeline.worker.server", token],
        stdin=read_end,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a closed terminal or a signal to the process group must not end it
        env=_worker_environment(),
    )
    os.close(read_end)
    os.environ[SNAKEMAKE_VARIABLE] = token
    return write_end


def _worker_environment() -> dict[str, str]:
    """Return the environment in which a worker imports its libraries; its cells have their callers'."""
    # With Snakemake's thread counts, torch would load with those, and a cell that changes them would start threads.
    # With the token of an outer Snakemake around this one, the outer one's end would end this worker.
    excluded = {*THREAD_VARIABLES, SNAKEMAKE_VARIABLE}
    # OpenBLAS should not be forked while it has threads. And a library that looks for GPUs on import would start CUDA,
    # here and for all cells.
    extra = {"OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    return {name: value for name, value in os.environ.items() if name not in excluded} | COMPILE_IN_PROCESS | extra


def address(token: str) -> str:
    """Return the name of a worker's socket, which is not a file."""
    return f"\0llm-systems-pipeline-{token}"


def is_own(peer: socket.socket) -> bool:
    """Tell whether the peer is a process of this user, because anybody may use the name of an abstract socket."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[1] == os.getuid()


def hand_over(argv: Sequence[str], issued_at: float) -> int | None:
    """Have the worker run `python -m pipeline <argv>` in our place; return its exit code, None if no worker takes it.

    A signal that ends the cell or this process ends both. Raises UserError if OFF_VARIABLE has an unknown value.
    """
    setting, token = os.environ.get(OFF_VARIABLE, ""), os.environ.get(SNAKEMAKE_VARIABLE)
    if setting not in ("", "off"):
        raise UserError(f"{OFF_VARIABLE} must be off or unset, got '{setting}'")
    if setting or token is None:
        return None
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile("r", encoding="utf-8") as answers:
        pid = _start_cell(connection, address(token), answers, argv, issued_at)
        if pid is None:
            return None
        _forward_signals(pid)
        return _await_cell(answers)


def _start_cell(
    connection: socket.socket, name: str, answers: TextIO, argv: Sequence[str], issued_at: float
) -> int | None:
    """Send the request and return the cell's process ID; None if no worker takes it."""
    try:
        connection.connect(name)
        if not is_own(connection):
            return None
        request = {"argv": list(argv), "cwd": os.getcwd(), "environ": dict(os.environ), "issued_at": issued_at}
        message = json.dumps(request).encode() + b"\n"
        # The descriptors travel with the first byte.
        socket.send_fds(connection, [message[:1]], [0, 1, 2])
        connection.sendall(message[1:])
        answer = answers.readline()
    except OSError:
        return None
    return json.loads(answer)["pid"] if answer else None


def _forward_signals(pid: int) -> None:
    """Forward signals to a cell; if one that should end the cell does not, end this process and with it the cell."""

    def forward(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        if number in ENDING_SIGNALS:
            signal.signal(signal.SIGALRM, lambda *_: end_by(number))
            signal.setitimer(signal.ITIMER_REAL, GRACE_S)

    for number in FORWARDED_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup, or as a script's background job
            signal.signal(number, forward)


def _await_cell(answers: TextIO) -> int:
    """Wait until the worker reports the cell's end; return its exit code, or end by the same signal."""
    answer = answers.readline()
    if not answer:
        print("pipeline: the worker died while the cell was running", file=sys.stderr)
        return 1
    status = json.loads(answer)["status"]
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    end_by(os.WTERMSIG(status))
    return 128 + os.WTERMSIG(status)


def end_by(number: int) -> None:
    """End this process by a signal, without any handler for it."""
    with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def open_closed_streams() -> None:
    """Open standard streams that were closed at start (`<&-`), because other files would get their descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 It takes the lowest number that is free, and stays open.
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def process_started_at() -> float:
    """Return when this process began, in seconds since the epoch, accurate to a kernel clock tick."""
    after_comm = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    ticks_since_boot = int(after_comm[19])  # field 22 of proc(5), the first after the name being 3
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks_since_boot / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s
