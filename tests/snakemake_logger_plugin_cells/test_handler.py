"""The handler with Snakemake's own logging around it, on made-up events."""

import inspect
import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from snakemake import api, dag, workflow
from snakemake.logging import LoggerManager
from snakemake.scheduling import job_scheduler
from snakemake.settings.enums import Quietness
from snakemake.settings.types import OutputSettings
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase

import snakemake_logger_plugin_cells as plugin
from snakemake_logger_plugin_cells.progress import RunPlan

from ..records import failed_row, record

PLAN = RunPlan({"measure_timing": {"a.json": 10.0, "b.json": 20.0}}, ["reports/writeup.md"])
RECORD = record()
QUIET = {Quietness.PROGRESS, Quietness.RULES}
HOST = {"cores": 2.0, "others_cores": 1.73, "busy": True, "load_before": 2.0, "load_after": 2.0}
NO_METADATA = "2 jobs have missing provenance/metadata so that it in part cannot be used to trigger re-runs.\nRules: a"
CHATTER = ("Building DAG of jobs...", "Using shell: /usr/bin/bash", "Select jobs to execute...", NO_METADATA)


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(plugin, "time", SimpleNamespace(monotonic=lambda: 100.0))
    managers = []

    def start(**settings):
        logger = logging.getLogger(f"run{len(managers)}")
        logger.propagate = False
        settings = OutputSettings(log_handler_settings={"cells": LogHandlerSettingsBase()}, **settings)
        managers.append(LoggerManager(logger, settings))
        return managers[-1]

    yield start
    for manager in managers:
        manager.stop()


def log_jobs(manager, plan=PLAN):
    log = manager.logger.info
    for line in CHATTER:
        log(line)
    log("", extra={"run_plan": plan})
    log("Job stats:", extra={"event": LogEvent.RUN_INFO, "stats": {"measure_timing": 2, "writeup": 1, "total": 3}})
    log("Execute 1 jobs...", extra={"event": LogEvent.JOB_STARTED, "jobs": [1]})
    log("", extra=job(1, "measure_timing", "timing size=tiny", ["a.json"]))
    log("Shell command", extra={"event": LogEvent.SHELLCMD, "cmd": "python -m pipeline measure"})
    log("Finished jobid: 1", extra=done(1))
    log("1 of 3 steps (33%) done", extra={"event": LogEvent.PROGRESS, "done": 1, "total": 3})
    log("", extra=job(2, "writeup", "write-up", ["reports/writeup.md"]))


def job(number, rule, message, output):
    fields = {"jobid": number, "rule_name": rule, "rule_msg": message, "output": output}
    return fields | {"event": LogEvent.JOB_INFO, "indent": False, "reason": "Missing output files"}


def done(number):
    return {"event": LogEvent.JOB_FINISHED, "job_id": number}


@pytest.mark.parametrize("why_stale", [{}, {"a.json": "settings changed"}])
def test_a_run_is_a_line_of_what_to_do_and_a_line_a_job_with_why_a_cell_is_measured_again(run, capsys, why_stale):
    manager, why = run(), " (settings changed)" if why_stale else ""
    log_jobs(manager, plan=replace(PLAN, why_stale=why_stale))
    manager.stop()
    assert capsys.readouterr().err.splitlines() == [
        "To do: 2 cells, 1 write-up, about 45 s",
        f"[0 of 2 cells done, 0 s so far, about 45 s left] timing size=tiny{why}",
        "[1 of 2 cells done, 0 s so far, about 19 s left] write-up",
        "not measured: 1 of 2 cells; the same command goes on with them",
    ]


def test_errors_warnings_and_what_else_snakemake_says_come_through_and_a_mistyped_target_is_one_line(run, capsys):
    manager = run()
    manager.logger.info("", extra={"run_plan": PLAN})
    manager.logger.warning("overrides: flash is not measured")
    manager.logger.info("Nothing to be done.")
    manager.logger.error("WorkflowError:\nAt least one job failed.", extra={"event": LogEvent.ERROR})
    told = "MissingRuleException:\nNo rule to produce reports/writup.md (if you use input functions make sure ...)."
    manager.logger.error(told, extra={"event": LogEvent.ERROR, "exception": "MissingRuleException"})
    manager.stop()
    meant = "no target 'reports/writup.md' (did you mean reports/writeup.md?): targets in reports/ are writeup.md"
    assert capsys.readouterr().err.splitlines() == [
        *("overrides: flash is not measured", "Nothing to be done.", "WorkflowError:", "At least one job failed."),
        f"snakemake: {meant}",
    ]


def test_a_quiet_run_says_nothing_of_its_progress_and_verbose_is_all_that_snakemake_says(run, capsys):
    everything = (*CHATTER, "Job 1: timing", "1 of 3 steps (33%)")
    for settings, said in (({"quiet": QUIET}, ()), ({"verbose": True}, everything)):
        manager = run(**settings)
        log_jobs(manager)
        manager.logger.error("an error")
        manager.stop()
        found = capsys.readouterr().err
        assert all(line in found for line in (*said, "an error"))
        assert ("cells" in found) <= bool(said)


