"""Device memory of ranks that train together: free it, reset its peak, and read the peak of the fullest rank."""

import time

import torch
import torch.distributed as dist

from pipeline.instruments.memory.freed_memory import make_room
from pipeline.instruments.sampling.rank_timing import max_over_ranks

# NCCL's process group checks for finished collectives every tenth of a second.
WATCHED_WITHIN_S = 0.3


def begin_anew(device: torch.device) -> None:
    """Free unreferenced memory on every rank, and reset the device's peak. A collective.

    If the host did not wait for a collective, as in PyTorch's DDP, NCCL's process group keeps its tensors until the
    watchdog has seen it end and another collective starts (`shelvesToUnstash_` in ProcessGroupNCCL). They would count
    as memory of the next measurement.
    """
    if device.type == "cuda":
        time.sleep(WATCHED_WITHIN_S)
    dist.barrier()
    make_room(device)


def reset_peak(device: torch.device) -> None:
    """Reset the peak of a GPU's memory; does nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes_over_ranks(device: torch.device) -> int | None:
    """Return the highest peak of allocated bytes over the ranks; None on a CPU, where none is kept. A collective."""
    if device.type != "cuda":
        return None
    return int(max_over_ranks({"peak": torch.cuda.max_memory_allocated(device)}, device)["peak"])
