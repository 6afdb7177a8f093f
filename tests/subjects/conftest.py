import sys

import pytest

from .outside_files import OUTSIDE


@pytest.fixture(autouse=True)
def outside_is_forgotten(monkeypatch):
    """Leave no implementation of tests/subjects/outside imported, nor its folder among those of modules."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(OUTSIDE)):
            del sys.modules[name]
