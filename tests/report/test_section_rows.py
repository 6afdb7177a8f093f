from dataclasses import asdict

from pipeline.registry import stage, stages
from pipeline.report.section_rows import section_rows
from pipeline.stages.timing.cell import Cell

from ..records import record


def test_a_section_gets_the_first_repeats_and_by_name_the_rows_of_the_stages_that_it_reads():
    repeats = [record(cell=asdict(Cell(repeat=number))) for number in (1, 2)]
    rows, beside = section_rows(stage("timing"), stages(), {"timing": repeats})
    assert list(rows["repeat"]) == [1]
    assert set(beside) == set(stage("timing").reads)
    assert all(others.empty for others in beside.values())


def test_a_section_that_reads_no_other_stage_gets_its_rows_alone():
    assert not stage("ceilings").reads
    assert len(section_rows(stage("ceilings"), stages(), {})) == 1
