"""Measure a machine's peak rates of matmul, memory and links, and the cost of a launch and of an operator.

Each ceiling is one call on its own tensors, timed alone: kernels by device time with the L2 cache flushed, copies
within that cache in bursts, single launches, operators and copies between GPUs by the host clock.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.errors import Skipped
from pipeline.instruments.memory.out_of_memory import free_memory
from pipeline.instruments.sampling.bursts import time_burst_ms
from pipeline.instruments.sampling.interleaving import Interleaving, Sample, Sampler, Work, interleave
from pipeline.instruments.sampling.kernel_timing import host_sampler, kernel_sampler, latency_sampler
from pipeline.instruments.sampling.step_timing import StopRule, collections_off, synchronize
from pipeline.tf32 import float32_products

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
}
# The lowest compute capability whose tensor cores support the dtype; for NVIDIA only, not checked under ROCm.
LEAST_CAPABILITY = {"tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9)}
BURST_CALLS, BURST_OPERATORS = 20, 1000
WARMUP = 3


@dataclass(frozen=True)
class Ceiling:
    """One thing to measure: a call that computes (FLOPs) or moves data (bytes read and written).

    size: the side of square matrices for `matmul`, else the bytes of a tensor; dtype only for `matmul`.
    """

    kind: str
    size: int
    dtype: str | None = None

    @property
    def flops(self) -> int:
        """Return the floating-point operations of a call: two per multiply-add."""
        return 2 * self.size**3 if self.kind == "matmul" else 0

    @property
    def moved_bytes(self) -> int:
        """Return the bytes a call moves: a copy within a memory reads and writes them, a link passes them once."""
        copies = {"copy": 2, "l2_copy": 2, "reduction": 1, "to_device": 1, "to_host": 1, "to_peer": 1}
        return copies.get(self.kind, 0) * self.size

    def tflops_per_s(self, time_ms: float) -> float:
        """Return the rate in TFLOP/s (10^12 FLOPs a second) of a call that takes this long."""
        return self.flops / time_ms / 1e9

    def gb_per_s(self, time_ms: float) -> float:
        """Return the rate in GB/s (10^9 bytes a second) of a call that takes this long."""
        return self.moved_bytes / time_ms / 1e6


def measure_ceiling(ceiling: Ceiling, device: torch.device, rule: StopRule) -> Interleaving[str]:
    """Sample one ceiling's call in ms until the rule ends it, with the GPU's state; free its memory afterwards.

    Raises Skipped with the reason if the device does not support it. If the call does not fit into memory,
    `out_of_memory` is set.
    """
    lack = missing(ceiling, device)
    if lack is not None:
        raise Skipped(lack)
    try:
        return _interleaved(ceiling, device, rule)
    finally:
        free_memory()


def _interleaved(ceiling: Ceiling, device: torch.device, rule: StopRule) -> Interleaving[str]:
    call, sampler = _CALLS[ceiling.kind](ceiling, device), _SAMPLERS.get(ceiling.kind, kernel_sampler)(device)
    work = Work(lambda _argument: call(), within=partial(_precision, ceiling.dtype))
    return interleave({ceiling.kind: work}, sampler, {ceiling.kind: rule}, WARMUP)


def missing(ceiling: Ceiling, device: torch.device) -> str | None:
    """Say what the device lacks for this ceiling; None if it can be measured."""
    if device.type != "cuda":
        if ceiling.kind not in ("matmul", "copy", "reduction", "operator"):
            return f"{ceiling.kind} needs a GPU"
        return f"{ceiling.dtype} needs a GPU" if ceiling.dtype in ("tf32", "fp16", "fp8") else None
    least = LEAST_CAPABILITY.get(ceiling.dtype or "")
    if least and torch.version.hip is None and torch.cuda.get_device_capability(device) < least:
        return f"{ceiling.dtype} needs a GPU of compute capability {least[0]}.{least[1]}"
    if ceiling.kind == "to_peer" and torch.cuda.device_count() < 2:
        return "to_peer needs two GPUs"
    return None


def _precision(dtype: str | None) -> AbstractContextManager[Any]:
    return nullcontext() if dtype is None else float32_products(tf32=dtype == "tf32")


def _matmul(ceiling: Ceiling, device: torch.device) -> Callable[[], Tensor]:
    dtype = DTYPES[ceiling.dtype or "fp32"]
    # Normally distributed numbers: zeros draw less power, so the GPU would clock higher.
    generator = torch.Generator(device).manual_seed(0)
    left, right = torch.randn(2, ceiling.size, ceiling.size, generator=generator, device=device).to(dtype)
    if ceiling.dtype != "fp8":
        return partial(torch.mm, left, right)
    one, whole = torch.ones((), device=device), functional.ScalingType.TensorWise
    # The second matrix is column-major, as the tensor cores read it.
    return partial(functional.scaled_mm, left, right.t(), one, whole, one, whole, use_fast_accum=True)


def _ones(ceiling: Ceiling, device: torch.device | str, **options: Any) -> Tensor:
    return torch.ones(ceiling.size // 4, dtype=torch.float32, device=device, **options)


def _copy(ceiling: Ceiling, device: torch.device) -> Callable[[], Tensor]:
    source = _ones(ceiling, device)
    return partial(torch.empty_like(source).copy_, source)


def _reduction(ceiling: Ceiling, device: torch.device) -> Callable[[], Tensor]:
    return _ones(ceiling, device).sum


def _to_device(ceiling: Ceiling, device: torch.device) -> Callable[[], Tensor]:
    source = _ones(ceiling, "cpu").pin_memory()
    return partial(torch.empty_like(source, device=device).copy_, source, non_blocking=True)


def _to_host(ceiling: Ceiling, device: torch.device) -> Callable[[], Tensor]:
    source = _ones(ceiling, device)
    return partial(torch.empty(source.shape, pin_memory=True).copy_, source, non_blocking=True)


def _to_peer(ceiling: Ceiling, device: torch.device) -> Callable[[], Tensor]:
    peer = torch.device("cuda", ((device.index or 0) + 1) % torch.cuda.device_count())
    source = _ones(ceiling, device)
    return partial(torch.empty_like(source, device=peer).copy_, source, non_blocking=True)


def _operator(ceiling: Ceiling, device: torch.device) -> Callable[[], Tensor]:
    """Return an operator on so few numbers that only the host's time counts."""
    return partial(_ones(ceiling, device).add_, 1)


