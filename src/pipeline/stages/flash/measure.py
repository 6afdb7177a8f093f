"""Measure a flash cell: all implementations, interleaved, including the user's own."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from pipeline.instruments.machine.peaks import peak_to_measure
from pipeline.instruments.memory.out_of_memory import attempt
from pipeline.instruments.sampling.interleaving import Taken, Work, interleave
from pipeline.instruments.sampling.kernel_timing import latency_sampler
from pipeline.instruments.sampling.side_by_side import Key, Row, SideBySide
from pipeline.instruments.sampling.step_timing import StopRule
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.instruments.sampling.summary import quartiles
from pipeline.stages.flash import implementations
from pipeline.stages.flash.cell import PHASES, SUSTAINED, Cell, Settings
from pipeline.stages.flash.problem import TORCH_DTYPES, AttentionProblem

if TYPE_CHECKING:
    from pipeline.instruments.sampling.sustained import Sustained
    from pipeline.parallel.processes.starting import RankContext
    from pipeline.subjects.checking import Verdict
    from pipeline.subjects.naming import Subject
    from pipeline.subjects.turns import Turns

LATENCY_RULE = StopRule(min_samples=5, max_samples=50, rel_error=0.01, budget_s=0.06)


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch, subjects: Sequence["Subject"] = ()) -> list[Row]:
    """Return a row for each implementation and phase; if one fails, the others are still measured.

    The user's own are checked first; those that pass are measured in a separate process, which they may crash.
    """
    with stopwatch.measuring():
        if not subjects:
            return _measure_together(cell, settings, {})
        from pipeline.subjects.attention_check import check_attention, lengths_like
        from pipeline.subjects.measuring import measure_in_turns

        of_cell = cell.head_dim, cell.is_causal, lengths_like(cell.seq_len), cell.query_heads_per_kv_head
        check, keys = (check_attention, TORCH_DTYPES[cell.dtype], *of_cell), [{"phase": phase} for phase in PHASES]
        return measure_in_turns(subjects, check, _measure_beside, (cell, settings), settings, keys)


def _measure_beside(
    _context: "RankContext", own: Mapping["Subject", "Verdict"], turns: "Turns", cell: Cell, settings: Settings
) -> list[Row]:
    """Measure the user's own together with the others.

    With GQA, they get fewer key/value heads if they are correct with these. Otherwise they get copies, which count in
    their time as they do in a model; their rows say so.
    """
    from pipeline.subjects.loading import attention_of

    built = {}
    for subject, verdict in own.items():
        with turns.of(subject.name):
            attend = attention_of(subject, verdict.way, cell.is_causal, cell.query_heads_per_kv_head)
        built[subject.name] = implementations.Implementation(attend, within=partial(turns.of, subject.name))
    return _measure_together(cell, settings, built)


def _measure_together(cell: Cell, settings: Settings, own: Mapping[str, implementations.Implementation]) -> list[Row]:
    """Measure all implementations in this process; own: the user's, by name."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    problem = AttentionProblem(cell, device)
    builds: dict[str, Callable[[], implementations.Implementation]] = {
        name: partial(implementations.build, name, cell.shape, device)
        for name in implementations.names(cell, device, settings.tiles)
    }
    builds |= {name: partial(lambda built: built, built) for name, built in own.items()}
    found = SideBySide(problem, builds, settings, {name: built.within for name, built in own.items()})
    timed = found.time()
    latencies = _latencies(found.works, found.slow, device)
    held = _held(cell, found.works, timed.taken, settings, device)
    shared = _peak_columns(cell, device) | _choice_columns(cell, problem)
    found.judge_again()
    return found.rows(
        timed, lambda key: _sustained_columns(held.get(key)) | shared | _latency_columns(latencies.get(key))
    )


def _latencies(works: Mapping[Key, Work], slow: Collection[Key], device: torch.device) -> dict[Key, Taken]:
    """Time single calls, except slow ones, by the host clock; {} on a CPU, whose samples are single calls already."""
    if device.type == "cpu":
        return {}
    quick = {key: work for key, work in works.items() if key not in slow}
    return interleave(quick, latency_sampler(device), dict.fromkeys(quick, LATENCY_RULE), warmup=0).taken


def _held(
    cell: Cell, works: Mapping[Key, Work], taken: Mapping[Key, Taken], settings: Settings, device: torch.device
) -> dict[Key, "Sustained"]:
    """Run SUSTAINED back to back, last because it heats the GPU; works that ran out of memory are left out."""
    if device.type == "cpu" or cell.num_heads == 1 or not settings.sustained_s:
        return {}
    from pipeline.instruments.sampling.sustained import hold

    found = {}
    for key in SUSTAINED:
        if key in works and taken[key].out_of_memory is None:
            call_ms = quartiles(taken[key].times_ms["device"])[1]
            found[key], _reason = attempt(hold, works[key], call_ms, settings.sustained_s)
    return {key: sustained for key, sustained in found.items() if sustained is not None}


def _peak_columns(cell: Cell, device: torch.device) -> Row:
    """Measure the peak rate at this precision if no data sheet is known; for fp32 on tensor cores, also TF32's."""
    columns: Row = {"measured_peak_tflops_per_s": peak_to_measure(device, cell.dtype)}
    if cell.dtype == "fp32" and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        columns["measured_tf32_peak_tflops_per_s"] = peak_to_measure(device, "tf32")
    return columns


def _choice_columns(cell: Cell, problem: AttentionProblem) -> Row:
    """Return the backend that SDPA chooses by itself; nothing on a CPU, where the backends are not measured."""
    if problem.device.type == "cpu":
        return {}
    return {"sdpa_choice": implementations.chosen_by_sdpa(*problem.qkv, cell.shape)}


def _sustained_columns(held: "Sustained | None") -> Row:
    return {} if held is None else {"sustained_ms": held.median_ms, "sustained_sm_clock_mhz": held.sm_clock_mhz}


def _latency_columns(taken: Taken | None) -> dict[str, Any]:
    """Return median and quartiles of a single call until it returns (enqueue) and until its work is done (call)."""
    if taken is None or taken.out_of_memory:
        return {}
    return {
        f"{statistic}_{name}_ms": value
        for name, samples_ms in taken.times_ms.items()
        for statistic, value in zip(("q1", "median", "q3"), quartiles(samples_ms), strict=True)
    }
