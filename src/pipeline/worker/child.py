"""Run a cell's command in a process forked from the worker: with packages imported and the caller's environment.

The worker imports only third-party packages and never touches CUDA. Each child imports the project's own code itself,
so that its cell runs what is on disk, and the modules it has loaded are those that the cell uses.
"""

import atexit
import contextlib
import gc
import importlib
import os
import signal
import sys
import tempfile
from functools import cache
from typing import Any

# Compiling imports far more than `import torch` does, much of it only at the first call.
COMPILER = (
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch._inductor.codegen.cuda_combined_scheduling",
    "torch.distributed.tensor.experimental",
    "torch.nn.attention.flex_attention",
    "torch.utils.cpp_extension",
    "triton",
)
PRELOADED = ("torch", "torch.distributed", *COMPILER, "pandas", "psutil", "pynvml")


@cache
def preload() -> None:
    """Import, at the first call, what every child would import."""
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # Keep a child's garbage collections from walking all this, which would also copy its pages.
    gc.collect()
    gc.freeze()


def run(request: dict[str, Any]) -> int:
    """Run the caller's command as if in a process that it started; return the exit code, negative for a signal."""
    try:
        _take_over(request)
        return importlib.import_module("pipeline.cli").run(
            request["argv"], "worker", request["issued_at"], request["waited_s"]
        )
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except KeyboardInterrupt:
        return -signal.SIGINT
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1


def _take_over(request: dict[str, Any]) -> None:
    """Take over the caller's environment, arguments and working directory, and unload the project's own modules."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # they are files here
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["cwd"])
    tempfile.tempdir = None  # an import may have set it
    sys.argv = ["pipeline", *request["argv"]]
    for name in [name for name in sys.modules if name.partition(".")[0] == "pipeline"]:
        del sys.modules[name]
    importlib.invalidate_caches()


def end(code: int) -> None:
    """Exit as an interpreter does, but without tearing down modules, which takes half a second with torch loaded."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