_CALLS: dict[str, Callable[[Ceiling, torch.device], Callable[[], Tensor]]] = {
    "matmul": _matmul,
    "copy": _copy,
    "l2_copy": _copy,
    "reduction": _reduction,
    "to_device": _to_device,
    "to_host": _to_host,
    "to_peer": _to_peer,
    "launch": _operator,  # timed until the device is done
    "operator": _operator,  # the host's time per call among many
}


def _burst_sampler(device: torch.device) -> Sampler:
    """Return a sampler that times a call among many back to back, so that its data stay in the cache."""

    def sample(work: Work) -> Sample:
        with work.within():
            return Sample({"device": time_burst_ms(partial(work.call, None), device, BURST_CALLS)})

    return sample


def _operator_sampler(device: torch.device) -> Sampler:
    """Return a sampler of the host's time per call over many calls, without waiting for the device."""

    def sample(work: Work) -> Sample:
        synchronize(device)
        with work.within(), collections_off():
            started = time.perf_counter()
            for _ in range(BURST_OPERATORS):
                work.call(None)
            taken_ms = (time.perf_counter() - started) * 1e3
        synchronize(device)
        return Sample({"host": taken_ms / BURST_OPERATORS})

    return sample


_SAMPLERS: dict[str, Callable[[torch.device], Sampler]] = {
    "l2_copy": _burst_sampler,
    "launch": latency_sampler,
    "operator": _operator_sampler,
    "to_peer": host_sampler,  # two devices: an event on one does not tell when the other is done
}
