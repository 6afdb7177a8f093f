"""What is used of Snakemake is there and means the same: small workflows run in this process."""

import json

import pytest
from snakemake.api import SnakemakeApi
from snakemake.settings.enums import Quietness
from snakemake.settings.types import (
    ConfigSettings,
    DAGSettings,
    ExecutionSettings,
    OutputSettings,
    ResourceSettings,
    WorkflowSettings,
)
from snakemake_interface_executor_plugins.settings import ExecMode

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the solver that Snakemake's scheduler uses
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
    """Return what runs a workflow; it returns what the workflow told."""

    def run(text, targets=(), resources=None, executor="local", configfiles=(), mode=ExecMode.DEFAULT, **config):
        (tmp_path / "Snakefile").write_text(BEGINNING + text)
        with SnakemakeApi(OutputSettings(quiet={Quietness.ALL})) as snakemake:
            workflow = snakemake.workflow(
                resources or ResourceSettings(cores=1),
                ConfigSettings(config=config, configfiles=configfiles),
                workflow_settings=WorkflowSettings(exec_mode=mode),
                snakefile=tmp_path / "Snakefile",
                workdir=tmp_path,
            )
            workflow.dag(DAGSettings(targets=frozenset(targets))).execute_workflow(
                executor, execution_settings=ExecutionSettings(keep_going=True)
            )

    run.told = lambda: json.loads((tmp_path / "told.json").read_text())
    return run


def test_a_newer_input_has_what_is_there_made_again_each_time_and_nothing_else(execute, tmp_path):
    def times():
        return {name: (tmp_path / f"{name}.made").stat().st_mtime_ns for name in ("a", "b", "c")}

    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.made").write_text("before")
    before = times()
    for _ in range(2):
        execute(FORCING, targets=["a.made", "b.made"], stale=["a", "c"])
        after = times()
        assert after["a"] > before["a"]
        assert {**after, "a": 0} == {**before, "a": 0}
        before = after


@pytest.mark.parametrize(("resources", "limit"), [({}, None), ({"gpu": 3}, 3)])
def test_gpu_limit_is_what_the_command_line_says(execute, resources, limit):
    text = "tell(private.gpu_limit(workflow))\nrule all:\n"
    execute(text, resources=ResourceSettings(cores=1, resources=resources))
    assert execute.told() == limit


@pytest.mark.parametrize(("resources", "expected"), [({"cores": 3}, False), ({"nodes": 2}, True)])
def test_uses_a_scheduler_follows_from_how_jobs_are_counted(execute, resources, expected):
    text = "tell(private.uses_a_scheduler(workflow))\nrule all:\n"
    execute(text, resources=ResourceSettings(**resources), executor="dryrun")
    assert execute.told() == expected


@pytest.mark.parametrize(("mode", "expected"), [(ExecMode.DEFAULT, False), (ExecMode.REMOTE, True)])
def test_is_a_schedulers_job_only_where_a_scheduler_has_started_it(execute, mode, expected):
    execute("tell(private.is_a_schedulers_job(workflow))\nrule all:\n", mode=mode, executor="dryrun")
    assert execute.told() == expected


def test_given_configfiles_are_those_of_the_command_line(execute, tmp_path):
    given = tmp_path / "mine.yaml"
    given.write_text("x: 1\n")
    execute("tell(list(map(str, private.given_configfiles(workflow))))\nrule all:\n", configfiles=[given])
    assert execute.told() == [str(given)]
