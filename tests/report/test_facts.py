import math

import pandas as pd
import pytest

from pipeline.cells.record import with_derived
from pipeline.registry import stages
from pipeline.report import facts, frame

from .runs import GPU, ROWS, levers_record, step

SLOW = "one forward call takes {} s, above the limit of 0.5 s"
NOISY = "standard error of the median {}"


def cells(*records):
    return facts.cells(records, stages())


def gone(status, reason, **cell):
    return levers_record({"levers": "eager", "status": status, "reason": reason}, **cell)


def test_each_machine_and_version_is_named_once():
    other = {**GPU, "software": GPU["software"] | {"torch": "2.12.0"}, "gpus_taken": ["GPU-feedbeef-1"]}
    records = levers_record(*ROWS), levers_record(*ROWS, size="xl", machine=other)
    records[1]["code"] |= {"peers": {"torchao": "0.18.0", "fa4": "absent", "of another version": "1.0"}}
    found = facts.machine(cells(*records))
    assert "torch 1.0 / 2.12.0" in found["software"]
    assert found["software"].endswith(", torchao 0.18.0")
    assert found["machine"] == "NVIDIA H200"
    assert [uuid in found["GPUs used"] for uuid in ("12345678", "feedbeef")] == [True, True]


def test_cells_that_kept_to_the_cores_of_their_gpus_are_counted():
    host = {"cores": 8.0, "others_cores": 0.0, "busy": False, "load_before": 1.0, "load_after": 1.0}
    shared, alone = (levers_record(*ROWS, machine={**GPU, "cores": cores}, host=host) for cores in (16, 8))
    assert facts.side_by_side(cells(shared, alone, shared)) == 2
    shared["machine"] = {**shared["machine"], "gpus_taken": []}
    assert facts.side_by_side(cells(shared)) == 0


def test_vocabularies_are_listed_only_if_stages_differ():
    ten, one = (pd.DataFrame({"setting_vocab_size": [size]}) for size in (10_000, 1_000))
    found = facts.vocabularies({"memory": one, "timing": ten, "levers": ten, "ceilings": pd.DataFrame()})
    assert found == {10_000: ["timing", "levers"], 1_000: ["memory"]}
    assert facts.vocabularies({"timing": ten, "levers": ten}) == {}


def line_of(*records):
    """Return the summary line of the only stage that these records have."""
    frames = frame.by_stage(stages(), [with_derived(record, stages()) for record in records])
    [line] = facts.stage_summaries(cells(*records), frames).to_dict("records")
    return line


def test_a_stage_counts_cells_times_and_unstable_times():
    wild = {**step("sdpa", 80.0), "samples_ms": [10.0, 200.0, 30.0, 90.0, 400.0]}
    line = line_of(levers_record(ROWS[0], wild, ROWS[-1]), gone("oom", "full", size="xl"))
    assert (line["cells"], line["with_values"], line["times"], line["unstable"]) == (2, 1, 3, 1)


def test_the_spread_of_repeats_is_pooled_over_all_steps_of_a_stage():
    measured = [("medium", 1, 100.0), ("medium", 2, 101.0), ("xl", 1, 200.0), ("xl", 2, 220.0), ("2.7B", 1, 50.0)]
    line = line_of(*(levers_record(step("eager", ms), size=size, repeat=repeat) for size, repeat, ms in measured))
    variances = [math.log(b / a) ** 2 / 2 for a, b in ((100, 101), (200, 220))]
    assert line["std_between_repeats"] == pytest.approx(100 * math.sqrt(sum(variances) / 2))
    assert line["furthest_two"] == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("status", "reasons", "shown_reason"),
    [
        ("oom", ["full", "full"], "full"),
        ("unstable", [SLOW.format(0.7), SLOW.format(1.9)], None),
        ("wrong", [SLOW.format(0.7), SLOW.format(1.9)], SLOW.format("…")),
        ("wrong", [NOISY.format("5.5%"), NOISY.format("9.2%")], NOISY.format("…")),
        ("wrong", ["known to 5.5% only", "known to 9.2% only"], "known to … only"),  # in older records
        ("skipped", ["no GPU", "no nsys"], "no GPU; no nsys"),
        ("failed", ["ended", "ended"], None),
    ],
)
def test_cells_without_values_are_grouped_by_outcome_and_reason_without_its_numbers(status, reasons, shown_reason):
    records = [gone(status, reason, size=size) for reason, size in zip(reasons, ("xl", "2.7B"), strict=True)]
    lines = facts.without_values(cells(*records, levers_record(*ROWS))).to_dict("records")
    expected = [("levers", status, shown_reason, 2)] if shown_reason else []
    assert [(line["stage"], line["outcome"], line["reason"], line["cells"]) for line in lines] == expected


@pytest.mark.parametrize(("outdated", "count"), [([], {}), (["abc"], {"levers": 1}), (["other"], {})])
def test_cells_measured_by_changed_code_are_counted_by_stage(outdated, count):
    assert facts.changed_since(cells(levers_record(*ROWS)), outdated) == count
