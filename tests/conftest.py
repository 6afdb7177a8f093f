"""What holds for all tests of the package: one thread, the GPU in turns, Triton's interpreter where there is none."""

import fcntl
import os
import signal

import pytest
import torch

# Triton has to be asked for its interpreter before a kernel is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# A script's background jobs ignore interrupts, and so would all that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Begin with the files that take longest, those that run Snakemake: at the end no process waits for another."""
    items.sort(key=lambda item: item.get_closest_marker("workflow") is None)


@pytest.fixture(autouse=True)
def one_thread():
    """Compute on one thread, whatever the test before asked for.

    Tensors here are small: threads would wait for each other longer than they compute. With more of them oneDNN also
    takes more memory, which some tests count.
    """
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def turn_on_the_gpu(request, tmp_path_factory, worker_id):
    """Let one test at a time have the GPU, however many processes test: they time it and fill its memory.

    Tests marked `gpu(shared=True)` do neither, and have it together.
    """
    mark = request.node.get_closest_marker("gpu")
    if mark is None or worker_id == "master":  # there is one process
        yield
        return
    # The folder above is one for all processes of a run.
    with (tmp_path_factory.getbasetemp().parent / "gpu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH if mark.kwargs.get("shared") else fcntl.LOCK_EX)
        yield
