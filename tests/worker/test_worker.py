"""The worker and its callers, as real processes over a small checkout whose command line runs given Python code."""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from pipeline.cells.library_environment import THREAD_VARIABLES
from pipeline.worker import client
from pipeline.worker.client import identity

from ..processes import assert_ended

PACKAGE = Path(__file__).parents[2] / "src/pipeline"
CLI = """
def run(argv, process, issued_at):
    scope = {"process": process, "argv": argv}
    exec(argv[0], scope)
    return scope.get("code", 0)
"""
CALL = """
import sys, time
from pipeline.worker import client as caller
code = caller.hand_over(sys.argv[1:], time.time())
sys.exit(99 if code is None else code)
"""
WORKER_ENVIRONMENT = "import json, os, psutil; print(json.dumps(psutil.Process(os.getppid()).environ()))"
NO_WORKER = 99
PATIENCE_S = 60  # for what should happen at once
IGNORED = (signal.SIGINT, signal.SIGHUP)  # by what a script runs in its background, and by what nohup runs
IGNORING = f"import signal\nfor number in {[*map(int, IGNORED)]}: signal.signal(number, signal.SIG_IGN)\n{CALL}"


@dataclass
class Checkout:
    """A package with the real caller and worker, nothing to preload, and sockets of its own."""

    root: Path
    runtime: Path

    def environment(self, **changes):
        return {**os.environ, "PYTHONPATH": str(self.root), "XDG_RUNTIME_DIR": str(self.runtime), **changes}

    def start(self, code, cwd=None, umask=-1, stdin=subprocess.DEVNULL, call=CALL, **changes):
        command = [sys.executable, "-c", call, code]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command,
            cwd=cwd,
            umask=umask,
            env=self.environment(**changes),
            text=True,
            stdin=stdin,
            stdout=pipe,
            stderr=pipe,
        )

    def call(self, code, text="", **options):
        process = self.start(code, stdin=subprocess.PIPE, **options)
        stdout, stderr = process.communicate(text, timeout=PATIENCE_S)
        return process.returncode, stdout, stderr

    def workers(self):
        return [
            p for p in psutil.process_iter(["cmdline"]) if any(str(self.runtime) in w for w in p.info["cmdline"] or ())
        ]


@pytest.fixture
def checkout(tmp_path):
    package = tmp_path / "src/pipeline"
    for folder in ("", "cells", "worker"):
        (package / folder).mkdir(parents=True, exist_ok=True)
        (package / folder / "__init__.py").write_text("")
    (package / "cli.py").write_text(CLI)
    for name in ("worker/client.py", "cells/library_environment.py", "errors.py"):
        shutil.copy(PACKAGE / name, package / name)
    set_constants(package, PRELOADED="()")
    runtime = Path(tempfile.mkdtemp(prefix="run", dir="/tmp"))  # a socket's path has some hundred characters at most
    found = Checkout(package.parent, runtime)
    yield found
    for worker in found.workers():
        worker.kill()
    shutil.rmtree(runtime)


def set_constants(package, modules=("server.py", "child.py"), **constants):
    """Copy the worker's modules with other constants."""
    unknown = set(constants)
    for module in modules:
        text = (PACKAGE / "worker" / module).read_text()
        for name, value in constants.items():
            text, count = re.subn(rf"^{name} = .*$", f"{name} = {value}", text, flags=re.MULTILINE)
            unknown -= {name} if count == 1 else set()
        (package / "worker" / module).write_text(text)
    assert not unknown


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_the_child_has_the_callers_directory_environment_umask_and_nothing_left_from_the_worker(checkout, tmp_path):
    code = (
        "import os, json\n"
        "told = [os.getcwd(), os.environ['CUDA_VISIBLE_DEVICES'], os.environ.get('LEFT'), os.umask(0), process]\n"
        "print(json.dumps(told))"
    )
    for devices, more in (("0", {"LEFT": "1"}), ("0", {}), ("3,5", {})):
        exit_code, stdout, _ = checkout.call(code, cwd=tmp_path, umask=0o027, CUDA_VISIBLE_DEVICES=devices, **more)
        assert exit_code == 0
        assert json.loads(stdout) == [str(tmp_path), devices, more.get("LEFT"), 0o027, "worker"]


