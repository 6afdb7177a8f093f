"""Peaks of a device: what its datasheet promises, or what a large matrix product reaches."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
DATASHEET_DTYPES = (*PRECISIONS, "fp8")

# Dense rates in TFLOP/s, never the doubled ones of structured sparsity, by the name that the driver prints.
# fp32 is the rate without tensor cores. Sources: NVIDIA's datasheets of the V100, A100, L4, L40S and H200, the
# whitepaper of the H100 and the datasheet of HGX B200 (an eighth of its figures); AMD's datasheet of the MI300X.
_V100_SXM2 = {"fp32": 15.7, "fp16": 125.0}
_A100 = {"fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0}
_H100_SXM = {"fp32": 66.9, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9}
_DATASHEET_TFLOPS: dict[str, dict[str, float]] = {
    "Tesla V100-SXM2-16GB": _V100_SXM2,
    "Tesla V100-SXM2-32GB": _V100_SXM2,
    "NVIDIA A100-SXM4-40GB": _A100,
    "NVIDIA A100-SXM4-80GB": _A100,
    "NVIDIA A100-PCIE-40GB": _A100,
    "NVIDIA A100 80GB PCIe": _A100,
    "NVIDIA H100 80GB HBM3": _H100_SXM,
    "NVIDIA H100 PCIe": {"fp32": 51.2, "tf32": 378.0, "bf16": 756.0, "fp16": 756.0, "fp8": 1513.0},
    "NVIDIA H200": _H100_SXM,
    "NVIDIA L40S": {"fp32": 91.6, "tf32": 183.0, "bf16": 362.0, "fp16": 362.0, "fp8": 733.0},
    "NVIDIA L4": {"fp32": 30.3, "tf32": 60.0, "bf16": 121.0, "fp16": 121.0, "fp8": 242.5},
    "NVIDIA B200": {"fp32": 75.0, "tf32": 1125.0, "bf16": 2250.0, "fp16": 2250.0, "fp8": 4500.0},
    "AMD Instinct MI300X": {"fp32": 163.4, "tf32": 653.7, "bf16": 1307.4, "fp16": 1307.4, "fp8": 2614.9},
}
# Memory bandwidth in 10^9 bytes/s, reads and writes together. From the same sources.
_DATASHEET_GB_PER_S: dict[str, float] = {
    "Tesla V100-SXM2-16GB": 900.0,
    "Tesla V100-SXM2-32GB": 900.0,
    "NVIDIA A100-SXM4-40GB": 1555.0,
    "NVIDIA A100-SXM4-80GB": 2039.0,
    "NVIDIA A100-PCIE-40GB": 1555.0,
    "NVIDIA A100 80GB PCIe": 1935.0,
    "NVIDIA H100 80GB HBM3": 3352.0,
    "NVIDIA H100 PCIe": 2039.0,
    "NVIDIA H200": 4800.0,
    "NVIDIA L40S": 864.0,
    "NVIDIA L4": 300.0,
    "NVIDIA B200": 8000.0,
    "AMD Instinct MI300X": 5300.0,
}

# Large enough to fill the device, small enough that a slow one needs well under a second for all of them.
_GPU_SIZE, _GPU_SAMPLES = 8192, 10
_CPU_SIZES, _CPU_SAMPLES = (1024, 512, 256, 128), 5
_CPU_PRODUCT_MS = 100.0
# Bytes of a copy: more than caches hold.
_GPU_COPIED, _CPU_COPIED = 2**29, 2**27


def peak_to_measure(device: torch.device | str, precision: str) -> float | None:
    """Measure the peak of a torch device in TFLOP/s where no data sheet is known for it, else None.

    Raises ValueError for an unknown precision.
    """
    import torch

    device = torch.device(device)
    if device.type == "cuda" and datasheet_peak_tflops(torch.cuda.get_device_name(device), precision) is not None:
        return None
    return measured_peak_tflops(device, precision)


def datasheet_peak_tflops(gpu_name: str, dtype: str) -> float | None:
    """Look up a GPU's dense datasheet rate in TFLOP/s by its exact name; None where it is not known.

    Raises ValueError for an unknown dtype.
    """
    if dtype not in DATASHEET_DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}: one of {', '.join(DATASHEET_DTYPES)}")
    return _DATASHEET_TFLOPS.get(gpu_name, {}).get(dtype)


def datasheet_gb_per_s(gpu_name: str) -> float | None:
    """Look up a GPU's datasheet memory bandwidth in 10^9 bytes/s by its exact name; None where it is not known."""
    return _DATASHEET_GB_PER_S.get(gpu_name)


