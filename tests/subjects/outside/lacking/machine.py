"""Attention that fails because the machine or the process lacks something."""

import os
import signal

import torch

from pipeline.errors import Skipped


class TooSmallMachine(Skipped):
    """An exception type that other processes cannot import."""


def driver(q, k, v, is_causal):
    raise RuntimeError("Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU")


def memory(q, k, v, is_causal):
    return torch.empty(2**60, dtype=torch.uint8)


def memory_for_threads(q, k, v, is_causal):
    raise OSError(12, "Cannot allocate memory")


def killed(q, k, v, is_causal):
    os.kill(os.getpid(), signal.SIGKILL)


def too_small(q, k, v, is_causal):
    raise TooSmallMachine("needs a larger machine")


def interface(module):
    raise RuntimeError(
        "[enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: eth7"
    )
