"""Measure one rank of a cell: rates, then each way in turn: check it, log its traffic, time it, and last profile it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from pipeline.formulas.sizes import SIZES
from pipeline.instruments.machine.ceilings import DTYPES, Ceiling, measure_ceiling
from pipeline.instruments.machine.pinning import pinned
from pipeline.instruments.memory.rank_memory import begin_anew, peak_bytes_over_ranks, reset_peak
from pipeline.instruments.profilers.budget import budget
from pipeline.instruments.profilers.collective_traffic import Collective, CollectiveLog
from pipeline.instruments.profilers.gpu_busy import GpuBusy, profile_work, summarise_work
from pipeline.instruments.sampling.bursts import time_burst_ms
from pipeline.instruments.sampling.rank_timing import max_over_ranks, time_steps_over_ranks
from pipeline.instruments.sampling.step_timing import Sampling, StopRule
from pipeline.instruments.sampling.variants import turns
from pipeline.instruments.sampling.weight_differences import Sample, sample
from pipeline.parallel.processes.starting import RankContext
from pipeline.stages.tensor_parallel.cell import Cell, Settings
from pipeline.stages.tensor_parallel.steps import Step, build_whole, phases
from pipeline.stages.tensor_parallel.ways import divided, fsdp_ranks, mean_loss

RATE_SAMPLES, BURST_CALLS = 10, 5
LOSS_SHARE = 0.1  # of the gradients' tolerance
Reference = tuple[Tensor, Sample]  # loss and gradients of one process


@dataclass(frozen=True)
class Correctness:
    """A way's loss, and its relative errors against one process; the gradient error is the worst parameter's."""

    loss: float
    loss_error: float
    gradient_error: float
    worst_parameter: str

    def complaint(self, tolerance: float) -> str:
        """Return what is further off than the tolerance, or an empty string."""
        if not self.loss_error <= LOSS_SHARE * tolerance:
            return f"the loss is off by {self.loss_error:.2g} of one process', allowed is {LOSS_SHARE * tolerance:g}"
        if not self.gradient_error <= tolerance:
            return (
                f"the gradient of {self.worst_parameter} is off by {self.gradient_error:.2g}, allowed is {tolerance:g}"
            )
        return ""


@dataclass
class Result:
    """Results of one way's turns; bytes are the fullest rank's, times the slowest's, the budget the first's."""

    correctness: Correctness | None = None
    samplings: list[Sampling] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    peak_bytes: int | None = None
    busy: GpuBusy | None = None
    budget: list[dict[str, Any]] = field(default_factory=list)

    def complaint(self, settings: Settings, cell: Cell) -> str:
        """Return what is further off from one process than the tolerance, or an empty string."""
        assert self.correctness is not None  # set in the first turn
        return self.correctness.complaint(settings.tolerance(cell.precision))


@dataclass(frozen=True)
class Found:
    """Results of a cell's ranks: the rates of the machine, and the result of each way."""

    rates: list[dict[str, Any]]
    results: list[Result]
    pinned_core: int | None


def measure_rank(context: RankContext, cell: Cell, settings: Settings, impls: Sequence[str]) -> Found:
    """Measure ways in turn on one rank; wrong ones are not timed. Each turn frees its step."""
    device, results = context.device, {impl: Result() for impl in impls}
    dist.barrier()  # so that threads started by the first collective are not pinned
    with pinned(device, context.rank, context.world_size) as core:
        rates = measure_rates(context, cell, settings)
        reference = gradients_of(build_whole(cell, settings, device))
        for impl, is_first_turn in turns(impls, settings.rounds):
            _turn(impl, results[impl], reference if is_first_turn else None, cell, settings, device)
        for impl, result in results.items():
            _profile(impl, result, cell, settings, device)
    return Found(rates, list(results.values()), core)


