"""A warm worker: a process that has imported torch once, and forks a child for each cell.

What it imports and what its children do is in `child` beside this; who asks, and what passes between the two, in
`client`.
"""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.worker.child import end, preload, run

IDLE_S = 60.0
RECEIVE_LIMIT_S = 5.0
REQUEST_LIMIT_BYTES = 1 << 20
PR_SET_PDEATHSIG = 1
IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}


@dataclass
class Child:
    """A cell under way: the process, and the caller that waits for it."""

    pid: int
    pidfd: int
    caller: socket.socket


def main(path: Path, ready: int) -> None:
    """Be the worker: import, listen, and fork until idle; in a forked child, run its command."""
    _ignore_no_signal()
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # in a child it may be a pipe: too late
    preload()
    listener = _listen(path)
    os.write(ready, b"1")
    os.close(ready)
    request = _serve(listener, IDLE_S)
    if request is None:
        path.with_suffix(".log").unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        request = _serve(listener, 0.0)  # whoever connected before the path was gone
    if request is not None:  # this is a child, back from inside the loop with nothing of the worker's left open
        end(run(request))


def _ignore_no_signal() -> None:
    """Undo what the first caller ignores, as under nohup; callers forward to their children what they do not ignore."""
    for number in signal.valid_signals() - IGNORED_BY_PYTHON:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


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
                elif key.data in children:  # not reaped by the event before this one
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
    try:
        pid = os.fork()
    except OSError:  # the machine is out of processes: the caller sees the end of the stream
        pid = -1
    if pid == 0:
        _leave_worker([listener, caller, *(child.caller for child in children.values())], children, streams)
        return request
    for stream in streams:
        os.close(stream)
    if pid < 0:
        caller.close()
        return None
    with contextlib.suppress(OSError):  # in both processes, so that the group is there whichever runs first
        os.setpgid(pid, pid)
    child = children[pid] = Child(pid, os.pidfd_open(pid), caller)
    selector.register(caller, selectors.EVENT_READ, data=pid)
    selector.register(child.pidfd, selectors.EVENT_READ, data=pid)
    _tell(caller, {"pid": pid})
    return None


def _receive(caller: socket.socket) -> tuple[dict[str, Any], list[int]]:
    _tell(caller, {"worker": os.getpid()})
    caller.settimeout(RECEIVE_LIMIT_S)
    message, streams, _, _ = socket.recv_fds(caller, 65536, 3)
    try:
        while not message.endswith(b"\n"):
            more = caller.recv(65536)
            if not more or len(message) > REQUEST_LIMIT_BYTES:
                raise ValueError("the request is cut short or too long")
            message += more
        caller.settimeout(None)
        return json.loads(message), list(streams)
    except (OSError, ValueError):
        for stream in streams:  # whoever reads the caller's output waits for the end of it
            os.close(stream)
        raise


def _follow(child: Child, ready: Any, selector: selectors.BaseSelector, children: dict[int, Child]) -> None:
    """Reap a child that has ended, or end one whose caller is gone."""
    if ready is child.caller:
        # A caller sends nothing after its request: whatever there is to read is the end.
        selector.unregister(child.caller)
        _kill(child.pid)
        return
    _, status = os.waitpid(child.pid, 0)
    _tell(child.caller, {"status": status})
    with contextlib.suppress(KeyError):  # the caller left first
        selector.unregister(child.caller)
    selector.unregister(child.pidfd)
    os.close(child.pidfd)
    child.caller.close()
    del children[child.pid]


def _kill(pid: int) -> None:
    """Kill a child with its process group and all that it started, as the program under nsys, outside of that."""
    import psutil

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


def _leave_worker(sockets: list[socket.socket], siblings: dict[int, Child], streams: list[int]) -> None:
    """Become a process of one's own: a group to be killed with, its caller's streams, dead if the worker dies."""
    worker = os.getppid()
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != worker:  # it died before that call
        os._exit(1)
    for connection in sockets:
        connection.close()
    for sibling in siblings.values():
        os.close(sibling.pidfd)
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
