"""The caller's side of the warm worker: start it for a run, hand a cell over to it, and end as the cell ends.

`start` begins a process beside Snakemake (`server` beside this) that lasts as long as that. All that Snakemake starts
inherits SNAKEMAKE_VARIABLE, by which cells find the worker: it names an abstract Unix socket.

    caller -> worker   one JSON line: argv, cwd, environ, issued_at; with it the standard streams
    worker -> caller   one JSON line {"pid": ...}, and when the cell has ended {"status": wait status}

The connection is also the life line: a caller that is gone takes its cell with it, and a worker that is gone shows as
the end of the stream. Every cell starts here, so this module imports little.
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
# For a cell to end by itself. It may be in the middle of a long call, or of a callback that swallows an interrupt.
GRACE_S = 1.0


def start() -> int:
    """Start the worker of all that this process starts from now on; return the descriptor whose end is the worker's."""
    # Only this process has the writing end, so that the stream ends when it does, even by SIGKILL.
    end_of_this, kept_open = os.pipe()
    token = secrets.token_hex(16)
    subprocess.Popen(
        [sys.executable, "-P", "-m", "pipeline.worker.server", token],
        stdin=end_of_this,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # neither a closed terminal nor what is meant for the process group ends it
        env=_worker_environment(),
    )
    os.close(end_of_this)
    os.environ[SNAKEMAKE_VARIABLE] = token
    return kept_open


def _worker_environment() -> dict[str, str]:
    """Return the environment that a worker imports its libraries in, not that of its cells."""
    # With Snakemake's thread counts torch would load with those, and a cell that sets others starts threads by that.
    # With the name of a Snakemake around this one, the end of that one would end the worker.
    without = {*THREAD_VARIABLES, SNAKEMAKE_VARIABLE}
    # OpenBLAS minds being forked with threads. And a library that asks for GPUs while it is imported would start CUDA,
    # here and for all cells.
    alone = {"OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    return {name: value for name, value in os.environ.items() if name not in without} | COMPILE_IN_PROCESS | alone


def address(token: str) -> str:
    """Return the name of a worker's socket, which is no file."""
    return f"\0llm-systems-pipeline-{token}"


def is_own(peer: socket.socket) -> bool:
    """Tell whether a process of this user is at the other end: anybody may use the name of an abstract socket."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[1] == os.getuid()


def hand_over(argv: Sequence[str], issued_at: float) -> int | None:
    """Have the worker run `python -m pipeline <argv>` in our place; return its exit code, None if no worker takes it.

    A signal that ends the cell or this process ends both. Raises UserError for a wish that is not known.
    """
    wish, token = os.environ.get(OFF_VARIABLE, ""), os.environ.get(SNAKEMAKE_VARIABLE)
    if wish not in ("", "off"):
        raise UserError(f"{OFF_VARIABLE} must be off or unset, got '{wish}'")
    if wish or token is None:
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
    """Send the request and return the number of the cell's process; None where no worker takes it."""
    try:
        connection.connect(name)
        if not is_own(connection):
            return None
        request = {"argv": list(argv), "cwd": os.getcwd(), "environ": dict(os.environ), "issued_at": issued_at}
        message = json.dumps(request).encode() + b"\n"
        # The descriptors travel with the first byte.
        socket.send_fds(connection, [message[:1]], [0, 1, 2])
        connection.sendall(message[1:])
        started = answers.readline()
    except OSError:
        return None
    return json.loads(started)["pid"] if started else None


def _forward_signals(pid: int) -> None:
    """Pass signals on to a cell; end this process, and with it the cell, if one that should end the cell does not."""

    def forward(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        if number in ENDING_SIGNALS:
            signal.signal(signal.SIGALRM, lambda *_: end_by(number))
            signal.setitimer(signal.ITIMER_REAL, GRACE_S)

    for number in FORWARDED_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup, or in a script's background
            signal.signal(number, forward)


def _await_cell(answers: TextIO) -> int:
    """Wait for what the worker tells of the cell's end, and end like it."""
    ended = answers.readline()
    if not ended:
        print("pipeline: the worker died in the middle of the cell", file=sys.stderr)
        return 1
    status = json.loads(ended)["status"]
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
