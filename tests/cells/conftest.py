import subprocess
import sys

import pytest

from pipeline.cells import locks


@pytest.fixture
def own_locks(monkeypatch, tmp_path):
    """Give the test a folder of locks of its own, in a process that holds none; return that folder."""
    monkeypatch.setattr(locks, "_held", {})
    monkeypatch.setenv(locks.FOLDER_VARIABLE, str(tmp_path / "locks"))
    return tmp_path / "locks"


@pytest.fixture
def start_python():
    """Return what starts Python code in a process, with words; kill what is left of the processes at the end."""
    started = []

    def start(code, *words):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([sys.executable, "-c", code, *map(str, words)], **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()