def test_a_worker_has_neither_its_first_callers_thread_counts_nor_what_is_that_callers_alone_and_starts_no_cuda(
    checkout,
):
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "3")
    environment = json.loads(checkout.call(WORKER_ENVIRONMENT, LEFT="1", PIPELINE_SNAKEMAKE="1", **counts)[1])
    assert not {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "LEFT", "PIPELINE_SNAKEMAKE"} & set(environment)
    assert environment["OPENBLAS_NUM_THREADS"] == "1"
    assert environment["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="one core is that of every process")
def test_the_child_keeps_to_the_callers_cores(checkout):
    code = "import os; print(*os.sched_getaffinity(0))"
    checkout.call("pass")  # the worker has every core
    core = max(os.sched_getaffinity(0))
    caller = checkout.start(code, call=f"import os; os.sched_setaffinity(0, [{core}])\n{CALL}")
    assert caller.communicate(timeout=PATIENCE_S)[0] == f"{core}\n"


def test_the_child_has_the_callers_standard_streams(checkout):
    code = "import sys; print(input().upper()); print('to stderr', file=sys.stderr)"
    assert checkout.call(code, text="hello\n") == (0, "HELLO\n", "to stderr\n")


def test_nothing_that_an_interpreter_does_at_its_end_is_lost(checkout):
    code = "import atexit; atexit.register(print, 'goodbye', end=''); print('a line without an end ', end='')"
    assert checkout.call(code, PYTHONUNBUFFERED="")[1] == "a line without an end goodbye"


@pytest.mark.parametrize(
    ("code", "exit_code", "said"),
    [
        ("code = 7", 7, ""),
        ("raise SystemExit(5)", 5, ""),
        ("raise SystemExit('no')", 1, ""),
        ("import os; os._exit(3)", 3, ""),
        ("raise KeyError('a bug')", 1, "KeyError: 'a bug'\n"),
    ],
)
def test_the_caller_ends_with_the_childs_exit_code(checkout, code, exit_code, said):
    ended, _, stderr = checkout.call(code)
    assert (ended, stderr[-len(said) :] if said else stderr) == (exit_code, said)


# A shell starts what it runs in the background with SIGINT ignored, the tests too.
HEARD = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\n"
SLOW_TO_READ = "read = caller.json.loads\ncaller.json.loads = lambda text: time.sleep(0.5) or read(text)\n"


@pytest.mark.parametrize(
    ("number", "call"),
    [
        *((number, HEARD + CALL) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)),
        (signal.SIGTERM, CALL.replace("code =", f"{SLOW_TO_READ}code =")),  # before the child is known
    ],
)
def test_a_signal_to_the_caller_reaches_the_child(checkout, number, call):
    code = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(42))\n"
        "print('ready', flush=True); time.sleep(600)"
    )
    caller = checkout.start(code, call=call)
    assert caller.stdout.readline() == "ready\n"
    caller.send_signal(number)
    assert caller.wait(PATIENCE_S) == 42


def test_an_interrupt_ends_child_and_caller_by_that_signal_without_a_traceback(checkout):
    caller = checkout.start("import time; print('ready', flush=True); time.sleep(600)")
    assert caller.stdout.readline() == "ready\n"
    caller.send_signal(signal.SIGINT)
    _, stderr = caller.communicate(timeout=PATIENCE_S)
    assert (caller.returncode, stderr) == (-signal.SIGINT, "")