@pytest.mark.parametrize("quiet", [set(), QUIET])
def test_a_dry_run_ends_with_the_cells_of_each_stage_and_their_time(run, capsys, quiet):
    manager = run(dryrun=True, quiet=quiet)
    manager.logger.info("", extra={"run_plan": PLAN})
    stats = {"measure_timing": 2, "tabulate_timing": 2, "tabulate_cells": 1, "writeup": 1, "total": 6}
    for _ in range(1 if quiet else 2):  # Snakemake says it before and after the jobs
        manager.logger.info("Job stats:", extra={"event": LogEvent.RUN_INFO, "stats": stats})
    manager.stop()
    said = capsys.readouterr().err.splitlines()
    assert said[-3:] == [
        "stage       cells     about",
        "timing          2      30 s",
        "To do: 2 cells, 3 tables, 1 write-up, about 50 s",
    ]
    assert said.count("Job stats:") == (0 if quiet else 2)


@pytest.fixture
def said_of(run, tmp_path, capsys):
    """Let cells start and end that leave these records, or none, each with a folder of files; return what is said."""

    def finish(*records, **settings):
        (tmp_path / "files").mkdir(exist_ok=True)
        manager = run(**settings)
        for number, found in enumerate(records):
            path = tmp_path / f"{number}.json"
            if found is not None:
                path.write_text(json.dumps(found))
            manager.logger.info("", extra=job(number, "measure_timing", "a cell", [str(path), f"{tmp_path}/files"]))
            manager.logger.info("", extra=done(number))
        manager.stop()
        return [line for line in capsys.readouterr().err.splitlines() if not line.endswith("a cell")]

    return finish


OWN = record(subjects=[{"kind": "model", "name": name, "digest": "abc"} for name in ("mine", "right")])
FAILED = [failed_row("wrong", "logits depend on later tokens", phase) for phase in ("forward", "train_step")]
WRONG = {**OWN, "rows": [*OWN["rows"], *({**row, "impl": "mine"} for row in FAILED)]}
SKIPPED = {**RECORD, "rows": [failed_row("skipped", "takes 27.6 GB or more")]}
BUSY = record(host=HOST)
KILLED = {**RECORD, "rows": [failed_row("failed", "ended by SIGKILL")], "log": "logs/a.log"}
SAID_OF_BUSY = """\
[measured on a busy host: other processes used 1.7 of 2 cores]
measured 3 cells: 3 ok
2 cells measured on a busy host: host_busy in results/<stage>/cells.csv"""
SAID_OF_WRONG = """\
[your mine is wrong: logits depend on later tokens]
measured 3 cells: 3 ok
your mine is wrong in 2 of 3 cells"""
SAID_OF_SKIPPED = """\
[timing: nothing measured: takes 27.6 GB or more]
measured 3 cells: 1 ok, 2 skipped
2 cells of timing skipped: takes 27.6 GB or more"""


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([BUSY, BUSY, RECORD], SAID_OF_BUSY),
        ([WRONG, WRONG, OWN], SAID_OF_WRONG),
        ([SKIPPED, RECORD, SKIPPED], SAID_OF_SKIPPED),
        ([KILLED, RECORD], "[failed: ended by SIGKILL, see logs/a.log]\nmeasured 2 cells: 1 ok, 1 failed"),
        ([record(host={**HOST, "busy": False})], "measured 1 cell: 1 ok"),
        *(([damaged], "") for damaged in ({**RECORD, "host": {"busy": True}}, {}, None)),
    ],
    ids=["busy", "wrong", "skipped", "failed", "quiet host", "damaged", "empty", "none"],
)
def test_what_came_of_a_cell_is_told_once_with_the_reason_and_counted_in_the_end(said_of, records, said):
    assert said_of(*records) == said.splitlines()


def test_of_many_reasons_the_end_names_the_first_and_counts_the_others_and_a_quiet_run_says_none(said_of):
    told = said_of(*({**RECORD, "rows": [failed_row("skipped", f"needs {number} GPUs")]} for number in range(2, 9)))
    assert told[-2:] == ["1 cell of timing skipped: needs 6 GPUs", "2 more reasons: results/<stage>/cells.csv"]
    assert said_of(SKIPPED, quiet=QUIET) == []


def test_the_page_to_open_stands_last_once_it_is_written(run, capsys):
    manager = run()
    manager.logger.info("", extra=job(1, "writeup", "write-up", ["reports/writeup.md", "reports/report.html"]))
    manager.logger.info("", extra=done(1))
    manager.stop()
    assert capsys.readouterr().err.splitlines()[-1] == f"the report: {Path('reports/report.html').absolute()}"


def test_a_job_that_takes_long_is_named_again(run, capsys, monkeypatch):
    monkeypatch.setattr(plugin, "REMIND_S", 0.05)
    manager = run()
    log_jobs(manager)
    said, end = "", time.monotonic() + 60
    while said.count("write-up, for 0 s now") < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
        said += capsys.readouterr().err
    manager.stop()
    assert "[1 of 2 cells done, 0 s so far, about 19 s left] write-up, for 0 s now" in said


def test_a_terminal_that_is_gone_does_not_end_the_run(run, monkeypatch):
    gone = Mock(side_effect=OSError(5, "Input/output error"))
    manager = run()
    monkeypatch.setattr("sys.stderr", SimpleNamespace(write=gone, flush=gone))
    log_jobs(manager)
    handler = manager.plugin_handlers[0]
    manager.stop()
    assert handler.progress.running.keys() == {2}


def test_the_texts_left_out_are_those_that_snakemake_has():
    sources = "".join(map(inspect.getsource, (api, dag, workflow, job_scheduler)))
    for text in (*plugin.CHATTER, plugin.ABOUT_METADATA):
        assert f'"{text}' in sources
