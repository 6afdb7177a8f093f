"""Data-parallel wrappers of the user's own in a ddp cell: checked alone, then timed in turn with the others."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.cells.on_ranks import ranks_on
from pipeline.stages.ddp.cell import BUCKET_SIZES_MB, VARIANTS, WHOLE_STEP, Cell, Settings, Variant, variant_key
from pipeline.stages.ddp.measure import Row, measure_in_ranks
from pipeline.subjects.checking import Processes, Verdict, measure_survivors, verdict
from pipeline.subjects.naming import Subject
from pipeline.subjects.training_check import BUCKETS, check_ddp


def measure_with(subjects: Sequence[Subject], cell: Cell, settings: Settings) -> list[Row]:
    """Return the rows of a cell with the user's own wrappers; one that fails costs its own rows.

    One that takes a bucket size is measured at those of ours.
    """
    processes = Processes(cell.world_size, *ranks_on(), settings.check_timeout_s)
    verdicts = {subject: verdict(check_ddp, subject, processes) for subject in subjects}
    variants = {subject: _variants(subject, found) for subject, found in verdicts.items() if found.status == "ok"}

    def measure(left: Sequence[Subject], mark: Path) -> list[Row]:
        *averaging, without = VARIANTS
        own = [variant for subject in left for variant in variants[subject]]
        return measure_in_ranks([*averaging, *own, without], cell, settings, left, mark)

    rows, out = measure_survivors(measure, list(variants))
    failed = {subject: found for subject, found in (verdicts | out).items() if found.status != "ok"}
    return rows + [
        {**variant_key(Variant(subject.name)), **WHOLE_STEP, **found.outcome} for subject, found in failed.items()
    ]


def _variants(subject: Subject, found: Verdict) -> list[Variant]:
    sizes = BUCKET_SIZES_MB if found.way == BUCKETS else (None,)
    return [Variant(subject.name, size) for size in sizes]