def test_a_signal_that_the_caller_ignores_ends_neither_it_nor_its_child(checkout):
    caller = checkout.start("print('ready', flush=True); input(); print('done')", call=IGNORING, stdin=subprocess.PIPE)
    assert caller.stdout.readline() == "ready\n"
    for number in IGNORED:
        caller.send_signal(number)
    assert caller.communicate("go on\n", timeout=PATIENCE_S) == ("done\n", "")
    assert caller.returncode == 0


@pytest.mark.parametrize("number", IGNORED)
def test_a_worker_whose_first_caller_ignored_signals_serves_others_that_do_not(checkout, number):
    assert checkout.call("pass", call=IGNORING)[0] == 0
    caller = checkout.start("import time; print('ready', flush=True); time.sleep(600)")
    assert caller.stdout.readline() == "ready\n"
    caller.send_signal(number)
    caller.communicate(timeout=PATIENCE_S)
    assert caller.returncode == -number


def test_a_child_that_crashes_ends_its_caller_by_the_same_signal(checkout):
    assert checkout.call("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")[0] == -signal.SIGSEGV
    assert checkout.call("pass")[0] == 0


@pytest.mark.parametrize("own_session", [False, True])
def test_a_killed_caller_leaves_no_child_nor_grandchild_behind(checkout, own_session):
    code = (
        "import os, subprocess, time\n"
        f"grandchild = subprocess.Popen(['sleep', '60'], start_new_session={own_session})\n"
        "print(os.getpid(), grandchild.pid, flush=True); time.sleep(60)"
    )
    caller = checkout.start(code)
    started = [psutil.Process(int(word)) for word in caller.stdout.readline().split()]
    caller.kill()
    caller.wait()
    assert_ended(started)
    assert checkout.call("pass")[0] == 0


def test_a_worker_killed_in_the_middle_fails_the_cell_and_the_next_starts_a_fresh_one(checkout):
    caller = checkout.start("import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    child = psutil.Process(int(caller.stdout.readline()))
    child.parent().kill()
    _, stderr = caller.communicate(timeout=PATIENCE_S)
    assert caller.returncode == 1
    assert "the worker died" in stderr
    assert_ended([child])
    assert checkout.call("print('fresh')")[:2] == (0, "fresh\n")


WORKER = "import os; print(os.getppid())"


def test_edited_code_is_what_the_next_cell_runs_by_the_same_worker(checkout):
    module, found = checkout.root / "pipeline/subject.py", []
    for value in ("before", "afterwards"):
        module.write_text(f"VALUE = '{value}'\n")
        found.append(checkout.call(f"from pipeline import subject; print(subject.VALUE)\n{WORKER}")[1].split())
    (before, worker), (after, same_worker) = found
    assert (before, after, worker) == ("before", "afterwards", same_worker)


def test_a_changed_environment_job_installation_or_version_of_the_worker_starts_another_worker(checkout):
    def worker(**changes):
        return checkout.call(WORKER, **changes)[1]

    first = worker()
    changed = [worker(TORCH_LOGS="all"), worker(SLURM_JOB_ID="1"), worker(SLURM_JOB_ID="2")]
    assert (worker(), worker(SLURM_JOB_ID="1")) == (first, changed[1])
    set_constants(checkout.root / "pipeline", PRELOADED="()  # changed")
    changed.append(worker())
    (checkout.root / "torch-9.9.dist-info").mkdir()
    assert len({first, *changed, worker()}) == 6


def test_what_is_read_when_a_library_is_loaded_or_names_a_job_is_part_of_which_worker_serves(monkeypatch):
    libraries = (
        "OMP_PROC_BIND",
        "GOMP_CPU_AFFINITY",
        "KMP_BLOCKTIME",
        "MKL_CBWR",
        "MALLOC_ARENA_MAX",
        "GLIBC_TUNABLES",
    )
    libraries += ("LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "NCCL_ALGO", "TORCH_LOGS", "PYTHONOPTIMIZE", "LC_ALL", "CXX")
    known = {identity()}
    for variable in (*libraries, "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"):
        for value in ("1", "2"):
            monkeypatch.setenv(variable, value)
            assert client._worker_environment().get(variable) == (value if variable in libraries else None)
            known.add(identity())
        monkeypatch.delenv(variable)
    assert len(known) == 1 + 2 * (len(libraries) + 4)


def test_what_differs_from_cell_to_cell_of_a_run_is_no_part_of_it(monkeypatch):
    before = identity()
    for variable in (*THREAD_VARIABLES, "TMPDIR", "PIPELINE_RUN", "PWD"):
        monkeypatch.setenv(variable, "1")
    assert identity() == before


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("os.nice(3)", "os.getpriority(os.PRIO_PROCESS, 0)"),
        ("os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))", "os.sched_getscheduler(0)"),
        ("resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99))", "resource.getrlimit(resource.RLIMIT_NOFILE)"),
        ("open('/proc/self/oom_score_adj', 'w').write('500')", "open('/proc/self/oom_score_adj').read()"),
    ],
)
def test_the_child_has_the_callers_priority_and_limits(checkout, change, told):
    code = f"import os, resource; print({told})"
    usual = checkout.call(code)[1]
    changed = subprocess.run([sys.executable, "-c", f"import os, resource; {change}; print({told})"], stdout=-1).stdout
    assert changed.decode() != usual
    assert checkout.call(code, call=f"import os, resource\n{change}\n{CALL}")[1] == changed.decode()


