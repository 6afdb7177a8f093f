"""A Snakemake logger plugin (`--logger cells`): how many cells are measured, the time left, and who disturbed them."""

import sys
import time
from contextlib import suppress
from logging import LogRecord
from pathlib import Path

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from snakemake_logger_plugin_cells.command_line import put_targets_last

CELL_RULE_PREFIX = "measure_"

# Here, because Snakemake imports its plugins before it parses the command line.
put_targets_last()


class LogHandler(LogHandlerBase):
    """Print a line beside Snakemake's own output whenever a cell starts, and when one ends that others disturbed."""

    def __post_init__(self) -> None:
        self.total, self.done = 0, 0
        self.running: dict[int, list[str]] = {}  # what each leaves, by job
        self.first_start = 0.0

    def emit(self, record: LogRecord) -> None:
        """Follow the run's events; those that this plugin does not know pass by."""
        event = getattr(record, "event", None)
        if event == LogEvent.RUN_INFO:
            self.total = sum(jobs for rule, jobs in record.stats.items() if rule.startswith(CELL_RULE_PREFIX))
        elif event == LogEvent.JOB_INFO and record.rule_name.startswith(CELL_RULE_PREFIX):
            self._start(record.jobid, record.output)
        elif event == LogEvent.JOB_FINISHED and record.job_id in self.running:
            self.done += 1
            self._tell_if_disturbed(self.running.pop(record.job_id))
        elif event == LogEvent.JOB_ERROR and record.jobid in self.running:
            del self.running[record.jobid]

    def _start(self, job_id: int, output: list[str]) -> None:
        self.first_start = self.first_start or time.monotonic()
        self.running[job_id] = output
        if self.common_settings.dryrun:
            return
        print(f"[{self.done} of {self.total} cells done{self._time_left()}]", file=sys.stderr, flush=True)

    def _tell_if_disturbed(self, output: list[str]) -> None:
        """Say what only the cell's log holds: other processes were busy when it was measured."""
        # Not at the top: every Snakemake of the environment imports this module, whatever it runs.
        from pipeline.cells.record import read_record
        from pipeline.errors import UserError

        for path in output:
            with suppress(UserError):  # the folder of its files, for one
                host = read_record(Path(path)).get("host", {})
                if host.get("busy"):
                    used = f"other processes used {host['others_cores']:.1f} of {host['cores']:g} cores"
                    print(f"[measured on a busy host: {used}, see {path}]", file=sys.stderr, flush=True)

    def _time_left(self) -> str:
        if not self.done:
            return ""
        left_s = (time.monotonic() - self.first_start) / self.done * (self.total - self.done)
        return f", about {left_s / 60:.0f} min left" if left_s >= 90 else f", about {left_s:.0f} s left"

    @property
    def writes_to_stream(self) -> bool:
        """False: Snakemake's own lines stay, this handler only adds to them."""
        return False

    @property
    def writes_to_file(self) -> bool:
        """False: the log file is Snakemake's."""
        return False

    @property
    def has_filter(self) -> bool:
        """True: it picks its events itself, whatever --quiet says of Snakemake's."""
        return True

    @property
    def has_formatter(self) -> bool:
        """True: it writes its own lines."""
        return True

    @property
    def needs_rulegraph(self) -> bool:
        """False: counts are enough."""
        return False
