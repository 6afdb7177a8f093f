"""Split a profiled step of a rank into a computation lane and a communication lane, and measure their overlap."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

from pipeline.compat.torch_private import profiler_events
from pipeline.instruments.profilers.intervals import overlap_us, span_us, union_us, united, work_of
from pipeline.instruments.sampling.step_timing import synchronize

# On a GPU every kernel and copy is an event, and NCCL's are recognised by name. On a CPU, operators compute; a
# collective runs under its backend's name on one of the backend's threads, and c10d's operators only start it.
COMMUNICATION = r"nccl|rccl|gloo:"
COMPUTATION_ON_CPU = r"aten::"
# A lane is stored as its busy share in this many equal parts of the step: a figure cannot show thousands of events.
PARTS = 400


@dataclass(frozen=True)
class Lanes:
    """The two kinds of work of one step: tables of start_us and duration_us."""

    computation: pd.DataFrame
    communication: pd.DataFrame

    def columns(self) -> dict[str, Any]:
        """Return the times for a row, and for each lane its busy share (%) in each of `PARTS` parts of the step.

        A rank waits while it communicates and computes nothing. computation_ms and communication_ms are times in
        which at least one event ran; hidden_ms is the time in which both ran: computation + communication − their
        union.
        """
        return {
            **self._lane("computation", self.computation),
            **self._lane("communication", self.communication),
            "hidden_ms": overlap_us(self.computation, self.communication) / 1e3,
            "waiting_busy_pct": self._waiting_pct(),
        }

    def columns_by_collective(self, patterns: Mapping[str, str]) -> dict[str, Any]:
        """Return times and busy shares of the computation and, for each pattern, of the collectives whose names match.

        A pattern called gather gives gather_ms, gather_exposed_ms (nothing computed meanwhile) and gather_busy_pct.
        """
        columns = {**self._lane("computation", self.computation), "waiting_busy_pct": self._waiting_pct()}
        for name, pattern in patterns.items():
            events = self.communication[self.communication["name"].str.contains(pattern, case=False)]
            columns |= {**self._lane(name, events), f"{name}_exposed_ms": self._exposed_ms(events)}
        return columns

    def each(self, name: str, pattern: str) -> dict[str, list[float]]:
        """Return the time and the exposed time of each collective whose name matches, in order of start."""
        events = self.communication[self.communication["name"].str.contains(pattern, case=False)]
        alone = [events.loc[[place]] for place in events.sort_values("start_us").index]
        return {
            f"each_{name}_ms": [union_us(event) / 1e3 for event in alone],
            f"each_{name}_exposed_ms": [self._exposed_ms(event) for event in alone],
        }

    def _exposed_ms(self, events: pd.DataFrame) -> float:
        return max(0.0, round(union_us(events) - overlap_us(self.computation, events), 3)) / 1e3

    def _waiting_pct(self) -> list[int]:
        either = self._lane("either", pd.concat([self.computation, self.communication]))["either_busy_pct"]
        computing = self._lane("computation", self.computation)["computation_busy_pct"]
        return [max(0, busy - computes) for busy, computes in zip(either, computing, strict=True)]

    def _lane(self, name: str, events: pd.DataFrame) -> dict[str, Any]:
        both = pd.concat([self.computation, self.communication])
        busy_pct = _busy_pct(events, both["start_us"].min(), span_us(both))
        return {"span_ms": span_us(both) / 1e3, f"{name}_ms": union_us(events) / 1e3, f"{name}_busy_pct": busy_pct}


def capture_step(
    step: Callable[[], object], device: torch.device, listen: bool, file: Path | None = None
) -> Lanes | None:
    """Run a step twice on every rank; with `listen`, return the second as a profiler saw it, else None.

    On a GPU only GPU events are recorded: recording every operator on the host would slow down the launches. The
    first step is the profiler's warm-up. file: where to save the second for Perfetto, as .json.gz. A collective:
    every rank of the default process group must call it.
    """
    activity = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
    plan = schedule(wait=0, warmup=1, active=1, repeat=1)
    with profile(activities=[activity], schedule=plan) if listen else nullcontext() as profiler:
        step()
        dist.barrier()
        synchronize(device)
        if profiler is not None:
            profiler.step()
        step()
        synchronize(device)
    if profiler is None:
        return None
    if file is not None:
        profiler.export_chrome_trace(str(file))
    return lanes(profiler_events(profiler), device.type)


def lanes(events: Iterable[Any], device_type: str) -> Lanes:
    """Separate computation from communication by the names of Kineto's events.

    On a CPU, gloo's collectives are named ranges; on a GPU, named ranges are not work.
    """
    on_gpu = device_type == "cuda"
    work = work_of(events, on_gpu)
    communicates = work["name"].str.match(COMMUNICATION).astype(bool)
    computes = ~communicates if on_gpu else work["name"].str.match(COMPUTATION_ON_CPU).astype(bool)
    return Lanes(work[computes], work[communicates])


def _busy_pct(events: pd.DataFrame, begin_us: float, span_us: float) -> list[int]:
    """Cut a span into `PARTS` and return, for each, the share (%) in which at least one event ran."""
    if events.empty:
        return [0] * PARTS
    starts, ends = united(events)
    busy_after = np.cumsum(ends - starts)
    busy_before = busy_after - (ends - starts)
    edges = begin_us + span_us * np.arange(PARTS + 1) / PARTS
    busy_until = np.interp(edges, np.ravel([starts, ends], "F"), np.ravel([busy_before, busy_after], "F"))
    return [round(100 * share) for share in np.diff(busy_until) / (span_us / PARTS)]
