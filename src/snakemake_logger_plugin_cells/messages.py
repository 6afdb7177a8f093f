"""The messages of a run: progress, what it will make, and what is wrong with a target."""

import difflib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath

from snakemake_logger_plugin_cells.progress import CELL_RULE_PREFIX, Job, Progress, is_cell

# What a rule makes, by the beginning of its name.
PRODUCTS = {CELL_RULE_PREFIX: "cell", "tabulate_": "table", "writeup": "write-up"}
UNKNOWN_TARGET = re.compile(r"No rule to produce (.+?) \(if you use input functions")
# The keys of a value that `--config` takes; without that option it is read as a target.
CONFIG_KEYS = {"scale", "measure", "overrides", "subjects", "sizes", "only"}
WILDCARD = re.compile(r"\{\w+\}")
# How similar a name must be to be suggested for another: flash for flahs, but not bf16.csv for fp32.csv.
MIN_SIMILARITY = 0.76
USER_ERROR = re.compile(r"\bUserError: (.+)")


def span(seconds: float) -> str:
    """Format a time in seconds, minutes or hours, rounded to be read at a glance."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"


def state(progress: Progress, now: float) -> str:
    """Say how many cells are done, the time so far and the time left; count jobs in a run without cells."""
    unit, is_counted = ("cells", is_cell) if _count(progress.totals, is_cell) else ("jobs", lambda _rule: True)
    failed = _jobs(progress.failed, is_counted)
    return (
        f"[{_jobs(progress.done, is_counted)} of {_count(progress.totals, is_counted)} {unit} done"
        f"{f', {failed} failed' if failed else ''}, {span(progress.elapsed_s(now))} so far"
        f", about {span(progress.left_s(now))} left]"
    )


def to_do(progress: Progress, now: float) -> str:
    """Say what a run is going to make, and about how long that takes."""
    counts = {kind: sum(n for rule, n in progress.totals.items() if rule.startswith(kind)) for kind in PRODUCTS}
    parts = [f"{count} {PRODUCTS[kind]}{'s' if count > 1 else ''}" for kind, count in counts.items() if count]
    return f"To do: {', '.join(parts) or 'nothing'}, about {span(progress.left_s(now))}"


def left_over(progress: Progress) -> list[str]:
    """Say how many cells a run that finished or was interrupted leaves to the next one; empty if none."""
    planned = _count(progress.totals, is_cell)
    left = planned - _jobs(progress.done, is_cell)
    return [f"not measured: {left} of {planned} cells; run the same command to continue"] if left > 0 else []


def table(progress: Progress, now: float) -> str:
    """Return a table of cells and expected time by stage, with the total in the last line."""
    cells = [(rule, count) for rule, count in progress.totals.items() if is_cell(rule)]
    rows = [
        f"{rule.removeprefix(CELL_RULE_PREFIX):12}{count:5}{span(count * progress.expected_s(rule)):>10}"
        for rule, count in cells
    ]
    return "\n".join([*([f"{'stage':12}cells{'about':>10}"] if rows else []), *rows, to_do(progress, now)])


def complaint(message: str, targets: Sequence[str], scale: str = "") -> str | None:
    """Return in one line what is wrong with a target, or None if Snakemake's message is about something else."""
    if (match := USER_ERROR.search(message)) is not None:
        return f"snakemake: {match[1]}"
    if (match := UNKNOWN_TARGET.search(message)) is not None and targets:
        return f"snakemake: {unknown_target(match[1], targets, scale)}"
    return None


def unknown_target(requested: str, targets: Sequence[str], scale: str = "") -> str:
    """List what may replace the first unknown part of a target's path; folders end in /, a star is any text."""
    known = [PurePosixPath(target).parts for target in targets]
    parts = PurePosixPath(requested).parts
    depth = next((depth for depth in range(len(parts)) if not _with_prefix(known, parts[: depth + 1])), len(parts))
    paths = [path for path in _with_prefix(known, parts[:depth]) if len(path) > depth]
    allowed = sorted({WILDCARD.sub("*", path[depth]) + "/" * (len(path) > depth + 1) for path in paths})
    folder = f" in {'/'.join(parts[:depth])}/" if depth else ""
    what = f"no target '{requested}'{f' at scale {scale}' if scale else ''}{_suggestion(parts, depth, allowed, known)}"
    return f"{what}: targets{folder} are {', '.join(allowed) or 'none'}"


def _suggestion(parts: Sequence[str], depth: int, allowed: Sequence[str], known: Sequence[tuple[str, ...]]) -> str:
    """Suggest what a path was meant to be; empty if nothing is similar."""
    if parts and parts[0].partition("=")[0] in CONFIG_KEYS and "=" in parts[0]:
        return f" (did you mean --config {shlex.quote('/'.join(parts))}?)"
    if len(parts) == 1 and any(path[:2] == ("results", parts[0]) for path in known):
        return f" (one stage and its report: --config 'only=[{parts[0]}]')"
    unknown = parts[depth] if depth < len(parts) else ""
    matches = difflib.get_close_matches(unknown, [name.rstrip("/") for name in allowed], 1, MIN_SIMILARITY)
    return f" (did you mean {'/'.join([*parts[:depth], *matches, *parts[depth + 1 :]])}?)" if matches else ""


def _with_prefix(paths: Sequence[tuple[str, ...]], start: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [path for path in paths if path[: len(start)] == start]


def _count(totals: Mapping[str, int], is_counted: Callable[[str], bool]) -> int:
    return sum(count for rule, count in totals.items() if is_counted(rule))


def _jobs(jobs: Mapping[int, Job], is_counted: Callable[[str], bool]) -> int:
    return sum(is_counted(job.rule) for job in jobs.values())
