"""Check that Snakemake's private names still mean the same, by running small workflows in this process."""

import json
import signal
import threading

import pytest
from snakemake.api import SnakemakeApi
from snakemake.scheduling.job_scheduler import JobScheduler
from snakemake.settings import types
from snakemake.settings.enums import Quietness
from snakemake.settings.types import ResourceSettings
from snakemake_interface_executor_plugins.settings import ExecMode

from ..processes import PATIENCE_S, wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from the solver that Snakemake's scheduler uses
BEGINNING = """
import json
from pathlib import Path
from pipeline.compat import snakemake_private as private

def tell(told):
    Path("told.json").write_text(json.dumps(told))
"""
FORCING = """
from pipeline.cells.made import newer_input

rule made:
    input: lambda wildcards: [newer_input(Path(f"{name}.made")) for name in config["stale"] if name == wildcards.name]
    output: "{name}.made"
    shell: "touch {output}"
"""


@pytest.fixture
def execute(tmp_path):
    def run(text, targets=(), resources=None, executor="local", configfiles=(), mode=ExecMode.DEFAULT, **config):
        (tmp_path / "Snakefile").write_text(BEGINNING + text)
        with SnakemakeApi(types.OutputSettings(quiet={Quietness.ALL})) as snakemake:
            workflow = snakemake.workflow(
                resources or ResourceSettings(cores=1),
                types.ConfigSettings(config=config, configfiles=configfiles),
                workflow_settings=types.WorkflowSettings(exec_mode=mode),
                snakefile=tmp_path / "Snakefile",
                workdir=tmp_path,
            )
            workflow.dag(types.DAGSettings(targets=frozenset(targets))).execute_workflow(
                executor, execution_settings=types.ExecutionSettings(keep_going=True)
            )

    run.told = lambda: json.loads((tmp_path / "told.json").read_text())
    return run


def test_a_newer_input_rebuilds_only_its_output_and_does_so_each_time(execute, tmp_path):
    made = [tmp_path / f"{name}.made" for name in "abc"]
    for path in made:
        path.touch()
    for _ in range(2):
        before = [path.stat().st_mtime_ns for path in made]
        execute(FORCING, targets=["a.made", "b.made"], stale=["a", "c"])
        first, *others = (path.stat().st_mtime_ns for path in made)
        assert first > before[0]
        assert others == before[1:]


@pytest.mark.parametrize(
    ("asked", "settings", "told"),
    [
        ("gpu_limit", {}, None),
        ("gpu_limit", {"resources": ResourceSettings(cores=1, resources={"gpu": 3})}, 3),
        ("uses_a_scheduler", {"resources": ResourceSettings(cores=3)}, False),
        ("uses_a_scheduler", {"resources": ResourceSettings(nodes=2)}, True),
        ("is_a_schedulers_job", {"mode": ExecMode.DEFAULT}, False),
        ("is_a_schedulers_job", {"mode": ExecMode.REMOTE}, True),
    ],
)
def test_a_workflow_knows_its_gpu_limit_and_whether_a_scheduler_is_used(execute, asked, settings, told):
    execute(f"tell(private.{asked}(workflow))\nrule all:\n", executor="dryrun", **settings)
    assert execute.told() == told


def test_given_configfiles_are_those_of_the_command_line(execute, tmp_path):
    given = tmp_path / "mine.yaml"
    given.write_text("x: 1\n")
    execute("tell(list(map(str, private.given_configfiles(workflow))))\nrule all:\n", configfiles=[given])
    assert execute.told() == [str(given)]


def test_snakemakes_handler_of_sigterm_waits_for_no_lock_of_its_own_thread_and_then_ends_the_run(execute, monkeypatch):
    monkeypatch.setattr(JobScheduler, "exit_gracefully", JobScheduler.exit_gracefully)
    before = signal.getsignal(signal.SIGTERM)
    try:
        execute("private.end_at_every_sigterm()\n" * 2 + "rule all:\n    output: 'all'\n    shell: 'touch all'\n")
        handler = signal.getsignal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    scheduler = handler.__self__

    def interrupted():
        with scheduler._lock:
            handler(signal.SIGTERM, None)

    thread = threading.Thread(target=interrupted, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    wait_until(lambda: scheduler._user_kill == "graceful", PATIENCE_S)
