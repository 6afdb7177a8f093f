"""Runs of the levers stage to compare."""

from pathlib import Path

import pytest

from pipeline.cells.record import with_derived
from pipeline.compare.runs import Run
from pipeline.registry import stages

from ..report.runs import levers_record, step


def run(name, times_ms, **parts):
    """Return a run of one cell with these medians by combination of levers; several medians make repeats."""
    count = max(len(medians) for medians in times_ms.values())
    records = []
    for repeat in range(count):
        rows = [step(levers, medians[repeat]) for levers, medians in times_ms.items()]
        new_record = levers_record(*rows, **parts)
        new_record["cell"]["repeat"] = repeat + 1
        records.append(with_derived(new_record, stages()))
    return Run(name, Path(name), records, stages())


@pytest.fixture(scope="session")
def make_run():
    return run
