"""The worker beside Snakemake: fork cells with torch imported, and kill what Snakemake leaves running when it dies.

It is two processes: a guard waits for Snakemake's end, and its child serves. For each cell the child forks a watcher,
which forks the cell, reports how it ended, and kills it if the caller goes. `child` has what cells do, `client` the
caller's side and the protocol.

Snakemake's descendants are found by an environment variable that they all inherit, even in other sessions.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any, NoReturn

import psutil

from pipeline.worker.child import end, preload, run
from pipeline.worker.client import SNAKEMAKE_VARIABLE, address, is_own

PR_SET_PDEATHSIG = 1
# More than one, because a process between fork and exec does not show its variables yet.
SCANS = 2
BETWEEN_SCANS_S = 0.2
GIVE_UP_S = 60.0  # a process may be stuck in a driver


def main(token: str) -> None:
    """Serve cells until Snakemake, which holds the other end of standard input, is gone; then kill what it left."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # too late in a cell: a pipe, perhaps
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for watchers
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address(token))
        guard = os.getpid()
        # A separate process, because it imports for seconds and would not notice meanwhile that Snakemake is gone.
        server = os.fork()
        if server == 0:
            _die_with(guard)
            _serve(listener)
    os.read(0, 1)  # returns at the end of the stream
    with contextlib.suppress(ProcessLookupError):
        os.kill(server, signal.SIGKILL)
    deadline, scans_left = time.monotonic() + GIVE_UP_S, SCANS
    while scans_left and time.monotonic() < deadline:
        scans_left = SCANS if _kill_all_with(token) else scans_left - 1
        time.sleep(BETWEEN_SCANS_S)


def _die_with(parent: int) -> None:
    """Have this process killed when its parent dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before that call
        os._exit(1)


def _serve(listener: socket.socket) -> NoReturn:
    """Fork a watcher for each caller; the first sets off the imports, for which callers in the meantime wait."""
    listener.listen()
    ready_at = 0.0
    while True:
        caller, _ = listener.accept()
        with caller:
            if not is_own(caller):
                continue
            preload()
            free_at, ready_at = ready_at, ready_at or time.time()
            if os.fork() == 0:
                try:
                    listener.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    _watch(caller, free_at)
                finally:
                    os._exit(1)


def _watch(caller: socket.socket, free_at: float) -> None:
    """Fork a caller's cell and report how it ends; kill the cell if the caller goes first.

    free_at: until when callers waited for imports that another one set off, in seconds since the epoch.
    """
    request, streams = _receive(caller)
    request["waited_s"] = max(0.0, free_at - request["issued_at"])
    # A caller sends nothing after its request, so anything to read is the end of the stream.
    if select.select([caller.fileno()], [], [], 0)[0]:  # it left during the imports
        return
    watcher = os.getpid()
    pid = os.fork()
    if pid == 0:
        _leave_worker(watcher, caller, streams)
        end(run(request))
    for stream in streams:  # readers of the caller's output wait until all copies are closed
        os.close(stream)
    with contextlib.suppress(OSError):  # in both processes, so that the group exists whichever runs first
        os.setpgid(pid, pid)
    _send(caller, {"pid": pid})
    cell = os.pidfd_open(pid)
    if cell not in select.select([caller.fileno(), cell], [], [])[0]:
        _kill(pid)
    _send(caller, {"status": os.waitpid(pid, 0)[1]})


def _receive(caller: socket.socket) -> tuple[dict[str, Any], list[int]]:
    message, streams, _, _ = socket.recv_fds(caller, 65536, 3)
    with caller.makefile("rb") as stream:
        return json.loads(message if message.endswith(b"\n") else message + stream.readline()), list(streams)


def _leave_worker(watcher: int, caller: socket.socket, streams: list[int]) -> None:
    """Become independent of the worker: own process group, the caller's streams, killed if the watcher dies."""
    os.setpgid(0, 0)
    _die_with(watcher)
    caller.close()
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)


def _kill(pid: int) -> None:
    """Kill a cell with its process group and all descendants outside it, such as the program under nsys."""
    descendants = []
    with contextlib.suppress(psutil.NoSuchProcess):
        descendants = psutil.Process(pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    for process in descendants:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _send(caller: socket.socket, answer: dict[str, int]) -> None:
    with contextlib.suppress(OSError):  # the caller is gone
        caller.sendall(json.dumps(answer).encode() + b"\n")


def _kill_all_with(token: str) -> bool:
    """Kill the processes that have the token; return whether there were any."""
    orphans = [
        process
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get(SNAKEMAKE_VARIABLE) == token
    ]
    for process in orphans:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return bool(orphans)


if __name__ == "__main__":
    main(sys.argv[1])
