"""Ways to train that share state out over ranks: what each holds, sends and takes, beside the others of its cell."""

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import pandas as pd
from matplotlib.figure import Figure as Drawing

from pipeline.report import side_by_side
from pipeline.report.figures import new_figure, shared_legend, stamp, style_for
from pipeline.report.outcomes import WORTH_IT
from pipeline.report.page_parts import MOST_TABLE_ROWS, Table
from pipeline.report.section import count, data_size, percent
from pipeline.report.side_by_side import MOST_APART, is_as_timed, step_words, text_cells, without_empty
from pipeline.report.tables import median_cells, significant

PANELS_A_LINE = 2
ROOM = 1.12  # beside the furthest marker


class Run(side_by_side.Run):
    """One cell whose rows measure time, memory (`kind`) and traffic; every table has one row per way.

    KINDS: the kinds of memory that are held after a step.
    """

    KINDS: ClassVar[tuple[str, ...]]

    @cached_property
    def memory(self) -> pd.DataFrame:
        """The bytes of each kind, and peaks, in a warm step."""
        return self.rows[self.rows["measures"] == "memory"]

    @property
    def held_bytes(self) -> pd.DataFrame:
        """The bytes of each of KINDS after a warm step."""
        held = self.memory[self.memory["kind"].isin(self.KINDS)]
        return held.pivot(columns="kind", values="measured_bytes").reindex(columns=self.KINDS)

    @property
    def peak_bytes(self) -> pd.DataFrame:
        """The peak of a warm step, columns measured and predicted; none on a CPU."""
        peaks = self.memory[self.memory["kind"] == "peak"].groupby(level=0, sort=False)
        return peaks[["measured_bytes", "predicted_bytes"]].max().set_axis(["measured", "predicted"], axis="columns")

    @property
    def sent_bytes(self) -> pd.DataFrame:
        """The least bytes that a rank sends a step, by collective."""
        traffic = self.rows[self.rows["measures"] == "traffic"]
        return traffic.pivot(columns="collective", values="sent_bytes")

    @property
    def exact(self) -> bool:
        """Tell whether all bytes held and sent are those predicted, where there is a prediction."""
        counted = self.rows[self.rows["kind"].isin(self.KINDS) | (self.rows["measures"] == "traffic")]
        counted = counted.dropna(subset="predicted_bytes")
        return bool((counted["measured_bytes"] == counted["predicted_bytes"]).all())

    def fullest_bytes(self, way: str) -> float | None:
        """Return a way's peak, on a CPU what it holds after a step; None if it has no figure."""
        found = self.peak_bytes["measured"].get(way, self.held_bytes.sum(axis=1).get(way))
        return None if found is None else float(found)

    def takes(self, way: str) -> str:
        """Say what a way takes in time and memory."""
        size, time = self.fullest_bytes(way), f"takes {step_words(self.steps.loc[way])} a step"
        if size is None:
            return time
        return f"{time} and {'peaks at' if way in self.peak_bytes.index else 'holds'} {data_size(size)}"


def other_precisions(measured: Sequence[Run], lead: Run, ways: Sequence[str]) -> str:
    """Say what each of these ways takes in the first run of each precision but that of `lead`."""
    return " ".join(answer(run, ways) for run in _first_of_each_precision(measured) if run.precision != lead.precision)


def answer(run: Run, ways: Sequence[str]) -> str:
    """Say what each of these ways takes, of those that were measured."""
    takes = "; ".join(f"{way} {run.takes(way)}" for way in ways if way in run.steps.index)
    return f"{run.setup}: {takes}."


def table(measured: Sequence[Run], what: str) -> Table:
    """Write one row per way, under the title `what`, for the first run of each precision."""
    lines = [_lines(run, what) for run in _first_of_each_precision(measured)]
    title = "Median step [quartiles]; what the fullest rank holds after it, its peak, and what a rank sends a step:"
    return Table(title, without_empty(pd.concat(lines, ignore_index=True)).head(MOST_TABLE_ROWS))


