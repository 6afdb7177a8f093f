import subprocess
import sys

import pytest

from pipeline.cells import locks, sources
from pipeline.cells.disk import write_text


@pytest.fixture
def own_locks(monkeypatch, tmp_path):
    """Give the test its own lock folder and no held locks; return the folder."""
    monkeypatch.setattr(locks, "_held", {})
    monkeypatch.setenv(locks.FOLDER_VARIABLE, str(tmp_path / "locks"))
    return tmp_path / "locks"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that writes modules, by path, into a temporary package that `sources` reads."""

    def write_modules(modules):
        for path, text in modules.items():
            write_text(tmp_path / "pipeline" / path, text)
        sources.forget()

    monkeypatch.setattr(sources, "SOURCES", tmp_path)
    yield write_modules
    sources.forget()


@pytest.fixture
def start_python():
    """Return a function that starts Python code in a process with arguments; kill the processes at the end."""
    started = []

    def start(code, *words):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([sys.executable, "-c", code, *map(str, words)], **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()
