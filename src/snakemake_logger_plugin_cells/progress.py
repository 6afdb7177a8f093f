"""How far a run has come, and about how long the rest of it takes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

CELL_RULE_PREFIX = "measure_"
# Seconds of the jobs that measure nothing, by the first word of their rule: most of it is starting Python.
OTHER_JOBS_S = {"tabulate": 1.5, "section": 4.0, "writeup": 3.0, "all": 0.0}
UNKNOWN_JOB_S = 5.0
# What was expected weighs as much as so many seconds of what this run shows.
PRIOR_S = 20.0


@dataclass(frozen=True)
class RunPlan:
    """What a run knows before its first job.

    The seconds expected of cells, by rule and record; all targets; why records are stale, complete once all is planned.
    """

    cells_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    targets: Sequence[str] = ()
    why_stale: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Pace:
    """What was expected of jobs that are done, and what they took."""

    expected_s: float = 0.0
    taken_s: float = 0.0

    def factor(self, prior: float, weight_s: float) -> float:
        """Return how many times as long as expected jobs take; `prior` weighs as much as `weight_s` of experience."""
        return (self.taken_s + prior * weight_s) / (self.expected_s + weight_s)


@dataclass(frozen=True)
class Job:
    """A job that has started: its rule, the seconds expected of it, and when it began."""

    rule: str
    expected_s: float
    began_at: float


class Progress:
    """Follow the jobs of a run; `now` is in seconds of any clock that does not jump."""

    def __init__(self, plan: RunPlan) -> None:
        self.totals: Counter[str] = Counter()
        self.running: dict[int, Job] = {}
        self.done: dict[int, Job] = {}
        self.failed: dict[int, Job] = {}
        self._waiting: Counter[str] = Counter()
        self._cells_s = {rule: dict(cells) for rule, cells in plan.cells_s.items()}
        self._open_s = {rule: dict(cells) for rule, cells in plan.cells_s.items()}
        self._pace = Pace()
        self._pace_of: dict[str, Pace] = {}
        self._began_at = 0.0

    def begin(self, totals: Mapping[str, int], now: float) -> None:
        """Take note of how many jobs each rule has."""
        self.totals, self._waiting = Counter(totals), Counter(totals)
        self._began_at = now

    def start(self, number: int, rule: str, outputs: Sequence[str], now: float) -> None:
        """Take note of a job that starts, or after it failed starts again."""
        before = self.failed.pop(number, None)
        if before is None:
            self._waiting[rule] -= 1
        self.running[number] = Job(rule, before.expected_s if before else self._take_s(rule, outputs), now)

    def finish(self, number: int, now: float) -> None:
        """Take note of a job that is done, and of what it says of those like it."""
        if number not in self.running:
            return
        job = self.done[number] = self.running.pop(number)
        for pace in (self._pace, self._pace_of.setdefault(_kind(job.rule), Pace())):
            pace.expected_s += job.expected_s
            pace.taken_s += now - job.began_at

    def fail(self, number: int) -> None:
        """Take note of a job that failed."""
        if number in self.running:
            self.failed[number] = self.running.pop(number)

    def elapsed_s(self, now: float) -> float:
        """Return how long the run has taken so far."""
        return now - self._began_at

    def left_s(self, now: float) -> float:
        """Estimate how long the rest takes: by what its jobs are expected to take and what those before them took."""
        work_s = sum(count * self.expected_s(rule) * self._factor(rule) for rule, count in self._waiting.items())
        for job in self.running.values():
            work_s += max(0.0, job.expected_s * self._factor(job.rule) - (now - job.began_at))
        # Jobs overlap where there are cores for it, and there is time between them.
        busy_s = self._pace.taken_s + sum(now - job.began_at for job in self.running.values())
        return work_s * (self.elapsed_s(now) + PRIOR_S) / (busy_s + PRIOR_S)

    def expected_s(self, rule: str) -> float:
        """Return the seconds expected of a job to come: which of a stage's cells it will be is not known."""
        cells = self._open_s.get(rule) or self._cells_s.get(rule)
        return fmean(cells.values()) if cells else OTHER_JOBS_S.get(_kind(rule), UNKNOWN_JOB_S)

    def _take_s(self, rule: str, outputs: Sequence[str]) -> float:
        """Return the seconds expected of a job that starts; its cell is not to come any more."""
        cells = self._open_s.get(rule, {})
        record = next((path for path in outputs if path in cells), None)
        return self.expected_s(rule) if record is None else cells.pop(record)

    def _factor(self, rule: str) -> float:
        """Return how many times as long as expected the jobs of a rule take; those of its kind say so first."""
        overall = self._pace.factor(1.0, PRIOR_S)
        return self._pace_of.get(_kind(rule), Pace()).factor(overall, self.expected_s(rule) or 1.0)


def is_cell(rule: str) -> bool:
    """Tell whether a rule measures cells."""
    return rule.startswith(CELL_RULE_PREFIX)


def _kind(rule: str) -> str:
    """Return what a rule shares its pace with: a stage's cells have one of their own, all tables one together."""
    return rule if is_cell(rule) else rule.partition("_")[0]
