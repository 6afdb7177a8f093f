"""Peaks of a device: from its datasheet, or measured with large matrix products and copies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
DATASHEET_DTYPES = (*PRECISIONS, "fp8")

# Dense rates in TFLOP/s, never the doubled ones of structured sparsity, by the name that the driver reports.
# fp32 is the rate without tensor cores. GB/s: memory bandwidth, in 10^9 bytes/s, reads and writes together. Sources:
# NVIDIA's datasheets of the V100, A100, L4, L40S and H200, the whitepaper of the H100 and the datasheet of HGX B200 (an
# eighth of its values); AMD's datasheet of the MI300X.
_V100_SXM2 = {"fp32": 15.7, "fp16": 125.0, "GB/s": 900.0}
_A100 = {"fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0}
_H100_SXM = {"fp32": 66.9, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9}
_DATASHEETS: dict[str, dict[str, float]] = {
    "Tesla V100-SXM2-16GB": _V100_SXM2,
    "Tesla V100-SXM2-32GB": _V100_SXM2,
    "NVIDIA A100-SXM4-40GB": _A100 | {"GB/s": 1555.0},
    "NVIDIA A100-SXM4-80GB": _A100 | {"GB/s": 2039.0},
    "NVIDIA A100-PCIE-40GB": _A100 | {"GB/s": 1555.0},
    "NVIDIA A100 80GB PCIe": _A100 | {"GB/s": 1935.0},
    "NVIDIA H100 80GB HBM3": _H100_SXM | {"GB/s": 3352.0},
    "NVIDIA H100 PCIe": {"fp32": 51.2, "tf32": 378.0, "bf16": 756.0, "fp16": 756.0, "fp8": 1513.0, "GB/s": 2039.0},
    "NVIDIA H200": _H100_SXM | {"GB/s": 4800.0},
    "NVIDIA L40S": {"fp32": 91.6, "tf32": 183.0, "bf16": 362.0, "fp16": 362.0, "fp8": 733.0, "GB/s": 864.0},
    "NVIDIA L4": {"fp32": 30.3, "tf32": 60.0, "bf16": 121.0, "fp16": 121.0, "fp8": 242.5, "GB/s": 300.0},
    "NVIDIA B200": {"fp32": 75.0, "tf32": 1125.0, "bf16": 2250.0, "fp16": 2250.0, "fp8": 4500.0, "GB/s": 8000.0},
    "AMD Instinct MI300X": {
        **{"fp32": 163.4, "tf32": 653.7, "bf16": 1307.4, "fp16": 1307.4, "fp8": 2614.9},
        "GB/s": 5300.0,
    },
}

# Large enough to fill the device, small enough that a slow one needs well under a second for all of them.
_GPU_SIZE, _GPU_SAMPLES = 8192, 10
_CPU_SIZES, _CPU_SAMPLES = (1024, 512, 256, 128), 5
_CPU_PRODUCT_MS = 100.0
# Bytes of a copy: more than the caches hold.
_GPU_COPIED, _CPU_COPIED = 2**29, 2**27


def peak_to_measure(device: torch.device | str, precision: str) -> float | None:
    """Measure the peak of a torch device in TFLOP/s; return None if its datasheet is known.

    Raises ValueError for an unknown precision.
    """
    import torch

    device = torch.device(device)
    if device.type == "cuda" and datasheet_peak_tflops(torch.cuda.get_device_name(device), precision) is not None:
        return None
    return measured_peak_tflops(device, precision)


def datasheet_peak_tflops(gpu_name: str, dtype: str) -> float | None:
    """Look up a GPU's dense datasheet rate in TFLOP/s by its exact name; None if it is not known.

    Raises ValueError for an unknown dtype.
    """
    if dtype not in DATASHEET_DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}: one of {', '.join(DATASHEET_DTYPES)}")
    return _DATASHEETS.get(gpu_name, {}).get(dtype)


def datasheet_gb_per_s(gpu_name: str) -> float | None:
    """Look up a GPU's datasheet memory bandwidth in 10^9 bytes/s by its exact name; None if it is not known."""
    return _DATASHEETS.get(gpu_name, {}).get("GB/s")


def bandwidth_to_measure(device: torch.device | str) -> float | None:
    """Measure the memory bandwidth of a torch device in 10^9 bytes/s; return None if its datasheet is known.

    The best of a few large copies counts, read and written bytes together.
    """
    import torch

    device = torch.device(device)
    on_gpu = device.type == "cuda"
    if on_gpu and datasheet_gb_per_s(torch.cuda.get_device_name(device)) is not None:
        return None
    source = torch.ones(_GPU_COPIED if on_gpu else _CPU_COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * source.nbytes / min(_times_ms(lambda: target.copy_(source), on_gpu)) / 1e6


def measured_peak_tflops(device: torch.device | str, precision: str) -> float:
    """Measure the best rate of a few large square matrix products, in TFLOP/s.

    Operands are seeded normal random numbers: zeros draw less power, so the GPU would clock higher. On a CPU it is the
    rate of the threads that torch is set to use. Raises ValueError for an unknown precision.
    """
    import torch

    from pipeline.tf32 import float32_products

    if precision not in PRECISIONS:
        raise ValueError(f"unknown precision {precision!r}: one of {', '.join(PRECISIONS)}")
    device = torch.device(device)
    on_gpu = device.type == "cuda"
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    with float32_products(tf32=precision == "tf32"):
        size = _GPU_SIZE if on_gpu else _cpu_size(dtype)
        products = _products(size, dtype, device)
        for multiply in products:
            _times_ms(multiply, on_gpu)  # warm-up: libraries load, clocks rise
        best_ms = min(min(_times_ms(multiply, on_gpu)) for multiply in products)
    return 2 * size**3 / (best_ms * 1e-3) / 1e12


def _products(size: int, dtype: torch.dtype, device: torch.device) -> list[Callable[[], object]]:
    """Return calls that multiply two square matrices of this size; on a CPU also with either of them transposed.

    A CPU without bf16 instructions is 15 times as fast if one is transposed, as the weights of a linear layer are.
    """
    import torch

    generator = torch.Generator(device).manual_seed(0)
    left, right = torch.randn(2, size, size, generator=generator, device=device).to(dtype)
    pairs = [(left, right)] if device.type == "cuda" else [(left, right), (left, right.T), (left.T, right)]
    return [partial(torch.mm, *pair, out=torch.empty_like(left)) for pair in pairs]


def _cpu_size(dtype: torch.dtype) -> int:
    """Return the largest size that multiplies quickly: a CPU that lacks bf16 may take 100 times as long for it."""
    import torch

    smallest = min(_CPU_SIZES)
    time_ms = max(min(_times_ms(each, on_gpu=False)) for each in _products(smallest, dtype, torch.device("cpu")))
    short = [size for size in _CPU_SIZES if time_ms * (size / smallest) ** 3 <= _CPU_PRODUCT_MS]
    return max(short, default=smallest)


def _times_ms(call: Callable[[], object], on_gpu: bool) -> list[float]:
    """Return the milliseconds of each of a few back-to-back calls, so that no launch gap falls between two events."""
    if on_gpu:
        import torch

        events = [torch.cuda.Event(enable_timing=True) for _ in range(_GPU_SAMPLES + 1)]
        events[0].record()
        for event in events[1:]:
            call()
            event.record()
        events[-1].synchronize()
        return [start.elapsed_time(end) for start, end in pairwise(events)]
    moments_s = [perf_counter()]
    for _ in range(_CPU_SAMPLES):
        call()
        moments_s.append(perf_counter())
    return [(end - start) * 1e3 for start, end in pairwise(moments_s)]