def measure_rates(context: RankContext, cell: Cell, settings: Settings) -> list[dict[str, Any]]:
    """Time a large product, on all ranks at once, and all-reduces as large as the activations and a block's weights."""
    dtype, size = DTYPES[cell.precision], SIZES[cell.size]
    rule = StopRule(RATE_SAMPLES, RATE_SAMPLES, 0.0, inf)
    ceiling = Ceiling("matmul", settings.matmul_side, cell.precision)
    products = measure_ceiling(ceiling, context.device, rule).taken["matmul"]
    if products.out_of_memory:
        raise torch.OutOfMemoryError(products.out_of_memory)
    matrices = 2 * size.d_model * (size.attention_width + size.kv_width) + 3 * size.d_model * size.d_ff
    elements = {"activations": cell.batch_size * cell.context_length * size.d_model, "weights": matrices}
    sent = [
        {
            "rate": f"allreduce_{what}",
            "size_bytes": count * dtype.itemsize,
            "samples_ms": _all_reduce_ms(torch.ones(count, dtype=dtype, device=context.device), context),
        }
        for what, count in elements.items()
    ]
    samples_ms = next(iter(products.times_ms.values()))
    return [{"rate": "matmul", "side": settings.matmul_side, "samples_ms": samples_ms}, *sent]


def _all_reduce_ms(tensor: Tensor, context: RankContext) -> list[float]:
    def burst_ms() -> float:
        dist.barrier()
        return time_burst_ms(partial(dist.all_reduce, tensor), context.device, BURST_CALLS)

    return list(max_over_ranks({n: burst_ms() for n in range(RATE_SAMPLES)}, context.device).values())


def check(step: Step, cell: Cell, reference: Reference, num_fsdp_ranks: int) -> Correctness:
    """Compare a way's loss and gradients with those of one process. A collective."""
    (loss, gradients), (one_loss, one_gradients) = gradients_of(step), reference
    mean = mean_loss(loss, step, cell, num_fsdp_ranks)
    errors = max_over_ranks(relative_errors(gradients, one_gradients), loss.device)
    worst = max(errors, key=lambda name: errors[name])
    return Correctness(mean, abs(mean / one_loss.item() - 1), errors[worst], worst)


def _turn(
    impl: str, result: Result, reference: Reference | None, cell: Cell, settings: Settings, device: torch.device
) -> None:
    """Time steps of a way; with a reference, given in its first turn, check the way against that first."""
    begin_anew(device)
    with divided(impl, cell, settings, device) as step:
        if reference is not None:
            result.correctness = check(step, cell, reference, fsdp_ranks(impl, device))
            with CollectiveLog() as log:
                step.run()
            result.collectives = [call for call in log.calls if call.dtype.is_floating_point]
        if not result.complaint(settings, cell):
            reset_peak(device)
            result.samplings.append(time_steps_over_ranks(phases(step), device, settings.warmup_steps, settings.steps))
            result.peak_bytes = peak_bytes_over_ranks(device)


def _profile(impl: str, result: Result, cell: Cell, settings: Settings, device: torch.device) -> None:
    """Profile what a GPU does in warm steps."""
    if device.type != "cuda" or result.complaint(settings, cell):
        return
    begin_anew(device)
    with divided(impl, cell, settings, device) as step:
        for _ in range(settings.warmup_steps):
            step.run()
        works, walls_ms = profile_work(step.run, device, steps=3)
    if any(map(len, works)):
        result.busy = summarise_work(works, walls_ms)
        result.budget = budget(works[-1], walls_ms[-1])


def gradients_of(step: Step) -> tuple[Tensor, Sample]:
    """Run a step's forward and backward pass; return this rank's loss, and samples of every full gradient.

    A collective if gradients are divided.
    """
    loss = step.forward().detach()
    step.backward()
    found: Sample = {}
    for name, parameter in step.model.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, f"{name} has no gradient"
        # One by one: all full gradients together may not fit into memory.
        found |= sample({name: gradient.full_tensor() if isinstance(gradient, DTensor) else gradient})
    step.discard()
    return loss, found


def relative_errors(found: Sample, reference: Sample) -> dict[str, float]:
    """Return for each parameter the norm of the difference over the reference's norm; infinite instead of NaN."""
    errors = {name: (found[name] - each).norm() / each.norm() for name, each in reference.items()}
    return {name: error.nan_to_num(nan=inf).item() for name, error in errors.items()}
