"""Compare weights after the same training steps, between ways to train and between the ranks of one way."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.instruments.sampling.rank_timing import max_over_ranks

Sample = dict[str, Tensor]

# Largest difference that rounding may make between ways to average gradients, by precision. With two ranks there is
# only one order to sum in; with more, AdamW passes the rounding of small gradients on to the weights, and bf16 matmuls
# spread it.
TOLERANCE = {"fp32": 1e-5, "bf16": 1e-3}
# As a share of how far a parameter has moved. AdamW moves a weight as far for a small gradient as for a large one: a
# relative rounding error r of the gradients changes about √r of a step, 3e-4 in fp32, and further steps make that
# tenfold. Gradients that are not averaged change about half of each step.
SHARE_TOLERANCE = 0.05
# Copying a whole large model to the host and back takes seconds, and a copy on the device would count as its memory.
SAMPLES_A_PARAMETER = 2**16


@dataclass(frozen=True)
class Differences:
    """How far the weights of one way differ after its steps; None if they were not compared.

    between_ranks, from_reference: the largest absolute difference of a weight. parameter: the one that differs most
    between ranks. share: the distance of a parameter from the reference's, over how far the reference's has moved, by
    norm, for the parameter where this is largest; off: that parameter.
    """

    between_ranks: float | None = None
    parameter: str = ""
    from_reference: float | None = None
    share: float | None = None
    off: str = ""

    def complaint(self, precision: str, same_gradients: bool = False) -> str:
        """Say what differs by more than rounding explains; "" if nothing does.

        same_gradients: whether this way and the reference average gradients in the same way. If they do not, rounding
        in bf16 separates them in twenty steps as far as wrong gradients would, so the comparison says nothing.
        """
        if self.between_ranks is not None and not self.between_ranks <= TOLERANCE[precision]:
            return (
                f"after the timed steps {self.parameter} differs between ranks by {self.between_ranks:.2g}, allowed is "
                f"{TOLERANCE[precision]:g}"
            )
        is_judged = same_gradients or precision == "fp32"
        if is_judged and self.share is not None and not self.share <= SHARE_TOLERANCE:
            return (
                f"after the timed steps {self.off} is off by {self.share:.0%} of how far the reference moved it, "
                f"allowed is {SHARE_TOLERANCE:.0%}"
            )
        return ""


class Comparison:
    """The weights of a reference before and after its steps, to compare those of other ways with.

    The reference is the first way for which `begin` is called.
    """

    def __init__(self) -> None:
        self._start: Sample = {}
        self._end: Sample = {}

    def begin(self, weights: Callable[[], Mapping[str, Tensor]]) -> None:
        """Record the weights that all ways start from; `weights` is only called the first time."""
        self._start = self._start or sample(weights())

    def differences(self, weights: Mapping[str, Tensor], device: torch.device) -> Differences:
        """Compare the weights of a way after its steps; every rank must call it."""
        parameter, between_ranks = difference_between_ranks(weights, device)
        if not self._start:
            return Differences(between_ranks, parameter)
        found = sample(weights)
        self._end = self._end or found
        apart = {name: found[name] - end for name, end in self._end.items()}
        shares = {
            name: _number(apart[name].norm() / (end - self._start[name]).norm()) if apart[name].any() else 0.0
            for name, end in self._end.items()
        }
        off = max(shares, key=lambda name: shares[name])
        largest = max(_number(each.abs().max()) for each in apart.values())
        return Differences(between_ranks, parameter, largest, shares[off], off)


def named(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of a model by name, without the prefix "module." that a wrapper adds."""
    return {name.removeprefix("module."): weight.detach() for name, weight in model.named_parameters()}


def sample(weights: Mapping[str, Tensor]) -> Sample:
    """Copy weights of every parameter to the CPU: all of a small one, evenly spaced ones of a large one."""
    strides = {name: -(-weight.numel() // SAMPLES_A_PARAMETER) for name, weight in weights.items()}
    return {
        name: weight.detach().flatten()[:: strides[name]].to("cpu", torch.float32, copy=True)
        for name, weight in weights.items()
    }


@torch.no_grad()
def difference_between_ranks(weights: Mapping[str, Tensor], device: torch.device) -> tuple[str, float]:
    """Return the parameter with the largest absolute difference from rank 0's weights on any rank, and the difference.

    Every rank must call it, with the same parameter names.
    """
    largest = []
    for name in sorted(weights):
        own = weights[name].to(device)
        first = own.clone(memory_format=torch.contiguous_format)
        dist.broadcast(first, src=0)
        largest.append((own - first).abs().max().nan_to_num(nan=float("inf")))
    # Read all at once: otherwise the host would wait for the device for each.
    over_ranks = max_over_ranks(dict(zip(sorted(weights), torch.stack(largest).tolist(), strict=True)), device)
    parameter = max(over_ranks, key=lambda name: over_ranks[name])
    return parameter, over_ranks[parameter]


def _number(value: Tensor) -> float:
    """Return the value as a float, infinity instead of NaN."""
    return value.nan_to_num(nan=float("inf")).item()