def _first_of_each_precision(measured: Sequence[Run]) -> list[Run]:
    first = {run.precision: run for run in reversed(measured)}
    return [run for run in measured if run is first[run.precision]]


def _lines(run: Run, what: str) -> pd.DataFrame:
    ways = run.whole.index
    return pd.DataFrame(
        {
            "setup": run.name,
            what: ways,
            "step (ms)": list(median_cells(run.whole)),
            "exposed (ms)": text_cells(_exposed_ms(run.whole), significant, ways),
            "held": text_cells(run.held_bytes.sum(axis=1), data_size, ways),
            "peak": text_cells(run.peak_bytes["measured"], data_size, ways),
            "predicted peak": text_cells(run.peak_bytes["predicted"], data_size, ways),
            "sent": text_cells(run.sent_bytes.sum(axis=1), data_size, ways),
        }
    )


def _exposed_ms(steps: pd.DataFrame) -> pd.Series:
    """Return the exposed communication of steps of which the profiled ones took about as long as the timed ones."""
    return steps["exposed_communication_ms"].where(is_as_timed(steps["profiled_ms"], steps["median_ms"]))


def method(measured: Sequence[Run]) -> str:
    """Say how bytes and times were taken."""
    steps = pd.concat([run.steps for run in measured])
    exposed = ""
    if steps["exposed_communication_ms"].any():
        exposed = (
            " Exposed: time of profiled steps in which only collectives ran, where these take as long as timed ones "
            f"within {percent(MOST_APART)}; what else collectives slow down is not in it."
        )
    peak = "; the peak is the allocator's" if any(len(run.peak_bytes) for run in measured) else ""
    return (
        f"Held: parameters, gradients and optimizer state, tensor by tensor{peak}."
        f"{exposed} {count(steps['n'].max())} steps of each are timed, each the slowest rank's, by the host clock."
    )


def saved(measured: Sequence[Run], base: str, others: Sequence[str]) -> str:
    """Say what is saved by the first run that clearly saves memory, or in which the base does not fit; else nothing."""
    for run in measured:
        peaks, too_large = run.peak_bytes["measured"], run.whole["status"].get(base) == "oom"
        better = [way for way in others if way in peaks]
        better = [way for way in better if too_large or peaks.get(base, 0) >= WORTH_IT * peaks[way]]
        if better:
            full = f"{base} {'runs out of memory' if too_large else run.takes(base)}"
            shared = "; ".join(f"{way} {run.takes(way)}" for way in better)
            return f"{run.setup}: {full}; {shared}."
    return ""


def time_and_memory(runs: Sequence[Run], impls: dict[str, str]) -> Drawing:
    """Draw the memory of the fullest rank over the time of a step, one marker per way, one panel per run.

    impls: the words of each way by the name that gives its style.
    """
    lines = -(-len(runs) // PANELS_A_LINE)
    figure, panels = new_figure(lines, min(PANELS_A_LINE, len(runs)), panel_height_in=3.0)
    for axes in panels.flat[len(runs) :]:
        axes.set_visible(False)
    for axes, run in zip(panels.flat, runs, strict=False):
        for impl, way in impls.items():
            size = run.fullest_bytes(way)
            if size is not None and way in run.steps.index:
                look = {**style_for(impl), "linestyle": "", "markersize": 9}
                axes.plot(run.steps.loc[way, "median_ms"], size / 1e9, label=way, **look)
        axes.set_xlim(0, ROOM * run.steps["median_ms"].max())
        axes.set_ylim(0, ROOM * max((run.fullest_bytes(way) or 0 for way in run.steps.index), default=0) / 1e9 or 1)
        axes.set_title(run.name, loc="left")
        axes.set_xlabel("step (ms)")
    for axes in panels[:, 0]:
        axes.set_ylabel(f"{'peak' if len(runs[0].peak_bytes) else 'held after a step'} (GB)")
    shared_legend(figure)
    stamp(figure, pd.concat([run.steps for run in runs]), shown="medians")
    return figure
