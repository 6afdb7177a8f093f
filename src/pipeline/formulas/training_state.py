"""The training state (parameters, gradients, AdamW's moments) and how many devices can hold it plus activations."""

import math
from dataclasses import dataclass

from pipeline.formulas.units import FP32_BYTES

ADAMW_MOMENTS = 2
KINDS = ("parameters", "gradients", "optimizer_state")


@dataclass(frozen=True)
class TrainingState:
    """The bytes that a training step keeps in fp32 from one step to the next."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int

    @property
    def total_bytes(self) -> int:
        """Add up weights, gradients and optimizer state: 16P."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes


def training_state(parameters: int) -> TrainingState:
    """Count the bytes of fp32 weights, gradients and AdamW's two moments: 4, 4 and 8 per parameter.

    Mixed precision with fp32 master weights and accumulated gradients has the same state.
    """
    each = FP32_BYTES * parameters
    return TrainingState(weights_bytes=each, gradients_bytes=each, optimizer_bytes=ADAMW_MOMENTS * each)


def devices_to_hold(total_bytes: float, device_bytes: float) -> int:
    """Count the devices needed for their combined memory to hold `total_bytes`."""
    return math.ceil(total_bytes / device_bytes)


@dataclass(frozen=True)
class Sharded:
    """A training run on N devices: `sharded_bytes` are divided among them, each holds all of the `replicated_bytes`."""

    sharded_bytes: float
    replicated_bytes: float

    def bytes_per_device(self, num_devices: int) -> float:
        """Count the bytes on each of N devices."""
        return self.sharded_bytes / num_devices + self.replicated_bytes

    def least_devices(self, device_bytes: float) -> int | None:
        """Find the least N for which each device holds less than `device_bytes`; None if there is none.

        From sharded / N + replicated < M follows N > sharded / (M − replicated).
        """
        left_bytes = device_bytes - self.replicated_bytes
        return math.floor(self.sharded_bytes / left_bytes) + 1 if left_bytes > 0 else None
