"""Load the tables of published runs, as the sections read them."""

import functools
from pathlib import Path

from pipeline.registry import stages
from pipeline.report import frame
from pipeline.report.users import without_users
from pipeline.snapshots.records import archived_records

SNAPSHOTS = Path(__file__).parents[2] / "reports"


@functools.cache
def records(run):
    return [record for _, record in archived_records(SNAPSHOTS / run / "records.tar.xz", stages())]


@functools.cache
def rows(name, run):
    of_stage = [record for record in records(run) if record["stage"] == name]
    return without_users(frame.build(stages()[name], of_stage), stages()[name])


@functools.cache
def frames(run):
    return {name: rows(name, run) for name in {record["stage"]: None for record in records(run)}}


def sound(name, run="h200"):
    """Return a copy of a stage's rows in which unstable ones are marked `ok`."""
    found = rows(name, run)
    return found.assign(status=found["status"].replace("unstable", "ok"))
