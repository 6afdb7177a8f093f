"""The implementations in tests/subjects/outside, named as a user would name them."""

from pathlib import Path

import torch

from pipeline.parallel.processes.rank import RankContext
from pipeline.subjects.naming import Subject

OUTSIDE = Path(__file__).parent / "outside"
ADAPTERS = str(OUTSIDE / "adapters.py")
HERE = RankContext(rank=0, world_size=1, backend="gloo", device=torch.device("cpu"), group_setup_ms=0.0)


def attention(function, file="kernels/attention.py"):
    return Subject("attention", function.lower(), f"{OUTSIDE}/{file}:{function}")


def training(kind, attribute, file="training.py", **hooks):
    places = {hook: f"{OUTSIDE}/{file}:{name}" for hook, name in hooks.items()}
    return Subject(kind, attribute.lower(), f"{OUTSIDE}/{file}:{attribute}", **places)
