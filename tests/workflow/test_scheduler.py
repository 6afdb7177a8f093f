"""Jobs that go to a scheduler, for which the shell stands in: it runs each at once, and waits for it."""

import json

import pytest

pytestmark = pytest.mark.workflow

SCHEDULER = (
    *("--workflow-profile", "none", "--executor", "cluster-generic", "--cluster-generic-submit-cmd", "sh"),
    *("--seconds-between-status-checks", "1"),
)
TABLE = "results/timing/fp32.csv"


def test_a_scheduler_gets_the_cells(project):
    (project.root / TABLE).unlink()
    project.records()[1].unlink()
    code, output = project.snakemake(*SCHEDULER, "--jobs", "2", TABLE)
    assert code == 0, output
    assert "--mode remote" in output  # by a Snakemake of the job's own
    assert len(project.records()) == 2
    assert project.planned(TABLE) == {}


def test_records_of_another_machine_do_not_stop_the_one_that_only_submits(project):
    record_path = project.records()[0]
    foreign = json.loads(record_path.read_text())
    foreign["machine"]["kind"] = "NVIDIA Imaginary"
    record_path.write_text(json.dumps(foreign))
    code, output = project.snakemake(*SCHEDULER, "--jobs", "2", "--dry-run")
    assert code == 0, output
