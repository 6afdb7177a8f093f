"""Where the implementations of tests/subjects/outside are, as a user would give them."""

from pathlib import Path

from pipeline.subjects.naming import Subject

OUTSIDE = Path(__file__).parent / "outside"
ADAPTERS = str(OUTSIDE / "adapters.py")


def attention(function, file="attention"):
    return Subject("attention", function.lower(), f"{OUTSIDE}/kernels/{file}.py:{function}")


def training(kind, attribute, **hooks):
    places = {hook: f"{OUTSIDE}/training.py:{name}" for hook, name in hooks.items()}
    return Subject(kind, attribute.lower(), f"{OUTSIDE}/training.py:{attribute}", **places)
