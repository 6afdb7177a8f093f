"""Measure a tensor_parallel cell: each way to divide a step over ranks, and the rates behind the predictions."""

from collections.abc import Sequence
from dataclasses import asdict

from pipeline.formulas.sizes import SIZES
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.instruments.sampling.variants import step_rows
from pipeline.stages.tensor_parallel.cell import COLLECTIVES, IMPLS, TENSOR_RANKS, WHOLE_STEP, Cell, Settings
from pipeline.stages.tensor_parallel.ranks import Found, Result, measure_rank
from pipeline.ways.measure import traffic_rows
from pipeline.ways.ranks import Row, ranks_on, run_on_ranks, together_or_apart


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch) -> list[Row]:
    """Return rows of times, bytes sent, work by kind and rates; impossible ways are skipped with the reason."""
    _, device_type = ranks_on()
    reasons = {impl: why_not(impl, cell, device_type) for impl in IMPLS[cell.what]}
    possible = [impl for impl, reason in reasons.items() if not reason]
    founds: list[Found] = []

    def measured(impls: Sequence[str]) -> list[Result]:
        founds.append(run_on_ranks(measure_rank, cell, settings, impls))
        return founds[-1].results

    with stopwatch.measuring():
        results = dict(zip(possible, together_or_apart(measured, possible), strict=True))
    rows: list[Row] = [
        {"impl": impl, **WHOLE_STEP, "status": "skipped", "reason": reason}
        for impl, reason in reasons.items()
        if reason
    ]
    rows += [{"measures": "rate", "status": "ok", **rate} for found in founds[:1] for rate in found.rates]
    core = founds[0].pinned_core if founds else None
    return rows + [row for impl, result in results.items() for row in rows_of(impl, result, cell, settings, core)]


def why_not(impl: str, cell: Cell, device_type: str) -> str:
    """Return in one line why a way cannot run on the cell's ranks, or an empty string if it can."""
    ranks, size = cell.world_size, SIZES[cell.size]
    tensor_ranks = {"tensor": ranks, "sequence": ranks, "fsdp_tensor": TENSOR_RANKS}.get(impl, 1)
    shares = {"fsdp": ranks, "fsdp_tensor": ranks // TENSOR_RANKS}.get(impl, 1)
    if impl == "fsdp_tensor" and (ranks < 2 * TENSOR_RANKS or ranks % TENSOR_RANKS):
        return f"needs 4 ranks or a larger even number, has {ranks}"
    for what, number in (("heads of keys", size.kv_width // size.head_dim), ("d_ff", size.d_ff)):
        if number % tensor_ranks:
            return f"{number} {what} cannot be divided among {tensor_ranks} ranks"
    if cell.batch_size % shares:
        return f"{cell.batch_size} sequences cannot be divided among {shares} ranks"
    if impl == "sequence" and cell.context_length % ranks:
        return f"{cell.context_length} tokens cannot be divided among {ranks} ranks"
    if impl == "context" and device_type != "cuda":
        return "torch's context parallelism has no kernels for a CPU"
    if impl == "context" and cell.context_length % (2 * ranks):
        return f"{cell.context_length} tokens cannot be divided into two parts for each of {ranks} ranks"
    return ""


def rows_of(impl: str, result: Result | Row, cell: Cell, settings: Settings, core: int | None) -> list[Row]:
    """Make the rows of one way from its result, or from its outcome if it has no result."""
    whole = {"impl": impl, **WHOLE_STEP}
    if isinstance(result, dict):
        return [whole | result]
    assert result.correctness is not None  # set in the first turn
    checked = asdict(result.correctness)
    if complaint := result.complaint(settings, cell):
        return [{**whole, "status": "wrong", "reason": complaint, **checked}]
    of_whole = {**checked, "peak_bytes": result.peak_bytes}
    rows = [
        {"measures": "time", "pinned_core": core, **row, **(of_whole if _is_whole(row) else {})}
        for row in step_rows(result.samplings, result.busy)
    ]
    rows += traffic_rows(result.collectives, COLLECTIVES)
    rows += [{"measures": "budget", "status": "ok", **item} for item in result.budget]
    return [{"impl": impl, **row} for row in rows]


def _is_whole(row: Row) -> bool:
    return all(row[name] == WHOLE_STEP[name] for name in ("phase", "clock"))
