"""A Snakemake logger plugin (`--logger cells`): one line per job with cells done, time left, and disturbances.

It replaces Snakemake's own output, which is still in the log file and shown by `--verbose`.
"""

import contextlib
import sys
import threading
import time
from logging import LogRecord
from pathlib import Path
from typing import Any

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from snakemake_logger_plugin_cells import messages
from snakemake_logger_plugin_cells.command_line import put_targets_last
from snakemake_logger_plugin_cells.progress import Progress, RunPlan, is_cell

REMIND_S = 60.0
# Events that the lines of jobs already cover.
SILENT_EVENTS = {
    LogEvent.WORKFLOW_STARTED,
    LogEvent.RESOURCES_INFO,
    LogEvent.JOB_STARTED,
    LogEvent.JOB_FINISHED,
    LogEvent.PROGRESS,
}
# Beginnings of messages about Snakemake's own work, which have no event.
CHATTER = (
    "Config file ",
    "Assuming unrestricted shared filesystem",
    "Building DAG of jobs",
    "Using shell:",
    "Select jobs to execute",
)
# How Snakemake's reply to Ctrl-C begins. What it then says about each job that this ends is not an error.
INTERRUPTED = "Terminating processes on user request"
# How Snakemake's message begins if all targets are up to date.
UP_TO_DATE = "Nothing to be done"
# Part of a message about Snakemake's own metadata, which has no effect here.
ABOUT_METADATA = "provenance/metadata so that it in part"

# At import, because Snakemake imports its plugins before it parses the command line.
put_targets_last()


class LogHandler(LogHandlerBase):
    """Write to the terminal in Snakemake's place; Snakemake provides the filter and format of its own handler."""

    writes_to_stream = True  # Snakemake leaves the terminal to this handler
    writes_to_file = False  # and writes the log file itself
    has_filter = has_formatter = False
    needs_rulegraph = False

    def __post_init__(self) -> None:
        self.plan = RunPlan()
        self.progress = Progress(self.plan)
        # Imported here, because every Snakemake in this environment imports this module, whatever it runs.
        from snakemake_logger_plugin_cells.outcomes import Outcomes

        self.outcomes = Outcomes()
        self.report = ""  # the page to open, once it is written or found up to date
        self.requested_report = ""  # the page, if it is among the targets or they need it
        self.interrupted = False
        self.infos: dict[int, Any] = {}  # Snakemake's record of each job's start, which has its fields as attributes
        self.reminder: threading.Timer | None = None

    def handle(self, record: LogRecord) -> bool:
        """Follow every event; write those that options such as --quiet let pass."""
        with self.lock:  # type: ignore[union-attr]  # logging makes one
            try:
                self._follow(record, time.monotonic())
            except Exception:
                self.handleError(record)
            return bool(super().handle(record))

    def emit(self, record: LogRecord) -> None:
        """Write one record."""
        try:
            if text := self._text(record, time.monotonic()):
                self._write(text)
        except Exception:  # as every handler does: a failed message must not end the run
            self.handleError(record)

    def close(self) -> None:
        """End a dry run with a table of its cells and times, any other run with the outcomes of its cells."""
        self._stop_reminder()
        if not self.common_settings.quiet:
            for line in (
                *self.outcomes.summary(),
                *([] if self.common_settings.dryrun else messages.left_over(self.progress)),
                *([f"the report: {Path(self.report).absolute()}"] if self.report else []),
            ):
                self._write(line)
        self.outcomes, self.report = type(self.outcomes)(), ""
        if self.common_settings.dryrun and self.progress.totals:
            self._write(messages.table(self.progress, 0.0))
        self.progress.totals.clear()
        super().close()

    def _follow(self, record: Any, now: float) -> None:
        event = getattr(record, "event", None)
        if (plan := getattr(record, "run_plan", None)) is not None:
            self.plan, self.progress = plan, Progress(plan)
        elif page := getattr(record, "report_page", None):
            self.requested_report = page
        elif event == LogEvent.RUN_INFO:
            totals = {rule: count for rule, count in record.stats.items() if rule != "total"}
            self.progress.begin(totals, 0.0 if self.common_settings.dryrun else now)
        elif self.common_settings.dryrun:
            return
        elif event == LogEvent.JOB_INFO:
            self.infos[record.jobid] = record
            self.progress.start(record.jobid, record.rule_name, record.output, now)
        elif event == LogEvent.JOB_FINISHED:
            self.progress.finish(record.job_id, now)
            if (info := self.infos.get(record.job_id)) and info.rule_name == "writeup":
                self.report = next((path for path in info.output if path.endswith(".html")), "")
        elif event == LogEvent.JOB_ERROR:
            self.progress.fail(record.jobid)
        elif str(record.msg).startswith(INTERRUPTED):
            self.interrupted = True
        elif str(record.msg).startswith(UP_TO_DATE):
            self.report = self.requested_report

    def _text(self, record: Any, now: float) -> str | None:
        event, settings, plan = getattr(record, "event", None), self.common_settings, self.plan
        if event == LogEvent.ERROR and (line := messages.complaint(record.getMessage(), plan.targets, plan.scale)):
            return line
        if settings.verbose:
            return self.format(record)
        if event == LogEvent.JOB_FINISHED and (info := self.infos.get(record.job_id)) and is_cell(info.rule_name):
            return "\n".join(self.outcomes.add(info.output)) or None
        message = "" if event else str(record.msg)
        if event in SILENT_EVENTS or message.startswith(CHATTER) or ABOUT_METADATA in message:
            return None
        if self.interrupted and event in (LogEvent.ERROR, LogEvent.JOB_ERROR):
            return None
        if event == LogEvent.RUN_INFO and not settings.dryrun:
            return messages.to_do(self.progress, now)
        if event == LogEvent.JOB_INFO and not settings.dryrun:
            self._start_reminder()
            if not record.output:  # the rule `all`
                return None
            return f"{messages.state(self.progress, now)} {_job_name(record)}{_stale_reason(record, self.plan)}"
        return self.format(record)

    def _start_reminder(self) -> None:
        """Print running jobs again after a while without news."""
        self._stop_reminder()
        self.reminder = threading.Timer(REMIND_S, self._remind)
        self.reminder.daemon = True
        self.reminder.start()

    def _stop_reminder(self) -> None:
        if self.reminder is not None:
            self.reminder.cancel()

    def _remind(self) -> None:
        with self.lock:  # type: ignore[union-attr]  # logging makes one
            now = time.monotonic()
            for number, job in self.progress.running.items():
                duration = messages.span(now - job.began_at)
                self._write(f"{messages.state(self.progress, now)} {_job_name(self.infos[number])}, for {duration} now")
            if self.progress.running:
                self._start_reminder()

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone, but the run continues
            print(text, file=sys.stdout if self.common_settings.stdout else sys.stderr, flush=True)


def _job_name(record: Any) -> str:
    return record.rule_msg or record.rule_name


def _stale_reason(record: Any, plan: RunPlan) -> str:
    """Return, in brackets, why a cell is measured again although its record exists."""
    return "".join(f" ({plan.why_stale[path]})" for path in record.output if path in plan.why_stale)
