import pytest

from pipeline.cells.record import with_derived
from pipeline.registry import stages
from pipeline.report import facts
from pipeline.report.frame import build

from .runs import GPU, levers_record, step

ROWS = (step("eager", 100.0), step("sdpa", 80.0), step("eager_again", 100.0))


def cells(*records):
    return facts.cells(records, stages())


def told(table):
    return dict(table[["what", "is"]].to_numpy())


def test_each_machine_and_version_is_named_once():
    other = {**GPU, "software": GPU["software"] | {"torch": "2.12.0"}, "gpus_taken": ["GPU-feedbeef-1"]}
    found = told(facts.machine(cells(levers_record(*ROWS), levers_record(*ROWS, size="xl", machine=other))))
    assert "torch 1.0 / 2.12.0" in found["software"]
    assert found["machine"] == "NVIDIA H200"
    assert [uuid in found["GPUs used"] for uuid in ("12345678", "feedbeef")] == [True, True]


def test_a_stage_counts_cells_times_and_those_that_are_unstable():
    wild = {**step("sdpa", 80.0), "samples_ms": [10.0, 200.0, 30.0, 90.0, 400.0]}
    records = [
        levers_record(ROWS[0], wild, ROWS[2]),
        levers_record(*[{"levers": row["levers"], "status": "oom", "reason": "full"} for row in ROWS], size="xl"),
    ]
    records = [with_derived(record, stages()) for record in records]
    frames = {"levers": build(stages()["levers"], records)}
    [line] = facts.by_stage(cells(*records), frames).to_dict("records")
    assert (line["cells"], line["with_figures"], line["times"], line["unstable"]) == (2, 1, 3, 1)


def test_cells_without_figures_are_grouped_by_outcome_and_reason():
    gone = [{"levers": "eager", "status": "oom", "reason": "full"}]
    found = facts.without_figures(
        cells(*(levers_record(*gone, size=size) for size in ("xl", "2.7B")), levers_record(*ROWS))
    )
    [line] = found.to_dict("records")
    assert (line["stage"], line["status"], line["cells"], line["reason"]) == ("levers", "oom", 2, "full")


def test_cells_whose_reasons_differ_in_their_own_numbers_share_a_line():
    slow = "one forward call takes {} s, above the limit of 0.5 s"
    rows = [[{"levers": "eager", "status": "skipped", "reason": slow.format(seconds)}] for seconds in (0.7, 1.9)]
    [line] = facts.without_figures(cells(*(levers_record(*each) for each in rows))).to_dict("records")
    assert (line["cells"], line["status"]) == (2, "skipped")


def test_missing_cells_share_a_line_a_stage_with_what_is_the_same_in_all():
    asked = [{"stage": "ddp", "cell": {"world_size": 4, "size": size}} for size in ("xl", "2.7B")]
    [line] = facts.missing(asked).to_dict("records")
    assert (line["cells"], line["shared"]) == (2, "world_size=4")
    assert facts.missing([]).empty


@pytest.mark.parametrize(("outdated", "count"), [([], 0), (["abc"], 1), (["other"], 0)])
def test_cells_of_code_that_has_changed_since_are_counted(outdated, count):
    assert len(facts.changed_since(cells(levers_record(*ROWS)), outdated)) == count
