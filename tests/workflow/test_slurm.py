"""Runs on a Slurm of two nodes: what is submitted, what records say about it, what happens to jobs that it ends."""

import contextlib
import json
import os
import shutil
import signal
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from pipeline.parallel.processes import one_node

from ..processes import wait_until
from ..slurm import LIMIT_S, kill, started, why_not
from .conftest import copied_project

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.workflow,
    pytest.mark.skipif(why_not() is not None, reason=f"a Slurm of two nodes {why_not()}"),
]

PROFILE = ("--workflow-profile", "workflow/profiles/slurm", "--slurm-init-seconds-before-status-checks", "1")
SCALE = """\
stages:
  timing:
    settings: {max_steps: 10, budget_s: 1, threads: 1}
    grids: [{size: [tiny], context_length: [16], precision: [fp32, bf16]}]
  collectives:
    settings: {min_bytes: 4000, max_bytes: 40000, budget_s: 0.1, unstable_rel_error: 1.0e+9}
    grids: [{backend: gloo, world_size: [2], nodes: [1, 2]}]
"""
# A killed run would leave its lock behind.
ENDLESS = (
    *("--nolock", "--config"),
    "overrides={{timing: {{settings: {{max_steps: 1000000000, budget_s: 3600, rel_error: 0}}}},"
    " collectives: {{settings: {{max_samples: 1000000000, budget_s: 3600, timeout_s: 3600}},"
    " grids: [{{backend: gloo, world_size: [2], nodes: [{nodes}]}}]}}}}",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with started(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def unmeasured(tmp_path_factory, cluster):
    project = copied_project(tmp_path_factory.mktemp("project"), SCALE)
    project.variables |= cluster.environment
    return project


class Run:
    """A run whose cells never end by themselves, of some targets or of all; nodes: how many all-reduce takes."""

    def __init__(self, project, cluster, nodes, *targets):
        self.cluster = cluster
        self.known = {job["JobID"] for job in cluster.jobs()}
        self.process = project.start(*targets, *PROFILE, *(word.format(nodes=nodes) for word in ENDLESS))

    def await_cells(self, count):
        ended = self.process.poll
        wait_until(lambda: len(self.measuring()) == count or ended() is not None, LIMIT_S)
        assert ended() is None, self.process.communicate()[0]

    @property
    def jobs(self):
        return {job["JobID"]: job for job in self.cluster.jobs() if job["JobID"] not in self.known}

    def measuring(self):
        """Return the processes that measure a cell, including its ranks, by their job."""
        found = defaultdict(list)
        for process in self.cluster.processes():
            with contextlib.suppress(psutil.Error):
                if "measure" in process.cmdline()[:4]:
                    found[process.environ()["SLURM_JOB_ID"]].append(process)
        return found

    def nodes_of_ranks(self):
        nodes = set()
        for process in self.cluster.processes():
            with contextlib.suppress(psutil.Error):
                if one_node.__name__ in process.cmdline():
                    nodes.add(process.environ()["SLURMD_NODENAME"])
        return nodes

    def command_lines(self):
        lines = []
        for process in self.cluster.processes():
            with contextlib.suppress(psutil.Error):
                lines.append(f"{process.pid} {' '.join(process.cmdline())}")
        return "\n".join(lines)

    def output(self):
        """Wait for the run to fail; return what it printed."""
        output, _ = self.process.communicate(timeout=LIMIT_S)
        assert self.process.returncode == 1, output
        return output.splitlines()

    def assert_nothing_left(self):
        wait_until(lambda: not self.cluster.processes(), LIMIT_S, self.command_lines)

    def end(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
        self.cluster.run("scancel", "--user=root")
        self.assert_nothing_left()


@contextlib.contextmanager
def endless_run(project, cluster, cells, nodes, *targets):
    run = Run(project, cluster, nodes, *targets)
    try:
        run.await_cells(cells)
        yield run
    finally:
        run.end()


@pytest.fixture(scope="module")
def ended(unmeasured, cluster):
    """The output of a run in which one job loses its node, one reaches its time limit and one has its cell killed.

    Also the jobs that Slurm ended, by state, and the job whose cell was killed.
    """
    with endless_run(unmeasured, cluster, 3, 1) as run:
        jobs = list(run.jobs.values())
        nodes = [job["NodeList"] for job in jobs]
        lonely = next(job for job in jobs if nodes.count(job["NodeList"]) == 1)
        late, killed = (job for job in jobs if job is not lonely)
        cluster.run("scontrol", "update", f"JobId={late['JobID']}", "EndTime=now+1")
        with cluster.without_node(lonely["NodeList"]):
            kill(run.measuring()[killed["JobID"]])
            lines = run.output()
    return SimpleNamespace(lines=lines, jobs={"NODE_FAIL": lonely, "TIMEOUT": late}, killed=killed)


@pytest.fixture(scope="module")
def finished(ended, unmeasured, cluster):
    """The project after another run of the same cells, and the jobs that it submitted."""
    before = {job["JobID"] for job in cluster.jobs()}
    unmeasured.snakemake(*PROFILE)
    return unmeasured, {job["JobID"]: job for job in cluster.jobs() if job["JobID"] not in before}


def records(project):
    return {path: json.loads(path.read_text()) for path in project.root.glob("results/*/cells/**/*.json")}


def test_the_output_says_how_slurm_ended_a_job_and_what_killed_a_cell(ended):
    for state, job in ended.jobs.items():
        assert any(f"'{job['JobID']}'" in line and f"'{state}'" in line for line in ended.lines)
    (line,) = [line for line in ended.lines if line.startswith("snakemake: failed: ")]
    assert line.startswith(f"snakemake: failed: {ended.killed['Comment'].split('_')[2]} ")
    assert ": ended by SIGKILL (logs/" in line


def test_the_next_run_measures_what_slurm_ended_and_makes_the_pages(finished):
    project, _ = finished
    assert len(records(project)) == 4
    assert (project.root / "reports/writeup.md").exists()
    assert project.planned(*PROFILE) == {}


def test_each_cell_is_a_job_with_its_gpus_without_a_worker_and_named_in_its_record(finished):
    project, jobs = finished
    found = {record["scheduler"]["job"]: record for record in records(project).values()}
    for number, job in jobs.items():
        record = found.pop(number)
        assert job["Comment"].startswith(f"rule_measure_{record['stage']}_wildcards")
        assert job["NodeList"] == record["scheduler"]["nodes"]
        assert job["tres-per-job"] == {"timing": "gres:gpu:1", "collectives": "N/A"}[record["stage"]]
        assert record["process"] == "ordinary"
    assert not found


def test_a_cell_over_two_nodes_is_measured_on_both_and_has_them_to_itself(finished):
    project, jobs = finished
    (record,) = (record for path, record in records(project).items() if "nodes=2" in path.parts)
    assert record["scheduler"]["nodes"] == "n[1-2]"
    assert {row["status"] for row in record["rows"]} == {"ok"}
    assert "pipeline.parallel.processes.one_node" in record["code"]["modules"]
    assert [job["JobID"] for job in jobs.values() if job["OverSubscribe"] == "NO"] == [record["scheduler"]["job"]]


def test_records_of_another_machine_do_not_stop_one_that_only_submits(finished, tmp_path):
    measured, _ = finished
    project = replace(measured, root=shutil.copytree(measured.root, tmp_path / "project"))
    path, record = next(iter(records(project).items()))
    machine = {**record["machine"], "kind": "NVIDIA Imaginary"}
    path.write_text(json.dumps({**record, "machine": machine}))
    project.snakemake(*PROFILE, "--dry-run")


@pytest.fixture
def endless(unmeasured, cluster):
    """A run of one cell that is being measured by ranks on both nodes."""
    with endless_run(unmeasured, cluster, 1, 2, "results/collectives/gloo.csv") as run:
        wait_until(lambda: run.nodes_of_ranks() == {"n1", "n2"}, LIMIT_S)
        yield run


def assert_cancelled(run):
    def states():
        return {job["State"] for job in run.jobs.values()}

    wait_until(lambda: not states() & {"RUNNING", "COMPLETING"}, LIMIT_S)
    assert states() == {"CANCELLED"}


def test_a_cancelled_run_leaves_nothing_running(endless, cluster):
    cluster.run("scancel", *endless.jobs)
    endless.assert_nothing_left()
    assert_cancelled(endless)


def test_an_interrupted_run_cancels_its_jobs(endless, cluster):
    os.killpg(endless.process.pid, signal.SIGINT)
    endless.assert_nothing_left()
    assert_cancelled(endless)
    endless.output()
