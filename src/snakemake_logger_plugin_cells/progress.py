"""Track the progress of a run and estimate the time left."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

CELL_RULE_PREFIX = "measure_"
# Seconds of jobs that measure nothing, by the first word of their rule; most of it is starting Python.
OTHER_JOBS_S = {"tabulate": 1.5, "writeup": 15.0, "all": 0.0}
UNKNOWN_JOB_S = 5.0
# The prior estimate weighs as much as this many seconds of this run.
PRIOR_S = 20.0


@dataclass(frozen=True)
class RunPlan:
    """What a run knows before its first job; cells_s: the expected seconds of cells, by rule and record."""

    cells_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    targets: Sequence[str] = ()
    why_stale: Mapping[str, str] = field(default_factory=dict)
    scale: str = ""


@dataclass(frozen=True)
class Job:
    """A started job: its rule, the seconds expected of it, when it began, and the seconds that it took in the end."""

    rule: str
    expected_s: float
    began_at: float
    taken_s: float = 0.0


class Progress:
    """Track the jobs of a run; `now` is in seconds of a monotonic clock."""

    def __init__(self, plan: RunPlan) -> None:
        self.totals: Counter[str] = Counter()
        self.running: dict[int, Job] = {}
        self.done: dict[int, Job] = {}
        self.failed: dict[int, Job] = {}
        self._waiting: Counter[str] = Counter()
        self._cells_s = plan.cells_s
        self._unstarted_s = {rule: dict(cells) for rule, cells in plan.cells_s.items()}
        self._began_at = 0.0

    def begin(self, totals: Mapping[str, int], now: float) -> None:
        """Note how many jobs each rule has."""
        self.totals, self._waiting = Counter(totals), Counter(totals)
        self._began_at = now

    def start(self, number: int, rule: str, outputs: Sequence[str], now: float) -> None:
        """Note that a job starts, or starts again after it failed."""
        before = self.failed.pop(number, None)
        if before is None:
            self._waiting[rule] -= 1
        self.running[number] = Job(rule, before.expected_s if before else self._pop_expected_s(rule, outputs), now)

    def finish(self, number: int, now: float) -> None:
        """Note that a job is done."""
        if job := self.running.pop(number, None):
            self.done[number] = replace(job, taken_s=now - job.began_at)

    def fail(self, number: int) -> None:
        """Note that a job failed."""
        if number in self.running:
            self.failed[number] = self.running.pop(number)

    def elapsed_s(self, now: float) -> float:
        """Return how long the run has taken so far."""
        return now - self._began_at

    def left_s(self, now: float) -> float:
        """Estimate the time left from the expected time of waiting jobs and the pace of finished ones."""
        work_s = sum(count * self.expected_s(rule) * self._factor(rule) for rule, count in self._waiting.items())
        for job in self.running.values():
            work_s += max(0.0, job.expected_s * self._factor(job.rule) - (now - job.began_at))
        # Jobs may overlap, and there is time between them.
        busy_s = sum(job.taken_s for job in self.done.values())
        busy_s += sum(now - job.began_at for job in self.running.values())
        return work_s * (self.elapsed_s(now) + PRIOR_S) / (busy_s + PRIOR_S)

    def expected_s(self, rule: str) -> float:
        """Return the expected seconds of a waiting job: the mean over the stage's cells that have not started."""
        cells = self._unstarted_s.get(rule) or self._cells_s.get(rule)
        return fmean(cells.values()) if cells else OTHER_JOBS_S.get(_kind(rule), UNKNOWN_JOB_S)

    def _pop_expected_s(self, rule: str, outputs: Sequence[str]) -> float:
        """Return the expected seconds of a job that starts, and remove its cell from those to come."""
        cells = self._unstarted_s.get(rule, {})
        record = next((path for path in outputs if path in cells), None)
        return self.expected_s(rule) if record is None else cells.pop(record)

    def _factor(self, rule: str) -> float:
        """Return actual over expected time of a rule's jobs: the pace of its kind, with the overall pace as prior."""
        overall = _pace(self.done.values(), 1.0, PRIOR_S)
        same_kind = [job for job in self.done.values() if _kind(job.rule) == _kind(rule)]
        return _pace(same_kind, overall, self.expected_s(rule) or 1.0)


def _pace(jobs: Iterable[Job], prior: float, weight_s: float) -> float:
    """Return actual over expected time of jobs; `prior` weighs as much as `weight_s` seconds of them."""
    taken_s, expected_s = prior * weight_s, weight_s
    for job in jobs:
        taken_s, expected_s = taken_s + job.taken_s, expected_s + job.expected_s
    return taken_s / expected_s


def is_cell(rule: str) -> bool:
    """Tell whether a rule measures cells."""
    return rule.startswith(CELL_RULE_PREFIX)


def _kind(rule: str) -> str:
    """Return the kind of a rule, which shares one pace: each stage's cells are a kind, all tables together another."""
    return rule if is_cell(rule) else rule.partition("_")[0]
