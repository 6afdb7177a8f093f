"""How much memory training takes: the state of mixed precision, activations, and how many devices hold them."""

import math
from dataclasses import dataclass

from pipeline.formulas.flops import FP32_BYTES

GB, GIB = 10**9, 2**30


@dataclass(frozen=True)
class TrainingState:
    """The bytes of what a training step keeps in fp32 from one step to the next."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int

    @property
    def total_bytes(self) -> int:
        """Add up weights, gradients and optimizer state."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes


def training_state(parameters: int) -> TrainingState:
    """Count the bytes of master weights, accumulated gradients and AdamW's two moments: 4, 4 and 8 a parameter."""
    each = FP32_BYTES * parameters
    return TrainingState(weights_bytes=each, gradients_bytes=each, optimizer_bytes=2 * each)


def devices_to_hold(total_bytes: float, device_bytes: float) -> int:
    """Count the devices whose memory together holds so many bytes."""
    return math.ceil(total_bytes / device_bytes)


@dataclass(frozen=True)
class Sharded:
    """A training run over N devices: all of the state is sharded, and a share of the activations.

    The rest of the activations stands whole on every device: (state + share·A) / N + (1 − share)·A bytes on each.
    """

    state_bytes: int
    activation_bytes: int
    sharded_share: float

    def bytes_per_device(self, num_devices: int) -> float:
        """Count the bytes on each of N devices."""
        return self._sharded_bytes / num_devices + self._whole_bytes

    def least_devices(self, device_bytes: float) -> int | None:
        """Find the least N whose devices each hold less than so many bytes; None where no N is enough.

        From (state + share·A) / N + (1 − share)·A < M follows N > (state + share·A) / (M − (1 − share)·A).
        """
        room_bytes = device_bytes - self._whole_bytes
        return math.floor(self._sharded_bytes / room_bytes) + 1 if room_bytes > 0 else None

    @property
    def _sharded_bytes(self) -> float:
        return self.state_bytes + self.sharded_share * self.activation_bytes

    @property
    def _whole_bytes(self) -> float:
        return (1 - self.sharded_share) * self.activation_bytes
