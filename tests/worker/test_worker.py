"""Test the worker and its callers as real processes on a small checkout whose command line runs given Python code."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pipeline.errors import UserError
from pipeline.worker import client

from ..processes import assert_ended, has_ended, wait_until

PACKAGE = Path(__file__).parents[2] / "src/pipeline"
CLI = """
def run(argv, process, issued_at, waited_s):
    scope = {"process": process, "argv": argv, "waited_s": waited_s}
    exec(argv[0], scope)
    return scope.get("code", 0)
"""
CALL = """
import sys, time
from pipeline.worker import client as caller
code = caller.hand_over(sys.argv[1:], time.time())
sys.exit(99 if code is None else code)
"""
NO_WORKER = 99
PATIENCE_S = 60  # for what should happen at once
# Stands in for Snakemake: prints its process ID, the worker's, and the socket's token once the socket exists.
RUN = """
import os, psutil, socket, sys, time
from pipeline.worker import client
client.start()
(worker,) = psutil.Process().children()
while True:
    with socket.socket(socket.AF_UNIX) as connection:
        if not connection.connect_ex(client.address(os.environ[client.SNAKEMAKE_VARIABLE])): break
    time.sleep(0.01)
print(os.getpid(), worker.pid, os.environ[client.SNAKEMAKE_VARIABLE], flush=True)
"""
IGNORING = "import signal\nfor number in (2, 1): signal.signal(number, signal.SIG_IGN)\n"
SLEEPING = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


class Run:
    """A process that stands in for Snakemake, with the real worker and callers of a checkout."""

    def __init__(self, root, before="", after="time.sleep(600)", **environment):
        self.root, self.environment = root, {**os.environ, "PYTHONPATH": str(root), **environment}
        command = [sys.executable, "-c", f"{before}\n{RUN}\n{after}"]
        pipe = {"stdout": subprocess.PIPE, "text": True}
        self.parent = subprocess.Popen(command, env=self.environment, start_new_session=True, **pipe)
        parent, worker, token = self.parent.stdout.readline().split()
        self.processes = [psutil.Process(int(parent)), psutil.Process(int(worker))]
        self.processes += self.processes[1].children()  # the one that serves
        self.environment[client.SNAKEMAKE_VARIABLE] = token

    def start(self, code, before="", cwd=None, **changes):
        command = [sys.executable, "-c", before + CALL, code]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(command, cwd=cwd, env={**self.environment, **changes}, text=True, **pipes)

    def start_cell(self, code, before=""):
        """Start a cell that prints process IDs; return its caller, once that forwards signals, and these processes."""
        caller = self.start(code, before)
        started = [psutil.Process(int(word)) for word in caller.stdout.readline().split()]
        wait_until(lambda: forwards(caller))
        return caller, started

    def call(self, code, text="", **options):
        process = self.start(code, **options)
        stdout, stderr = process.communicate(text, timeout=PATIENCE_S)
        return process.returncode, stdout, stderr

    def end(self):
        self.parent.kill()
        self.parent.communicate()
        assert_ended(self.processes)


def checkout(folder, preloads=False, imported=""):
    """Make a package with the real worker and a command line that runs given code; return the folder above it.

    preloads: whether the worker imports what its cells would; imported: code that it imports otherwise.
    """
    package = folder / "pipeline"
    for part in ("", "cells", "worker"):
        (package / part).mkdir(parents=True, exist_ok=True)
        (package / part / "__init__.py").write_text("")
    (folder / "imported.py").write_text(imported)
    (package / "cli.py").write_text(CLI)
    for name in ("worker/client.py", "worker/server.py", "cells/library_environment.py", "errors.py"):
        shutil.copy(PACKAGE / name, package / name)
    child = (PACKAGE / "worker/child.py").read_text()
    if not preloads:
        child = re.sub(r"^PRELOADED = .*$", "PRELOADED = ('imported',)", child, flags=re.MULTILINE)
    (package / "worker/child.py").write_text(child)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    shared_run = Run(checkout(tmp_path_factory.mktemp("checkout")), OMP_NUM_THREADS="3")
    yield shared_run
    shared_run.end()


@pytest.fixture
def own_run(tmp_path):
    started = []

    def start(imported="", **options):
        started.append(Run(checkout(tmp_path / "checkout", imported=imported), **options))
        return started[-1]

    yield start
    for each in started:
        each.end()


def test_a_cell_has_only_its_callers_directory_and_environment(run, tmp_path):
    names = ("CUDA_VISIBLE_DEVICES", "OPENBLAS_NUM_THREADS", "LEFT")
    code = f"import os; print([os.getcwd(), process, *map(os.environ.get, {names})]); os.environ['LEFT'] = '1'"
    for devices in ("0", "3,5"):
        found = [str(tmp_path), "worker", devices, os.environ.get("OPENBLAS_NUM_THREADS"), None]
        assert run.call(code, cwd=tmp_path, CUDA_VISIBLE_DEVICES=devices)[:2] == (0, f"{found}\n")


def test_a_worker_does_not_inherit_thread_counts_or_an_outer_runs_token(run):
    environment = run.processes[1].environ()
    assert not {"OMP_NUM_THREADS", "MKL_NUM_THREADS", client.SNAKEMAKE_VARIABLE} & set(environment)
    assert environment["OPENBLAS_NUM_THREADS"] == environment["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"


def test_a_cell_uses_its_callers_streams_and_runs_exit_handlers(run):
    code = "import atexit, sys; atexit.register(print, 'goodbye', end='')\n"
    code += "print('to stderr', file=sys.stderr); print(input().upper(), end=' \u00d7 ')"
    assert run.call(code, text="hello\n", PYTHONIOENCODING="utf-8") == (0, "HELLO \u00d7 goodbye", "to stderr\n")


@pytest.mark.parametrize(
    ("code", "exit_code", "error_output"),
    [
        ("code = 7", 7, ""),
        ("raise SystemExit(5)", 5, ""),
        ("raise SystemExit('no')", 1, ""),
        ("import os; os._exit(3)", 3, ""),
        ("raise KeyError('a bug')", 1, "KeyError: 'a bug'\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV, ""),
    ],
)
def test_the_caller_ends_as_its_cell_does(run, code, exit_code, error_output):
    ended, _, stderr = run.call(code)
    assert (ended, stderr[-len(error_output) :] if error_output else stderr) == (exit_code, error_output)


def forwards(caller):
    """Tell whether a caller handles the last of the signals that it forwards, and therefore all of them."""
    handled = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{caller.pid}/status").read_text(), re.MULTILINE)[1]
    return int(handled, 16) >> (client.FORWARDED_SIGNALS[-1] - 1) & 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_to_the_caller_reaches_its_cell(run, number):
    caller, _ = run.start_cell(f"import signal, sys; signal.signal({int(number)}, lambda *_: sys.exit(42)); {SLEEPING}")
    caller.send_signal(number)
    assert caller.wait(PATIENCE_S) == 42


WAITING = "import pathlib, time\nwhile not pathlib.Path('{folder}/go').exists(): time.sleep(0.01)"
TOUCHING_ONCE_SENT = """
import pathlib, socket
class Socket(socket.socket):
    def sendall(self, message):
        super().sendall(message)
        pathlib.Path('{folder}/begun').touch()