def bandwidth_to_measure(device: torch.device | str) -> float | None:
    """Measure the memory bandwidth of a torch device in 10^9 bytes/s where no data sheet is known for it, else None.

    That of the best of a few large copies, read and written bytes together.
    """
    import torch

    device = torch.device(device)
    on_gpu = device.type == "cuda"
    if on_gpu and datasheet_gb_per_s(torch.cuda.get_device_name(device)) is not None:
        return None
    source = torch.ones(_GPU_COPIED if on_gpu else _CPU_COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    samples, time_ms = (_GPU_SAMPLES, _gpu_times_ms) if on_gpu else (_CPU_SAMPLES, _host_times_ms)

    def copy() -> None:
        target.copy_(source)

    copy()
    return 2 * source.nbytes / min(time_ms(copy, samples)) / 1e6


def measured_peak_tflops(device: torch.device | str, precision: str) -> float:
    """Measure the best rate of a few large square matrix products, in TFLOP/s.

    Operands are seeded normal random numbers: zeros draw less power, and clock higher. On a CPU it is the rate
    of the threads that torch is set to use. Raises ValueError for an unknown precision.
    """
    import torch

    from pipeline.tf32 import float32_products

    _check_precision(precision)
    device = torch.device(device)
    on_gpu = device.type == "cuda"
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    samples, time_products_ms = (_GPU_SAMPLES, _gpu_times_ms) if on_gpu else (_CPU_SAMPLES, _host_times_ms)
    with float32_products(tf32=precision == "tf32"):
        size = _GPU_SIZE if on_gpu else _cpu_size(dtype)
        multiply = _product(size, dtype, device)
        time_products_ms(multiply, samples)  # warm-up: libraries load, clocks rise
        best_ms = min(time_products_ms(multiply, samples))
    return 2 * size**3 / (best_ms * 1e-3) / 1e12


def _check_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        raise ValueError(f"unknown precision {precision!r}: one of {', '.join(PRECISIONS)}")


def _product(size: int, dtype: torch.dtype, device: torch.device) -> Callable[[], None]:
    """Return a call that multiplies two square matrices of this size."""
    import torch

    generator = torch.Generator(device).manual_seed(0)
    left, right = torch.randn(2, size, size, generator=generator, device=device).to(dtype)
    product = torch.empty_like(left)

    def multiply() -> None:
        torch.mm(left, right, out=product)

    return multiply


def _cpu_size(dtype: torch.dtype) -> int:
    """Return the largest size whose product takes little time: bf16 may take a CPU that lacks it 100 times as long."""
    import torch

    smallest = min(_CPU_SIZES)
    time_ms = min(_host_times_ms(_product(smallest, dtype, torch.device("cpu")), _CPU_SAMPLES))
    short = [size for size in _CPU_SIZES if time_ms * (size / smallest) ** 3 <= _CPU_PRODUCT_MS]
    return max(short, default=smallest)


def _gpu_times_ms(multiply: Callable[[], None], samples: int) -> list[float]:
    import torch

    # Queued back to back, so that no launch gap falls between two events.
    events = [torch.cuda.Event(enable_timing=True) for _ in range(samples + 1)]
    events[0].record()
    for event in events[1:]:
        multiply()
        event.record()
    events[-1].synchronize()
    return [start.elapsed_time(end) for start, end in pairwise(events)]


def _host_times_ms(multiply: Callable[[], None], samples: int) -> list[float]:
    moments_s = [perf_counter()]
    for _ in range(samples):
        multiply()
        moments_s.append(perf_counter())
    return [(end - start) * 1e3 for start, end in pairwise(moments_s)]
