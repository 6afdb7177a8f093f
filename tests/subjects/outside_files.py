"""The implementations in tests/subjects/outside, named as a user would name them."""

import sys
from pathlib import Path

import pytest
import torch

from pipeline.parallel.processes.rank import RankContext
from pipeline.subjects.naming import Subject

OUTSIDE = Path(__file__).parent / "outside"
ADAPTERS = str(OUTSIDE / "adapters.py")
HERE = RankContext(rank=0, world_size=1, backend="gloo", device=torch.device("cpu"), group_setup_ms=0.0)


@pytest.fixture(autouse=True)
def outside_is_forgotten(monkeypatch):
    """Unload these modules after each test, and restore sys.path."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(OUTSIDE)):
            del sys.modules[name]


def attention(function, file="kernels/attention.py"):
    return Subject("attention", function.lower(), f"{OUTSIDE}/{file}:{function}")


def training(kind, attribute, file="training.py", **hooks):
    places = {hook: f"{OUTSIDE}/{file}:{name}" for hook, name in hooks.items()}
    return Subject(kind, attribute.lower(), f"{OUTSIDE}/{file}:{attribute}", **places)
