"""Describe a GPU: all that decides its kernels and tiles in the Triton attention, and whether it gets any."""

import functools
from dataclasses import dataclass
from typing import Literal

import torch

from pipeline.compat.triton_private import is_interpreted, shared_bytes_of

KIB = 1024
HOPPER = (9, 0)
# On older ones Triton does not use the tensor cores: thousands of spills in a loop.
LEAST_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class Gpu:
    """A GPU, or Triton's interpreter in its place; shared_bytes: the most shared memory a program may use."""

    name: str
    vendor: Literal["nvidia", "amd", "interpreter"]
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int

    @property
    def is_hopper_or_later(self) -> bool:
        """Tell whether it can launch a kernel while the previous one still runs."""
        return self.vendor == "nvidia" and self.capability >= HOPPER

    @property
    def has_descriptors(self) -> bool:
        """Tell whether blocks are loaded through tensor descriptors, which the interpreter supports too.

        Not on 12.x, whose tensor cores read registers: there the kernels would spill.
        """
        return self.vendor == "interpreter" or (self.is_hopper_or_later and self.capability < (12, 0))

    @property
    def why_refused(self) -> str | None:
        """Return one line on why it gets no kernels, or None if it gets some."""
        if self.vendor != "nvidia" or self.capability >= LEAST_CAPABILITY:
            return None
        has, least = (".".join(map(str, capability)) for capability in (self.capability, LEAST_CAPABILITY))
        return (
            f"{self.name} has compute capability {has}, the Triton attention needs {least}: "
            "use torch.nn.functional.scaled_dot_product_attention"
        )


INTERPRETER = Gpu("Triton's interpreter", "interpreter", (0, 0), multiprocessors=1, shared_bytes=227 * KIB)


def gpu_of(device: torch.device) -> Gpu:
    """Return the description of a device; without an index, of the current GPU.

    Raises ValueError if Triton cannot run on it.
    """
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return _gpu_of(device)


@functools.cache
def _gpu_of(device: torch.device) -> Gpu:
    if is_interpreted():
        return INTERPRETER
    if device.type != "cuda":
        raise ValueError(f"inputs are on {device}: Triton's kernels need a GPU")
    properties = torch.cuda.get_device_properties(device)
    return Gpu(
        properties.name,
        "nvidia" if torch.version.hip is None else "amd",
        (properties.major, properties.minor),
        properties.multi_processor_count,
        shared_bytes_of(device.index),
    )
