import sys

import pytest

from pipeline.subjects import checking

from ..ranks import host, pytest_collection_finish, pytest_unconfigure  # noqa: F401
from .outside_files import OUTSIDE


@pytest.fixture
def quick_ranks(host, monkeypatch):  # noqa: F811
    """Check in processes forked from a single-threaded one, which takes milliseconds."""
    monkeypatch.setattr(checking, "run_ranks", host.run_ranks)


@pytest.fixture(autouse=True)
def outside_is_forgotten(monkeypatch):
    """Unload modules of tests/subjects/outside after each test, and restore sys.path."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(OUTSIDE)):
            del sys.modules[name]
