"""Make room between two things that are measured one after the other in the same process."""

import gc

import torch


def make_room(device: torch.device) -> None:
    """Free what nothing refers to any more, in Python and on the device, and begin the device's peak anew.

    What is alive after the collection is never looked at again: the modules of torch alone would take a collection half
    a second each time.
    """
    gc.collect()
    gc.freeze()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
