"""Predict the rounding, stall, value and error of a running sum from unit roundoff, without torch.

A binary floating-point format with p significand bits (including the implicit one) holds in the binade
[2^e, 2^(e+1)) the multiples of a spacing 2^(e-p+1). Rounding to nearest errs by at most half a spacing, relative to
the value by at most u = 2^-p (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, ch. 2).
Ties go to the even multiple (IEEE 754). Python's floats have 53 bits, enough to hold exactly every value and sum of two
values that appears here.
"""

import math
import sys
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: significand bits including the implicit one, and exponents of normal numbers."""

    name: str
    significand_bits: int
    min_exponent: int
    max_exponent: int

    @property
    def unit_roundoff(self) -> float:
        """The largest relative error of rounding to nearest: u = 2^-p."""
        return 2.0**-self.significand_bits

    @property
    def overflow_threshold(self) -> float:
        """The smallest number that rounds to infinity: half a spacing above the largest finite one."""
        return (2 - self.unit_roundoff) * 2.0**self.max_exponent

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number: the spacing of all numbers below twice the smallest normal one."""
        return 2.0 ** (self.min_exponent - self.significand_bits + 1)

    def spacing(self, value: float) -> float:
        """Return the distance from a value to the next larger number of the format."""
        return max(math.ulp(value) * 2.0 ** (sys.float_info.mant_dig - self.significand_bits), self.smallest_subnormal)

    def rounded(self, value: float) -> float:
        """Return the nearest number of the format, ties to even, or an infinity."""
        if abs(value) >= self.overflow_threshold:
            return math.copysign(math.inf, value)
        spacing = self.spacing(value)
        return round(value / spacing) * spacing


FORMATS = {
    number_format.name: number_format
    for number_format in (
        Format("fp32", significand_bits=24, min_exponent=-126, max_exponent=127),
        Format("fp16", significand_bits=11, min_exponent=-14, max_exponent=15),
        Format("bf16", significand_bits=8, min_exponent=-126, max_exponent=127),
    )
}


def stall(addend: float, accumulator: Format) -> float:
    """Return the sum at which a running sum from 0 stops changing when `addend`, 0 or more, is added.

    The sum s stays if the addend is below half the spacing at s, or exactly half and s is the even neighbour. In the
    binade before, the addend is between half a spacing and a whole one, so every step adds one spacing and the sum
    meets the edge of the next binade: s = 2^(ceil(log2 addend) + p).

    Returns 0 if the addend is lost at once, infinity if the sum overflows first.
    """
    if addend <= accumulator.smallest_subnormal / 2:
        return 0.0
    return accumulator.rounded(2.0 ** (math.ceil(math.log2(addend)) + accumulator.significand_bits))


@cache
def running_sum(addend: float, steps: int, accumulator: Format) -> tuple[float, int | None]:
    """Return a running sum from 0 after `steps` steps, and the step after which it stays; None if it grows to the end.

    Each addition is rounded to the nearest number of the format, past the largest one to infinity.
    """
    total = 0.0
    for step in range(steps):
        following = accumulator.rounded(total + addend)
        if following == total:
            return total, step
        total = following
    return total, None


def rounding_error_bound(addend: float, steps: int, accumulator: Format) -> float:
    """Return the largest possible difference of a running sum from the exact sum of the same addends.

    n * u * (sum of |addends|) after any number n of additions. Source: S. M. Rump, Error estimation of floating-point
    summation and dot product, BIT Numerical Mathematics 52, 2012.
    """
    return steps * accumulator.unit_roundoff * steps * abs(addend)