socket.socket = Socket
"""
HOLDING = """
import os, pathlib, time
worker, begun = os.getpid(), pathlib.Path('{folder}/begun')
def hold():
    if os.getppid() != worker and not begun.exists():  # in the cell, not in its watcher
        begun.touch()
        time.sleep(600)
os.register_at_fork(after_in_child=hold)
"""
RUNNING = "import time; time.sleep(600); open('{folder}/ran', 'w')"
DEAF = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); open('{{folder}}/begun', 'w'); {RUNNING}"
# When an interrupt comes: code that the worker imports, code that the caller runs first, and the cell's code. One of
# them creates the file `begun`.
MOMENTS = {
    "the worker still imports": (WAITING, TOUCHING_ONCE_SENT, "open('{folder}/ran', 'w')"),
    "a callback behind the fork swallows it, as of torch's": (HOLDING, "", RUNNING),
    "the cell is deaf, as in a long call": ("", "", DEAF),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupt_ends_a_cell_that_has_not_begun_or_ignores_it(own_run, tmp_path, moment):
    imported, before, code = (text.format(folder=tmp_path) for text in MOMENTS[moment])
    ending = own_run(imported=imported)
    caller = ending.start(code, before)
    wait_until((tmp_path / "begun").exists)
    cells = ending.processes[2].children(recursive=True)
    caller.send_signal(signal.SIGINT)
    assert caller.wait(PATIENCE_S) == -signal.SIGINT
    (tmp_path / "go").touch()
    assert_ended(cells)
    assert ending.call("print('next')")[:2] == (0, "next\n")
    assert_ended(ending.processes[2].children())
    assert not (tmp_path / "ran").exists()


def test_an_interrupt_ends_cell_and_caller_unless_the_caller_ignores_it(run):
    caller, _ = run.start_cell(SLEEPING)
    caller.send_signal(signal.SIGINT)
    _, stderr = caller.communicate(timeout=PATIENCE_S)
    assert (caller.returncode, stderr) == (-signal.SIGINT, "")
    ignoring, _ = run.start_cell("import os; print(os.getpid(), flush=True); input(); print('done')", IGNORING)
    for number in (signal.SIGINT, signal.SIGHUP):
        ignoring.send_signal(number)
    assert ignoring.communicate("go on\n", timeout=PATIENCE_S) == ("done\n", "")


@pytest.mark.parametrize("own_session", [False, True])
def test_a_killed_caller_leaves_neither_its_cell_nor_the_cells_children(run, own_session):
    started = f"subprocess.Popen(['sleep', '60'], start_new_session={own_session})"
    code = f"import os, subprocess, time; print(os.getpid(), {started}.pid, flush=True); time.sleep(60)"
    caller, started = run.start_cell(code)
    caller.kill()
    caller.wait()
    assert_ended(started)
    assert run.call("pass")[0] == 0


def test_a_killed_watcher_fails_only_its_own_cell(run):
    caller, [cell] = run.start_cell(SLEEPING)
    cell.parent().kill()
    _, stderr = caller.communicate(timeout=PATIENCE_S)
    assert (caller.returncode, "the worker died" in stderr) == (1, True)
    assert_ended([cell])
    assert run.call("print('next')")[:2] == (0, "next\n")


def test_the_next_cell_runs_edited_code(run):
    for value in ("before", "afterwards"):
        (run.root / "pipeline/subject.py").write_text(f"print('{value}')\n")
        assert run.call("import pipeline.subject")[1] == f"{value}\n"


MEETING = f"""
import os, pathlib, time
give_up = time.monotonic() + {PATIENCE_S / 2}
pathlib.Path(f"{{os.getpid()}}.here").touch()
while len(os.listdir()) < 4 and time.monotonic() < give_up: time.sleep(0.01)
print(len(os.listdir()))
"""


def test_concurrent_callers_run_in_parallel_and_leave_no_zombies(run, tmp_path):
    # Each waits until all four run; if one had to wait for another's end, not all would count four.
    callers = [run.start(MEETING, cwd=tmp_path) for _ in range(4)]
    assert [caller.communicate(timeout=PATIENCE_S)[0] for caller in callers] == ["4\n"] * 4
    wait_until(lambda: run.processes[2].children() == [])


def test_only_cells_of_a_live_run_of_this_user_get_a_worker(run, monkeypatch):
    other_user = "import os; os.getuid = lambda: 12345\n"
    for options in ({"PIPELINE_WORKER": "off"}, {client.SNAKEMAKE_VARIABLE: "gone"}, {"before": other_user}):
        assert run.call("pass", **options) == (NO_WORKER, "", "")
    monkeypatch.delenv(client.SNAKEMAKE_VARIABLE, raising=False)
    assert client.hand_over(["measure"], 0.0) is None
    monkeypatch.setenv(client.OFF_VARIABLE, "on")
    with pytest.raises(UserError, match="PIPELINE_WORKER must be off or unset, got 'on'"):
        client.hand_over(["measure"], 0.0)


# Prints the IDs of what it starts: a process in its group, one in its own session, and one that nobody waits for.
STARTING = """
import subprocess
group = subprocess.Popen(["sleep", "60"]).pid
session = subprocess.Popen(["sleep", "60"], start_new_session=True).pid
left = subprocess.run(["sh", "-c", "setsid sleep 60 >/dev/null & echo $!"], stdout=-1, text=True).stdout.strip()
print(group, session, left, flush=True)
"""


@pytest.mark.parametrize(
    ("after", "end", "number"),
    [
        (f"{STARTING}time.sleep(60)", os.kill, signal.SIGKILL),
        (f"{STARTING}time.sleep(60)", os.killpg, signal.SIGHUP),
        (STARTING, None, 0),  # it ends by itself
    ],
)
def test_a_runs_descendants_end_with_it_but_not_those_of_other_runs(own_run, run, after, end, number):
    other, [cell_of_other] = run.start_cell(SLEEPING)
    ending = own_run(after=after)
    started = [psutil.Process(int(pid)) for pid in ending.parent.stdout.readline().split()]
    if end:
        assert not any(map(has_ended, started))
        end(ending.parent.pid, number)
    assert ending.parent.wait(PATIENCE_S) == -number
    assert_ended([*started, *ending.processes])
    assert not has_ended(cell_of_other)
    other.kill()


def test_only_callers_during_the_imports_have_waited(own_run, tmp_path):
    # RUN, which checks that the worker's socket exists, is the first caller and sets off the imports.
    run = own_run(WAITING.format(folder=tmp_path))
    waiting_callers = []
    for folder in (tmp_path / "one", tmp_path / "other"):
        folder.mkdir()
        waiting_callers.append(run.start("print(waited_s)", TOUCHING_ONCE_SENT.format(folder=folder)))
        wait_until((folder / "begun").exists)
    (tmp_path / "go").touch()
    assert all(float(each.communicate(timeout=PATIENCE_S)[0]) > 0 for each in waiting_callers)
    assert float(run.call("print(waited_s)")[1]) == 0


def test_the_worker_preloads_torch_but_no_cuda_threads_or_project_code(tmp_path):
    preloading_run = Run(checkout(tmp_path, preloads=True))
    code = (
        "import gc, os, psutil, sys\n"
        "torch, inductor = sys.modules['torch'], sys.modules['torch._inductor.config']\n"
        "print(torch.cuda.is_initialized(), sorted(name for name in sys.modules if name.startswith('pipeline')))\n"
        "print(inductor.compile_threads, psutil.Process(os.getppid()).num_threads())\n"
        "print(gc.get_freeze_count() > 100_000, len(gc.get_objects()) < 10_000)"  # out of the collector's way
    )
    assert preloading_run.call(code)[1] == "False ['pipeline', 'pipeline.cli']\n1 1\nTrue True\n"
    preloading_run.end()
