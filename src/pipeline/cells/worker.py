"""A warm worker: a process that has imported torch once, and forks a child for each cell.

`hand_over` gives this process's command to the worker of this user, checkout and environment, starting one where there
is none. The worker imports third-party packages only and never touches CUDA; the child imports the project's own code,
so that it is never stale. Between the two runs a private Unix socket:

    caller -> worker   one JSON line: argv, cwd, environ, umask, affinity, issued_at; with it the standard streams
    worker -> caller   one JSON line {"pid": ...}, and when the child has ended {"status": wait status}

The connection is also the life line: a caller that is gone takes its child with it, and a worker that is gone shows as
the end of the stream.
"""

import atexit
import contextlib
import ctypes
import fcntl
import hashlib
import importlib
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]
PRELOADED = ("torch", "torch.distributed", "torch._dynamo", "triton", "psutil", "pynvml")
# These are read when a library is loaded, which here is before the caller comes.
BINDING_VARIABLES = ("LD_", "PYTHON", "PYTORCH", "TORCH", "TRITON")
OFF_VARIABLE = "PIPELINE_WORKER"
IDLE_S = 60.0
START_LIMIT_S = 120.0
REQUEST_LIMIT_BYTES = 1 << 20
FORWARDED_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
PR_SET_PDEATHSIG = 1


@dataclass
class Child:
    """A cell under way: the process, and the caller that waits for it."""

    pid: int
    pidfd: int
    caller: socket.socket


def hand_over(argv: Sequence[str], issued_at: float) -> int | None:
    """Have the worker run `python -m pipeline <argv>` in our place; return its exit code, None if there is no worker.

    A child that a signal ended ends this process by the same signal.
    """
    if os.environ.get(OFF_VARIABLE) == "off" or not hasattr(os, "pidfd_open"):
        return None
    try:
        connection = _connect()
    except OSError:
        return None
    with connection:
        _send_request(connection, argv, issued_at)
        return _await_child(connection)


def identity() -> str:
    """Return what a worker belongs to: user, checkout, interpreter, installed versions, and what libraries read."""
    # Not the caller's working directory, which `python -m` puts first: a worker serves callers from any.
    places = sorted({place for place in sys.path if Path(place).is_dir() and not Path(place).samefile(".")})
    installed = sorted(name for place in places for name in os.listdir(place) if name.endswith(".dist-info"))
    binding = sorted((name, value) for name, value in os.environ.items() if name.startswith(BINDING_VARIABLES))
    own_code = Path(__file__).read_text()
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
            # Otherwise a library that asks for GPUs while it is imported would start CUDA, here and for all children.
            env={**os.environ, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
        )
    os.close(writable)
    with open(readable, "rb") as ready, selectors.DefaultSelector() as selector:
        selector.register(ready, selectors.EVENT_READ)
        selector.select(START_LIMIT_S)


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
                signal.signal(number, lambda number, _frame: _forward(pid, number))
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
    number = os.WTERMSIG(status)
    with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


def main(path: Path, ready: int) -> None:
    """Be the worker: import, listen, and fork until idle; in a forked child, run its command."""
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    listener = _listen(path)
    os.write(ready, b"1")
    os.close(ready)
    request = _serve(listener, IDLE_S)
    if request is None:
        path.unlink(missing_ok=True)
        request = _serve(listener, 0.0)  # whoever connected before the path was gone
    if request is not None:  # this is a child, back from inside the loop with nothing of the worker's left open
        _exit(_run(request))


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)  # left by a worker that was killed
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen()
    return listener


def _serve(listener: socket.socket, idle_s: float) -> dict[str, Any] | None:
    """Answer callers until there is no cell and none has come for `idle_s`; return None, or in a child its request."""
    children: dict[int, Child] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            events = selector.select(None if children else idle_s)
            if not events and not children:
                return None
            for key, _ in events:
                if key.fileobj is listener:
                    request = _accept(listener, selector, children)
                    if request is not None:
                        return request
                else:
                    _follow(children[key.data], key.fileobj, selector, children)


def _accept(
    listener: socket.socket, selector: selectors.BaseSelector, children: dict[int, Child]
) -> dict[str, Any] | None:
    """Take one request and fork; return it in the child, None in the worker."""
    caller, _ = listener.accept()
    try:
        request, streams = _receive(caller)
    except (OSError, ValueError):
        caller.close()
        return None
    pid = os.fork()
    if pid == 0:
        _leave_worker([listener, caller, *(child.caller for child in children.values())], children, streams)
        return request
    for stream in streams:
        os.close(stream)
    child = children[pid] = Child(pid, os.pidfd_open(pid), caller)
    selector.register(caller, selectors.EVENT_READ, data=pid)
    selector.register(child.pidfd, selectors.EVENT_READ, data=pid)
    _tell(caller, {"pid": pid})
    return None


def _receive(caller: socket.socket) -> tuple[dict[str, Any], list[int]]:
    caller.settimeout(5.0)
    message, streams, _, _ = socket.recv_fds(caller, 65536, 3)
    while not message.endswith(b"\n"):
        more = caller.recv(65536)
        if not more or len(message) > REQUEST_LIMIT_BYTES:
            raise ValueError("the request was cut short")
        message += more
    caller.settimeout(None)
    return json.loads(message), list(streams)


def _follow(child: Child, ready: Any, selector: selectors.BaseSelector, children: dict[int, Child]) -> None:
    """Reap a child that has ended, or end one whose caller is gone."""
    if ready is child.caller:
        if child.caller.recv(1) == b"":
            selector.unregister(child.caller)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        return
    _, status = os.waitpid(child.pid, 0)
    _tell(child.caller, {"status": status})
    with contextlib.suppress(KeyError):  # the caller left first
        selector.unregister(child.caller)
    selector.unregister(child.pidfd)
    os.close(child.pidfd)
    child.caller.close()
    del children[child.pid]


def _tell(caller: socket.socket, answer: dict[str, int]) -> None:
    with contextlib.suppress(OSError):  # gone: its end of the connection says so next
        caller.sendall(json.dumps(answer).encode() + b"\n")


def _leave_worker(sockets: list[socket.socket], siblings: dict[int, Child], streams: list[int]) -> None:
    """Become a process of one's own: a group to be killed with, its caller's streams, dead if the worker dies."""
    worker = os.getppid()
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != worker:  # it died before that call
        os._exit(1)
    for end in sockets:
        end.close()
    for sibling in siblings.values():
        os.close(sibling.pidfd)
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)


def _run(request: dict[str, Any]) -> int:
    """Run the caller's command as if this process were the one that it started."""
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    os.sched_setaffinity(0, request["affinity"])
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)
    sys.argv = ["pipeline", *request["argv"]]
    for name in [name for name in sys.modules if name.partition(".")[0] == "pipeline"]:
        del sys.modules[name]
    importlib.invalidate_caches()
    try:
        return importlib.import_module("pipeline.cli").run(request["argv"], "worker", request["issued_at"])
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1


def _exit(code: int) -> None:
    """End as an interpreter does but for taking its modules apart, which with torch loaded takes half a second."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def process_started_at() -> float:
    """Return when this process began, in seconds of the epoch, to the kernel's clock tick."""
    after_comm = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    ticks_since_boot = int(after_comm[19])  # field 22 of proc(5), the first after the name being 3
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks_since_boot / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
