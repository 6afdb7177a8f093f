"""Where the implementations of tests/subjects/outside are, as a user would give them."""

from pathlib import Path

from pipeline.subjects.naming import Subject

OUTSIDE = Path(__file__).parent / "outside"
ADAPTERS = str(OUTSIDE / "adapters.py")


def attention(function, file="kernels/attention.py"):
    return Subject("attention", function.lower(), f"{OUTSIDE}/{file}:{function}")


def training(kind, attribute, file="training.py", **hooks):
    places = {hook: f"{OUTSIDE}/{file}:{name}" for hook, name in hooks.items()}
    return Subject(kind, attribute.lower(), f"{OUTSIDE}/{file}:{attribute}", **places)
