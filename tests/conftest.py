"""Set up all tests: one thread, one test at a time on the GPU, Triton's interpreter if there is no GPU."""

import contextlib
import fcntl
import gc
import itertools
import os
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from xdist.scheduler import LoadFileScheduling

from pipeline.worker import client

from .browser import executable, started

# Triton's interpreter must be turned on before a kernel is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    from .interpreter import hasten

    hasten()
    # Compile for the CPU without vector instructions: probing for them takes seconds, and no test needs the speed.
    os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "0"

# Compiling imports setuptools, which fails if something else has already loaded the standard library's distutils.
with contextlib.suppress(ImportError):
    import setuptools  # noqa: F401

# A script's background jobs ignore interrupts, nohup ignores hang-ups, and all that the tests start would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


# Files whose tests start many processes.
LONG_FILES = ("test_cli.py", "test_modules.py", "test_starting.py", "test_worker.py")
# One of its slow tests measures a whole scale, which takes as long as all other tests on the other processes.
LONGEST_FILE = "test_scales.py"


def pytest_collection_modifyitems(items):
    """Run the longest files first, so that no process idles for long at the end.

    Of the files that run Snakemake one comes first, because it measures what the others wait for.
    """
    first = next((item.path for item in items if item.get_closest_marker("workflow")), None)

    def place(item):
        if item.path.name == LONGEST_FILE and item.get_closest_marker("slow"):
            return -1
        if item.get_closest_marker("workflow"):
            return 0 if item.path == first else 2
        return 1 if item.path.name in LONG_FILES or item.get_closest_marker("slow") else 3

    items.sort(key=place)


@pytest.hookimpl(tryfirst=True)  # before ranks are forked
def pytest_collection_finish():
    """Keep garbage collections from walking what was imported, which takes a quarter of a second each time."""
    gc.collect()
    gc.freeze()


class _ByWhatIsShared(LoadFileScheduling):
    """Give all files of a folder whose tests share a measured run to one process, so that it is measured once."""

    def _split_scope(self, nodeid):
        return re.match(r"tests/stages/\w+/|[^:]*", nodeid)[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return _ByWhatIsShared(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_runtest_setup(item):
    """Skip tests marked `gpu` if there are fewer GPUs than they need, 1 or as in `gpu(count=2)`."""
    mark = item.get_closest_marker("gpu")
    if mark is not None and torch.cuda.device_count() < (needed := mark.kwargs.get("count", 1)):
        pytest.skip(f"needs {needed} CUDA GPU{'s' if needed > 1 else ''}")


@pytest.fixture(autouse=True, scope="session")
def own_host(tmp_path_factory):
    """Keep cells of these tests from waiting for those of other processes and checkouts, or for an idle machine."""
    os.environ["PIPELINE_LOCKS"] = str(tmp_path_factory.getbasetemp() / "locks")
    os.environ["PIPELINE_HOST_CHECK"] = "off"


@pytest.fixture(autouse=True, scope="session")
def fork_server():
    """Start the fork server for new ranks, preloaded with what each would import in its first optimizer step."""
    forkserver.set_forkserver_preload(["__main__", "torch._dynamo"])
    forkserver.ensure_running()


@pytest.fixture(scope="module")
def worker():
    """Start a worker for the cells of commands that a module's tests run, as in a run: they need not import torch."""
    write_end = client.start()
    yield
    os.close(write_end)
    del os.environ[client.SNAKEMAKE_VARIABLE]


@pytest.fixture(autouse=True)
def one_thread():
    """Compute on one thread, whatever the previous test set.

    Tensors here are small: threads would wait for each other longer than they compute. With more threads oneDNN also
    takes more memory, which some tests count.
    """
    torch.set_num_threads(1)


# Ways to set TF32 by torch's old API, its new one or both, and whether matmuls on a GPU then use it.
TF32_SWITCHES = {
    "pass": False,
    "torch.set_float32_matmul_precision('highest')": False,
    "torch.set_float32_matmul_precision('high')": True,
    "torch.set_float32_matmul_precision('medium')": True,
    "torch.backends.cuda.matmul.allow_tf32 = False": False,
    "torch.backends.cuda.matmul.allow_tf32 = True": True,
    "torch.backends.fp32_precision = 'ieee'": False,
    "torch.backends.fp32_precision = 'tf32'": True,
    "torch.backends.cudnn.fp32_precision = 'tf32'": True,  # sets it for all of CUDA
    "torch.backends.cuda.matmul.fp32_precision = 'ieee'": False,
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'": True,
    "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'": False,
    "torch.backends.fp32_precision = 'tf32'; torch.backends.cuda.matmul.fp32_precision = 'ieee'": False,
    "torch.backends.fp32_precision = 'ieee'; torch.backends.cuda.matmul.fp32_precision = 'tf32'": True,
    "torch.backends.fp32_precision = 'tf32'; torch.set_float32_matmul_precision('highest')": False,
    "torch.set_float32_matmul_precision('high'); torch.backends.cuda.matmul.fp32_precision = 'ieee'": False,
}


@pytest.fixture(params=TF32_SWITCHES)
def tf32_switch(request):
    """Set torch's switch for TF32, starting from its defaults, again with `set`; restore the defaults at the end."""

    def as_it_is_by_default():
        torch.set_float32_matmul_precision("highest")
        for backend, operation in itertools.product(("cuda", "mkldnn"), ("matmul", "all")):
            torch._C._set_fp32_precision_setter(backend, operation, "none")
        torch.backends.fp32_precision = "none"

    def switch():
        as_it_is_by_default()
        exec(request.param, {"torch": torch})

    switch()
    yield SimpleNamespace(set=switch, allows_tf32=TF32_SWITCHES[request.param])
    as_it_is_by_default()


@pytest.fixture(autouse=True)
def turn_on_the_gpu(request, tmp_path_factory, worker_id):
    """Give the GPU to one test at a time, across all processes, because tests time it and fill its memory.

    Tests marked `gpu(shared=True)` do neither and share it.
    """
    mark = request.node.get_closest_marker("gpu")
    if mark is None or worker_id == "master":  # there is only one process
        yield
        return
    # The parent folder is common to all processes of a run.
    with (tmp_path_factory.getbasetemp().parent / "gpu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH if mark.kwargs.get("shared") else fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def one_browser(tmp_path_factory):
    if executable() is None:
        pytest.skip("needs chromium: apt-get install chromium")
    with started(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def browser(one_browser):
    """The browser, at laptop size and in light mode."""
    one_browser.look()
    return one_browser


@dataclass(frozen=True)
class Disk:
    """A separate disk, mounted at a folder."""

    folder: Path

    def fill(self):
        with contextlib.suppress(OSError), (self.folder / "filler").open("wb", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass
        assert shutil.disk_usage(self.folder).free == 0


@pytest.fixture
def small_disk(tmp_path):
    """Return a function that mounts a small in-memory disk until the end of the test."""
    folder = tmp_path / "disk"

    def mount(size_mib):
        folder.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", folder]
        mounted = subprocess.run(words, capture_output=True, text=True, check=False)
        if mounted.returncode != 0:
            pytest.skip(f"needs the right to mount a disk: {mounted.stderr.strip()}")
        return Disk(folder)

    yield mount
    if folder.is_mount():
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
