"""How far the weights of ways to train, or of one way's ranks, are apart after the same training steps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.instruments.sampling.rank_timing import max_over_ranks

Sample = dict[str, Tensor]

# Largest difference that rounding may make between ways to average gradients, by precision. Two ranks have one sum and
# no order; with more, AdamW passes the rounding of small gradients on to the weights, and bf16 products carry it on.
TOLERANCE = {"fp32": 1e-5, "bf16": 1e-3}
# Of how far a parameter has moved. AdamW moves a weight as far by a small gradient as by a large one: rounding of a
# share r of the gradients turns about √r of the steps, 3e-4 in fp32, which further steps make tenfold. Gradients that
# are not averaged turn about half of each step.
SHARE_TOLERANCE = 0.05
# A whole copy of a large model takes seconds to the host and back, and on the device it would count as its memory.
SAMPLES_A_PARAMETER = 2**16


@dataclass(frozen=True)
class Differences:
    """How far the weights of one way are apart after its steps; None where they were not compared.

    between_ranks, from_reference: the largest absolute difference of a weight. share: how far a parameter is from the
    reference's over how far that one has moved, by norm, of the parameter furthest off. parameter: the one that is
    furthest apart between ranks; off: from the reference, by its share.
    """

    between_ranks: float | None = None
    parameter: str = ""
    from_reference: float | None = None
    share: float | None = None
    off: str = ""

    def complaint(self, precision: str, same_gradients: bool = False) -> str:
        """Say what is further apart than rounding explains; nothing where all is well.

        same_gradients: whether this way and the reference average gradients alike. If they do not, rounding in bf16
        parts them in twenty steps as far as other gradients would, so that the reference tells nothing.
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
    """The weights of a reference before and after its steps, with which those of other ways are compared.

    The reference is the first way for which `begin` is called.
    """

    def __init__(self) -> None:
        self._start: Sample = {}
        self._end: Sample = {}

    def begin(self, weights: Callable[[], Mapping[str, Tensor]]) -> None:
        """Note the weights from which all ways begin; they are asked for once."""
        self._start = self._start or sample(weights())

    def differences(self, weights: Mapping[str, Tensor], device: torch.device) -> Differences:
        """Compare the weights of a way after its steps; every rank calls it."""
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
    """Return the parameters of a model by name; of one in a wrapper by the names that they have in the model."""
    return {name.removeprefix("module."): weight.detach() for name, weight in model.named_parameters()}


def sample(weights: Mapping[str, Tensor]) -> Sample:
    """Copy weights of every parameter to the CPU: all of a small one, of a large one evenly spaced."""
    strides = {name: -(-weight.numel() // SAMPLES_A_PARAMETER) for name, weight in weights.items()}
    return {
        name: weight.detach().flatten()[:: strides[name]].to("cpu", torch.float32, copy=True)
        for name, weight in weights.items()
    }


@torch.no_grad()
def difference_between_ranks(weights: Mapping[str, Tensor], device: torch.device) -> tuple[str, float]:
    """Return the parameter with the largest absolute difference of a weight from rank 0's, over all ranks, and that.

    Every rank calls it, with parameters of the same names.
    """
    largest = []
    for name in sorted(weights):
        own = weights[name].to(device)
        first = own.clone(memory_format=torch.contiguous_format)
        dist.broadcast(first, src=0)
        largest.append((own - first).abs().max().nan_to_num(nan=float("inf")))
    # Read once: to read each would have the host wait for the device each time.
    over_ranks = max_over_ranks(dict(zip(sorted(weights), torch.stack(largest).tolist(), strict=True)), device)
    parameter = max(over_ranks, key=lambda name: over_ranks[name])
    return parameter, over_ranks[parameter]


def _number(value: Tensor) -> float:
    """Return a number that is infinite rather than none."""
    return value.nan_to_num(nan=float("inf")).item()
