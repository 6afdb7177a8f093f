"""Measure a stage's ways to train, including the user's own, on the same ranks, and make their rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.instruments.profilers.collective_traffic import Collective, total_bytes
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.instruments.sampling.variants import step_rows
from pipeline.subjects.naming import Subject
from pipeline.ways.cell import RanksCell, RanksSettings
from pipeline.ways.ranks import ranks_on, run_on_ranks, together_or_apart
from pipeline.ways.turns import measure_in_turn
from pipeline.ways.way import Experiment, Result, Row, Way


def measure_cell(
    experiment: Experiment,
    cell: RanksCell,
    settings: RanksSettings,
    stopwatch: Stopwatch,
    subjects: Sequence[Subject] = (),
    files_dir: Path | None = None,
) -> list[Row]:
    """Return the rows of a cell: its ways take turns on the same ranks unless memory runs out.

    The user's own implementations are checked first; those that pass take turns with the others.
    files_dir: the folder for capture files.
    """
    with stopwatch.measuring():
        if not subjects:
            return measure_ways(experiment, experiment.ways, cell, settings, files=files_dir)
        # Imported here so that a cell without the user's own does not depend on these modules.
        from pipeline.subjects.checking import Processes
        from pipeline.subjects.measuring import Verdicts, measure_with
        from pipeline.subjects.training_check import CHECKS

        def measure(passed: Verdicts, mark: Path) -> list[Row]:
            own = [way for subject, found in passed.items() for way in experiment.own_ways(subject, found.way)]
            ways = among(experiment.ways, own)
            return measure_ways(experiment, ways, cell, settings, list(passed), mark, files_dir)

        processes = Processes(cell.world_size, *ranks_on(), settings.check_timeout_s)
        check = CHECKS[subjects[0].kind], *experiment.check_arguments(cell)
        return measure_with(subjects, check, processes, measure, [experiment.whole_step])


def among(ways: Sequence[Way], own: Sequence[Way]) -> list[Way]:
    """Append the user's own ways, but before a last one that does not communicate."""
    last = [way for way in ways[-1:] if not way.communicates]
    return [*ways[: len(ways) - len(last)], *own, *last]


def measure_ways(
    experiment: Experiment,
    ways: Sequence[Way],
    cell: RanksCell,
    settings: RanksSettings,
    subjects: Sequence[Subject] = (),
    mark: Path | None = None,
    files: Path | None = None,
) -> list[Row]:
    """Return the rows of these ways; subjects, mark and files as for `measure_in_turn`."""
    backend, _ = ranks_on()

    def measure(left: Sequence[Way]) -> list[Result]:
        return run_on_ranks(measure_in_turn, cell, settings, left, experiment, subjects, mark, files)

    found = zip(ways, together_or_apart(measure, ways), strict=True)
    return [row for way, result in found for row in rows_of(experiment, way, result, cell, backend)]


def rows_of(experiment: Experiment, way: Way, result: Result | Row, cell: RanksCell, backend: str) -> list[Row]:
    """Make the rows of one way from its result, or from its outcome if it has no result."""
    whole = {**way.key, **experiment.whole_step}
    if isinstance(result, dict):
        return [whole | result]
    complaint = result.differences.complaint(cell.precision, cell.world_size <= experiment.alike_up_to)
    if complaint and way.communicates:
        return [{**whole, "status": "wrong", "reason": complaint}]
    return [{**way.key, **row} for row in experiment.rows(way, result, cell, backend)]


def time_rows(result: Result, **columns: Any) -> list[Row]:
    """Return a row per phase and clock, with these columns and those that all ways have."""
    shared = {**columns, "rank_difference": result.differences.between_ranks, "pinned_core": result.pinned_core}
    return [shared | row for row in step_rows(result.samplings, result.busy)]


def traffic_rows(calls: Sequence[Collective], names: Sequence[str]) -> list[Row]:
    """Return a row per collective: its number of calls and the bytes of their payloads."""
    return [
        {
            "measures": "traffic",
            "collective": name,
            "status": "ok",
            "calls": len(named := [call for call in calls if call.name == name]),
            "measured_bytes": total_bytes(named),
        }
        for name in names
    ]
