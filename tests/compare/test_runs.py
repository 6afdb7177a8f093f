from pathlib import Path

from pipeline.cells.record import with_derived
from pipeline.compare.runs import Run, last_measured
from pipeline.registry import stages

from ..report.runs import levers_record, step


def record_of(combinations, max_steps, minute, repeat=1, eager_ms=100.0):
    rows = step("eager", eager_ms), step("sdpa", 80.0)
    new_record = levers_record(*rows, repeat=repeat, started_at=f"2026-01-01T00:{minute:02}:00Z")
    new_record["cell"]["combinations"] = combinations
    new_record["settings"]["max_steps"] = max_steps
    return with_derived(new_record, stages())


def test_of_two_scales_in_a_folder_the_last_measured_counts():
    quick, first = record_of("sdpa", 12, 1), record_of("sdpa:fused", 40, 2)
    second = record_of("sdpa:fused", 40, 3, repeat=2)
    assert last_measured([second, quick, first], stages()) == [second, first]
    assert last_measured([record_of("sdpa", 12, 4), first, second], stages()) == [record_of("sdpa", 12, 4)]


def test_of_cells_with_other_rows_and_the_same_settings_all_count_but_models_show_one_cell():
    records = [record_of("sdpa", 12, 1), record_of("sdpa:fused", 12, 2)]
    assert last_measured(records, stages()) == records
    assert last_measured(records, stages(), one_cell=True) == records[1:]


def test_both_times_of_a_model_are_of_one_cell():
    quick = record_of("sdpa", 12, 1, eager_ms=50.0)
    laptop = record_of("sdpa:fused", 12, 2)
    run = Run("a", Path("a"), [quick, laptop], stages())
    (model,) = run.sections[0].first_screen.summary
    assert [model[way]["median_ms"] for way in ("eager", "tuned")] == [100.0, 80.0]
