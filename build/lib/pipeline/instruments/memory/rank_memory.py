"""Device memory of ranks that train together: begin anew, and the peak of the fullest."""

import time

import torch
import torch.distributed as dist

from pipeline.instruments.memory.freed_memory import make_room
from pipeline.instruments.sampling.rank_timing import max_over_ranks

# NCCL's process group checks for finished collectives every tenth of a second.
WATCHED_WITHIN_S = 0.3


def begin_anew(device: torch.device) -> None:
    """Free on every rank what nothing refers to any more, and begin the device's peak anew. A collective.

    If the host did not wait for a collective, as in PyTorch's DDP, NCCL's process group keeps its tensors until the
    watchdog has seen the end and another collective starts (`shelvesToUnstash_` in ProcessGroupNCCL). They would count
    as memory of what is measured next.
    """
    if device.type == "cuda":
        time.sleep(WATCHED_WITHIN_S)
    dist.barrier()
    make_room(device)


def reset_peak(device: torch.device) -> None:
    """Begin the peak of a GPU's memory anew."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes_over_ranks(device: torch.device) -> int | None:
    """Return the peak of allocated bytes on any rank; None on a CPU, whose allocator does not count. A collective."""
    if device.type != "cuda":
        return None
    return int(max_over_ranks({"peak": torch.cuda.max_memory_allocated(device)}, device)["peak"])
