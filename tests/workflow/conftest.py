"""A small copy of the project, measured once, in which tests may edit files and run Snakemake."""

import fcntl
import logging
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from snakemake.api import SnakemakeApi
from snakemake.logging import logger
from snakemake.settings.enums import Quietness, RerunTrigger
from snakemake.settings.types import ConfigSettings, DAGSettings, OutputSettings, ResourceSettings
from snakemake_interface_logger_plugins.common import LogEvent

from pipeline.cells import sources
from pipeline.cells.quiet_host import RUN_VARIABLE
from pipeline.worker import client

ROOT = Path(__file__).parents[2]
CONFIG = "{scale: few, measure: true, overrides: {}}"
WITHOUT_WORKER = {"PIPELINE_WORKER": "off"}  # a single cell finishes before a worker has started
SCALE = """\
stages:
  timing:
    settings: {compiled: false, max_steps: 10, budget_s: 1, threads: 1}
    grids: [{size: [tiny], context_length: [16], precision: [fp32, bf16]}]
  flash:
    settings: {threads: 1, max_samples: 3, min_samples: 3, budget_s: 0.1}
    grids: [{dtype: [fp32], head_dim: [16], seq_len: [32]}]
  accounting: {grids: [{question: [mesh]}]}
"""


@dataclass
class Project:
    """A separate checkout that uses the commands of this environment and these environment variables."""

    root: Path
    variables: dict[str, str] = field(default_factory=dict)

    def environment(self):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PYTHONPATH": str(self.root / "src"), "PATH": path, **self.variables}

    def start(self, *words):
        """Start `snakemake` with these words in a process group of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", *words],
            cwd=self.root,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def snakemake(self, *words, code=0, timeout_s=600):
        """Run `snakemake` to its end and assert its exit code; return all that it printed."""
        process = self.start(*words)
        output, _ = process.communicate(timeout=timeout_s)
        assert process.returncode == code, output
        return output

    def edit(self, path, old, new, count=-1):
        """Replace a text in a file; count: the first so many times, or -1 for everywhere."""
        text = (self.root / path).read_text()
        assert old in text
        (self.root / path).write_text(text.replace(old, new, count))

    def append(self, path, text):
        with (self.root / path).open("a") as file:
            file.write(text)

    def planned(self, *words):
        output = self.snakemake(*words, "--dry-run")
        table = re.search(r"^job +count\n-+ +-+\n((?:\S+ +\d+\n)+)", output, re.MULTILINE)
        return {rule: int(count) for rule, count in map(str.split, table[1].splitlines())} if table else {}

    def records(self):
        return sorted(self.root.glob("results/timing/cells/**/*.json"))


def copied_project(root, scale):
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("src", "workflow", "config"):
        shutil.copytree(ROOT / folder, root / folder, ignore=skip)
    (root / "config/config.yaml").write_text(CONFIG)
    (root / "config/scales/few.yaml").write_text(scale)
    return Project(root)


@pytest.fixture(scope="session")
def measured(tmp_path_factory, worker_id):
    """The project after a run of two cells of timing, one of flash and one of accounting; tests must not change it.

    It is measured once per test run; each test process has a copy.
    """
    temporary = tmp_path_factory.getbasetemp()
    shared = (temporary if worker_id == "master" else temporary.parent) / "measured"
    with shared.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shared.exists():
            project = copied_project(tmp_path_factory.mktemp("project"), SCALE)
            project.snakemake("--cores", "1", "--resources", "gpu=8", "reports/writeup.md")
            project.root.rename(shared)
    return Project(shutil.copytree(shared, tmp_path_factory.mktemp("measured") / "project"))


@pytest.fixture
def project(measured, tmp_path):
    """A copy that the test may change; its files keep their mtimes, so nothing in it is stale."""
    shutil.copytree(measured.root, tmp_path / "project")
    return Project(tmp_path / "project")


class _Counts(logging.Handler):
    def __init__(self):
        super().__init__()
        self.by_rule = {}

    def emit(self, record):
        if getattr(record, "event", None) == LogEvent.RUN_INFO:
            self.by_rule = {rule: count for rule, count in record.stats.items() if rule not in ("total", "all")}


@pytest.fixture
def plan(monkeypatch):
    """Return a function that plans a run in this process (10x faster than in a new one) and returns counts by rule.

    It reads the project's files, but runs the workflow's code of this checkout. folder: the value of `--directory`.
    """

    def planned(project, *targets, folder=None, configfiles=(), **config):
        counts = _Counts()
        with monkeypatch.context() as patch:
            patch.setattr(sources, "SOURCES", project.root / "src")
            patch.setattr(client, "start", lambda: None)
            patch.setenv(RUN_VARIABLE, "planning")
            sources.forget()
            with SnakemakeApi(OutputSettings(quiet={Quietness.ALL}, dryrun=True)) as snakemake:
                workflow = snakemake.workflow(
                    ResourceSettings(cores=1),
                    ConfigSettings(config=config, configfiles=configfiles),
                    snakefile=project.root / "workflow/Snakefile",
                    workdir=folder or project.root,
                )
                dag = workflow.dag(DAGSettings(targets=frozenset(targets), rerun_triggers={RerunTrigger.MTIME}))
                logger.addHandler(counts)
                try:
                    dag.execute_workflow("dryrun")
                finally:
                    logger.removeHandler(counts)
        sources.forget()
        return counts.by_rule

    return planned


@pytest.fixture
def refusal(plan, capfd):
    """Return a function that plans a run that cannot be done and returns the last line that it prints."""

    def refused(project, *targets, **config):
        with pytest.raises(SystemExit, match="1"):
            plan(project, *targets, **config)
        return capfd.readouterr().err.strip().splitlines()[-1]

    return refused
