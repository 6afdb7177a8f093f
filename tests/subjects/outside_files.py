"""Where the implementations of tests/subjects/outside are, as a user would give them."""

from pathlib import Path

from pipeline.subjects.naming import Subject

OUTSIDE = Path(__file__).parent / "outside"
ADAPTERS = str(OUTSIDE / "adapters.py")


def attention(function):
    return Subject("attention", function.lower(), f"{OUTSIDE}/kernels/attention.py:{function}")


def training(kind, attribute, file="training", **hooks):
    places = {hook: f"{OUTSIDE}/{file}.py:{name}" for hook, name in hooks.items()}
    return Subject(kind, attribute.lower(), f"{OUTSIDE}/{file}.py:{attribute}", **places)
