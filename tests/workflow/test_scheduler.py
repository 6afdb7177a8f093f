"""Jobs that go to a scheduler, for which the shell stands in: it runs each at once, and waits for it."""

import json

import pytest

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

SCHEDULER = (
    *("--workflow-profile", "none", "--executor", "cluster-generic", "--cluster-generic-submit-cmd", "sh"),
    *("--seconds-between-status-checks", "1"),
)


def test_a_scheduler_gets_the_cells(project):
    record_path = project.records()[0]
    target = str(record_path.relative_to(project.root))
    record_path.unlink()
    code, output = project.snakemake(*SCHEDULER, "--jobs", "2", target)
    assert code == 0, output
    assert "--mode remote" in output  # by a Snakemake of the job's own
    assert json.loads(record_path.read_text())["process"] == "ordinary"  # a worker would be of no more use
    assert project.planned(target) == {}


def test_records_of_another_machine_do_not_stop_the_one_that_only_submits(project):
    record_path = project.records()[0]
    foreign = json.loads(record_path.read_text())
    foreign["machine"]["kind"] = "NVIDIA Imaginary"
    record_path.write_text(json.dumps(foreign))
    code, output = project.snakemake(*SCHEDULER, "--jobs", "2", "--dry-run")
    assert code == 0, output
