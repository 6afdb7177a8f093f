import pytest

from pipeline.cells.rows import Reading
from pipeline.stages.levers.cell import Cell
from pipeline.stages.levers.rows import Step


def doubts(**samples_ms):
    """Return by levers why each step is unstable, in a cell that allows 5%."""
    rows = [{"levers": levers, "samples_ms": samples} for levers, samples in samples_ms.items()]
    readings = [Reading(row, Cell(), {"unstable_rel_error": 0.05}, {}, rows) for row in rows if row["samples_ms"]]
    return {reading.row["levers"]: Step.why_unstable(reading) for reading in readings}


@pytest.mark.parametrize(("again_ms", "drifts"), [(8.5, True), (9.3, False), (9.6, True), (None, False)])
def test_the_eager_step_alone_is_unstable_if_its_second_measurement_differs_by_more_than_allowed(again_ms, drifts):
    found = doubts(eager=[9.0] * 9, sdpa=[6.0] * 9, eager_again=[again_ms] * 9 if again_ms else [])
    assert (found.pop("eager") is not None) == drifts
    assert set(found.values()) == {None}


def test_a_step_with_noisy_samples_is_unstable_whatever_the_drift():
    assert doubts(eager=[9.0] * 9, sdpa=[4.0, 9.0, 3.0, 12.0, 6.0, 1.0], eager_again=[9.0] * 9)["sdpa"]
