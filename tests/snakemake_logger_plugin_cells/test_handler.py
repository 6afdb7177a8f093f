"""The handler inside Snakemake's own logging, with made-up events."""

import inspect
import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from snakemake import api, common, dag, workflow
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
def test_a_run_prints_what_to_do_and_a_line_per_job_with_why_its_cell_is_stale(run, capsys, why_stale):
    manager, why = run(), " (settings changed)" if why_stale else ""
    log_jobs(manager, plan=replace(PLAN, why_stale=why_stale))
    manager.stop()
    assert capsys.readouterr().err.splitlines() == [
        "To do: 2 cells, 1 write-up, about 45 s",
        f"[0 of 2 cells done, 0 s so far, about 45 s left] timing size=tiny{why}",
        "[1 of 2 cells done, 0 s so far, about 19 s left] write-up",
        "not measured: 1 of 2 cells; run the same command to continue",
    ]


def test_errors_and_warnings_come_through_and_a_mistyped_target_is_one_line(run, capsys):
    manager = run()
    manager.logger.info("", extra={"run_plan": PLAN})
    manager.logger.warning("overrides: flash is not measured")
    manager.logger.info("Nothing to be done.")
    manager.logger.error("WorkflowError:\nAt least one job failed.", extra={"event": LogEvent.ERROR})
    message = "MissingRuleException:\nNo rule to produce reports/writup.md (if you use input functions make sure ...)."
    manager.logger.error(message, extra={"event": LogEvent.ERROR, "exception": "MissingRuleException"})
    manager.stop()
    meant = "no target 'reports/writup.md' (did you mean reports/writeup.md?): targets in reports/ are writeup.md"
    assert capsys.readouterr().err.splitlines() == [
        *("overrides: flash is not measured", "Nothing to be done.", "WorkflowError:", "At least one job failed."),
        f"snakemake: {meant}",
    ]


def test_a_quiet_run_shows_no_progress_and_a_verbose_one_all_of_snakemakes_output(run, capsys):
    everything = (*CHATTER, "Job 1: timing", "1 of 3 steps (33%)")
    for settings, printed in (({"quiet": QUIET}, ()), ({"verbose": True}, everything)):
        manager = run(**settings)
        log_jobs(manager)
        manager.logger.error("an error")
        manager.stop()
        found = capsys.readouterr().err
        assert all(line in found for line in (*printed, "an error"))
        assert ("cells" in found) <= bool(printed)


@pytest.mark.parametrize("quiet", [set(), QUIET])
def test_a_dry_run_ends_with_the_cells_of_each_stage_and_their_time(run, capsys, quiet):
    manager = run(dryrun=True, quiet=quiet)
    manager.logger.info("", extra={"run_plan": PLAN})
    stats = {"measure_timing": 2, "tabulate_timing": 2, "tabulate_cells": 1, "writeup": 1, "total": 6}
    for _ in range(1 if quiet else 2):  # Snakemake says it before and after the jobs
        manager.logger.info("Job stats:", extra={"event": LogEvent.RUN_INFO, "stats": stats})
    manager.stop()
    printed = capsys.readouterr().err.splitlines()
    assert printed[-3:] == [
        "stage       cells     about",
        "timing          2      30 s",
        "To do: 2 cells, 3 tables, 1 write-up, about 50 s",
    ]
    assert printed.count("Job stats:") == (0 if quiet else 2)


@pytest.fixture
def printed_about(run, tmp_path, capsys):
    """Start and end cells that leave these records (None: no record) and a folder of files; return what is said."""

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
PRINTED_ABOUT_BUSY = """\
[measured on a busy host: other processes used 1.7 of 2 cores]
measured 3 cells: 3 ok
2 cells measured on a busy host: see host_busy in results/<stage>/cells.csv"""
PRINTED_ABOUT_WRONG = """\
[your mine is wrong: logits depend on later tokens]
measured 3 cells: 3 ok
your mine is wrong in 2 of 3 cells"""
PRINTED_ABOUT_SKIPPED = """\
[timing: nothing measured: takes 27.6 GB or more]
measured 3 cells: 1 ok, 2 skipped
2 cells of timing skipped: takes 27.6 GB or more"""


@pytest.mark.parametrize(
    ("records", "printed"),
    [
        ([BUSY, BUSY, RECORD], PRINTED_ABOUT_BUSY),
        ([WRONG, WRONG, OWN], PRINTED_ABOUT_WRONG),
        ([SKIPPED, RECORD, SKIPPED], PRINTED_ABOUT_SKIPPED),
        ([KILLED, RECORD], "[failed: ended by SIGKILL, see logs/a.log]\nmeasured 2 cells: 1 ok, 1 failed"),
        ([record(host={**HOST, "busy": False})], "measured 1 cell: 1 ok"),
        *(([damaged], "") for damaged in ({**RECORD, "host": {"busy": True}}, {}, None)),
    ],
    ids=["busy", "wrong", "skipped", "failed", "quiet host", "damaged", "empty", "none"],
)
def test_an_outcome_is_printed_once_with_its_reason_and_counted_at_the_end(printed_about, records, printed):
    assert printed_about(*records) == printed.splitlines()


def test_the_end_names_the_first_reasons_and_counts_the_others_unless_quiet(printed_about):
    lines = printed_about(
        *({**RECORD, "rows": [failed_row("skipped", f"needs {number} GPUs")]} for number in range(2, 9))
    )
    assert lines[-2:] == ["1 cell of timing skipped: needs 6 GPUs", "2 more reasons: see results/<stage>/cells.csv"]
    assert printed_about(SKIPPED, quiet=QUIET) == []


def test_the_last_line_names_the_report_once_it_is_written(run, capsys):
    manager = run()
    manager.logger.info("", extra=job(1, "writeup", "write-up", ["reports/writeup.md", "reports/report.html"]))
    manager.logger.info("", extra=done(1))
    manager.stop()
    assert capsys.readouterr().err.splitlines()[-1] == f"the report: {Path('reports/report.html').absolute()}"


@pytest.mark.parametrize("requested", ["reports/report.html", ""])
def test_a_run_with_nothing_to_do_names_the_report_if_it_was_asked_for(run, capsys, requested):
    manager = run()
    manager.logger.info("", extra={"report_page": requested})
    manager.logger.info("Nothing to be done (all requested files are present and up to date).")
    manager.stop()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"the report: {Path(requested).absolute()}" if requested else "report" not in last


def test_a_job_that_takes_long_is_printed_again(run, capsys, monkeypatch):
    monkeypatch.setattr(plugin, "REMIND_S", 0.05)
    manager = run()
    log_jobs(manager)
    printed, end = "", time.monotonic() + 60
    while printed.count("write-up, for 0 s now") < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
        printed += capsys.readouterr().err
    manager.stop()
    assert "[1 of 2 cells done, 0 s so far, about 19 s left] write-up, for 0 s now" in printed


def test_a_terminal_that_is_gone_does_not_end_the_run(run, monkeypatch):
    gone = Mock(side_effect=OSError(5, "Input/output error"))
    manager = run()
    monkeypatch.setattr("sys.stderr", SimpleNamespace(write=gone, flush=gone))
    log_jobs(manager)
    handler = manager.plugin_handlers[0]
    manager.stop()
    assert handler.progress.running.keys() == {2}


def test_messages_known_by_their_text_are_in_snakemakes_source():
    sources = "".join(map(inspect.getsource, (api, common, dag, workflow, job_scheduler)))
    for text in (*plugin.CHATTER, plugin.UP_TO_DATE, plugin.INTERRUPTED, plugin.ABOUT_METADATA):
        assert f'"{text}' in sources