def test_no_worker_serves_two_cgroups_or_namespaces(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.worker.client.OWN_PROCESS", tmp_path)
    (tmp_path / "ns").mkdir()
    for name, content in (("cgroup", "0::/job_1\n"), ("oom_score_adj", "0\n")):
        (tmp_path / name).write_text(content)
    (tmp_path / "ns/mnt").symlink_to("mnt:[1]")
    first = identity()
    assert identity() == first
    (tmp_path / "cgroup").write_text("0::/job_2\n")
    second = identity()
    (tmp_path / "ns/mnt").unlink()
    (tmp_path / "ns/mnt").symlink_to("mnt:[2]")
    assert len({first, second, identity()}) == 3


def test_callers_at_once_share_one_worker_and_run_side_by_side(checkout, tmp_path):
    """Each waits for all the others to be there: were one to wait for another's end, none would end."""
    meet = (
        "import os, pathlib, time\n"
        f"here, give_up = pathlib.Path({str(tmp_path)!r}), time.monotonic() + {PATIENCE_S / 2}\n"
        "(here / f'{os.getpid()}.here').touch()\n"
        "while len(list(here.glob('*.here'))) < 8 and time.monotonic() < give_up: time.sleep(0.01)\n"
        "print(os.getppid(), len(list(here.glob('*.here'))))"
    )
    callers = [checkout.start(meet) for _ in range(8)]
    told = [caller.communicate(timeout=PATIENCE_S)[0].split() for caller in callers]
    assert [caller.returncode for caller in callers] == [0] * 8
    assert len({parent for parent, _ in told}) == 1
    assert [met for _, met in told] == ["8"] * 8


def test_a_worker_without_work_ends_itself_and_leaves_no_file(checkout):
    set_constants(checkout.root / "pipeline", PRELOADED="()", IDLE_S="0.3")
    assert checkout.call("import time; time.sleep(0.6)")[0] == 0
    wait_until(lambda: not checkout.workers())
    assert not [path for path in checkout.runtime.rglob("*") if path.is_file() or path.is_socket()]


def test_a_socket_left_by_a_killed_worker_is_no_obstacle(checkout):
    checkout.call("pass")
    for worker in checkout.workers():
        worker.kill()
    wait_until(lambda: not checkout.workers())
    (dead,) = checkout.runtime.rglob("*.sock")
    dead.with_name("of-another.log").touch()
    assert checkout.call("pass", TORCH_LOGS="all")[0] == 0  # which another worker serves
    left = [path.name for path in dead.parent.iterdir()]
    assert len(left) == 2
    assert not {dead.name, dead.with_suffix(".log").name, "of-another.log"} & set(left)
    assert checkout.call("pass")[0] == 0


@pytest.fixture
def impatient(checkout):
    """The checkout, with clients that have little patience with the worker."""
    set_constants(checkout.root / "pipeline", ("client.py",), ANSWER_LIMIT_S="0.5")
    return checkout


def test_a_worker_that_does_not_answer_is_passed_over_and_keeps_no_stream_of_the_caller_open(impatient):
    impatient.call("pass")
    for worker in impatient.workers():
        worker.suspend()
    assert impatient.call("pass") == (NO_WORKER, "", "")


def test_a_client_of_a_stopped_worker_can_be_interrupted(impatient):
    caller = impatient.start("import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    child = int(caller.stdout.readline())
    for worker in impatient.workers():
        if worker.pid != child:
            worker.suspend()
    caller.send_signal(signal.SIGINT)
    _, stderr = caller.communicate(timeout=PATIENCE_S)
    assert caller.returncode == 1
    assert "was stopped" in stderr


def test_the_socket_is_this_users_alone(checkout):
    checkout.call("pass")
    (path,) = checkout.runtime.rglob("*.sock")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_without_a_place_of_ones_own_for_a_socket_a_worker_that_starts_or_a_wish_for_one_there_is_none(
    checkout, tmp_path
):
    (tmp_path / "file").write_text("")
    assert checkout.call("pass", XDG_RUNTIME_DIR=str(tmp_path / "file"))[0] == NO_WORKER
    assert checkout.call("pass", PIPELINE_WORKER="off")[0] == NO_WORKER
    exit_code, _, stderr = checkout.call("pass", PIPELINE_WORKER="on")
    assert exit_code == 1
    assert "UserError: PIPELINE_WORKER must be off or unset, got 'on'" in stderr
    (checkout.root / "pipeline/worker/server.py").write_text("raise RuntimeError('broken')\n")
    assert checkout.call("pass")[0] == NO_WORKER
    (checkout.runtime / f"llm-systems-pipeline-{os.getuid()}").chmod(0o777)  # others can enter it
    set_constants(checkout.root / "pipeline", PRELOADED="()")
    assert checkout.call("pass")[0] == NO_WORKER
    assert not checkout.workers()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no worker either way")
@pytest.mark.parametrize(
    ("before", "environment"),
    [
        ("", {f"LARGE_{number}": "x" * 100_000 for number in range(12)}),
        ("import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')", {}),
    ],
    ids=["large environment", "deleted working directory"],
)
def test_what_a_worker_cannot_take_over_means_no_worker(checkout, tmp_path, before, environment):
    checkout.call("pass")
    signals = "code = 98 if code is None and signal.pthread_sigmask(signal.SIG_BLOCK, []) else code"
    call = CALL.replace("sys.exit", f"import signal; {signals}\nsys.exit")
    exit_code, _, stderr = checkout.call("pass", cwd=tmp_path, call=f"{before}\n{call}", **environment)
    assert (exit_code, stderr) == (NO_WORKER, "")


def test_torch_and_its_compiler_are_there_before_the_cell_and_neither_cuda_nor_threads_nor_the_projects_code(checkout):
    set_constants(checkout.root / "pipeline")  # as it is
    code = (
        "import gc, os, psutil, sys\n"
        "torch, inductor = sys.modules['torch'], sys.modules['torch._inductor.config']\n"
        "worker = psutil.Process(os.getppid())\n"
        "print(torch.cuda.is_initialized(), sorted(name for name in sys.modules if name.startswith('pipeline')))\n"
        "print(inductor.compile_threads, worker.children() == [psutil.Process()], worker.num_threads())\n"
        "print(gc.get_freeze_count() > 100_000, len(gc.get_objects()) < 10_000)"  # out of the collector's way
    )
    assert checkout.call(code)[1] == "False ['pipeline', 'pipeline.cli']\n1 True 1\nTrue True\n"
