"""The worker beside Snakemake: it forks cells with torch imported, and ends what Snakemake leaves running when it dies.

It is two processes: one waits for Snakemake's end, and its child serves. For each cell the child forks a watcher, which
forks the cell, tells the caller how it ends, and kills it if the caller goes. What cells do is in `child` beside this;
who asks, and what passes between the two, in `client`.

What Snakemake started, it tells by an environment variable, which all descendants inherit, in other sessions too.
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
# A process on its way from fork to exec does not show its variables yet.
SCANS = 2
BETWEEN_SCANS_S = 0.2
GIVE_UP_S = 60.0  # a process may be stuck in a driver


def main(token: str) -> None:
    """Have cells served until Snakemake, at the other end of standard input, is gone; then kill what it left."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # in a cell it may be a pipe: too late
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for watchers
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address(token))
        guard = os.getpid()
        # A process of its own, for it imports for seconds and would not see that Snakemake is gone.
        server = os.fork()
        if server == 0:
            _end_with(guard)
            _serve(listener)
    os.read(0, 1)  # the end of the stream
    with contextlib.suppress(ProcessLookupError):
        os.kill(server, signal.SIGKILL)
    give_up, scans_left = time.monotonic() + GIVE_UP_S, SCANS
    while scans_left and time.monotonic() < give_up:
        scans_left = SCANS if _kill_all_with(token) else scans_left - 1
        time.sleep(BETWEEN_SCANS_S)


def _end_with(parent: int) -> None:
    """Have this process killed when its parent dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before that call
        os._exit(1)


def _serve(listener: socket.socket) -> NoReturn:
    """Fork a watcher for each caller; those that come while the first has packages imported wait for that."""
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
    """Fork the cell of a caller and tell it how that ends; kill the cell if the caller goes first.

    free_at: until when callers waited for another one's imports, in seconds since the epoch.
    """
    request, streams = _receive(caller)
    request["waited_s"] = max(0.0, free_at - request["issued_at"])
    # A caller sends nothing after its request: whatever there is to read is the end.
    if select.select([caller.fileno()], [], [], 0)[0]:  # it went while packages were imported
        return
    watcher = os.getpid()
    pid = os.fork()
    if pid == 0:
        _leave_worker(watcher, caller, streams)
        end(run(request))
    for stream in streams:  # whoever reads the caller's output waits for the end of it
        os.close(stream)
    with contextlib.suppress(OSError):  # in both processes, so that the group is there whichever runs first
        os.setpgid(pid, pid)
    _tell(caller, {"pid": pid})
    cell = os.pidfd_open(pid)
    if cell not in select.select([caller.fileno(), cell], [], [])[0]:
        _kill(pid)
    _tell(caller, {"status": os.waitpid(pid, 0)[1]})


def _receive(caller: socket.socket) -> tuple[dict[str, Any], list[int]]:
    message, streams, _, _ = socket.recv_fds(caller, 65536, 3)
    with caller.makefile("rb") as rest:
        return json.loads(message if message.endswith(b"\n") else message + rest.readline()), list(streams)


def _leave_worker(watcher: int, caller: socket.socket, streams: list[int]) -> None:
    """Become a process of one's own: a group to be killed with, its caller's streams, dead if its watcher dies."""
    os.setpgid(0, 0)
    _end_with(watcher)
    caller.close()
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)


def _kill(pid: int) -> None:
    """Kill a cell with its process group and all that it started, as the program under nsys, outside of that."""
    started = []
    with contextlib.suppress(psutil.NoSuchProcess):
        started = psutil.Process(pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _tell(caller: socket.socket, answer: dict[str, int]) -> None:
    with contextlib.suppress(OSError):  # gone: its end of the connection says so next
        caller.sendall(json.dumps(answer).encode() + b"\n")


def _kill_all_with(token: str) -> bool:
    """Kill the processes that have the token; tell whether there was any."""
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
