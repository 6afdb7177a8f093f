"""How far errors against float64 may lie above those of the plain way before a result is wrong."""

from typing import NamedTuple

# TF32 has 10 bits of fraction. In it multiply a Triton kernel's fp32 products where nobody asks for more.
TF32_EPS = 2.0**-10
FINE_EPS = 2.0**-20  # of fp32 numbers that are summed in another order
# Of an update of fp32 weights. AdamW divides by the root of 1 - 0.999 at its first step. Where the count of steps is on
# the GPU, as when it is compiled, that difference is taken in fp32, and updates on an H200 are off by 2.3e-5.
STEP_EPS = 2.0**-16


class Limit(NamedTuple):
    """What an error may be: so many times that of the plain way, or so many units of rounding, whichever is more."""

    words: str
    times: float
    units: float

    def allowed(self, plain: float, eps: float) -> float:
        """Return the largest error that is still right; eps: the unit of rounding."""
        return max(self.times * plain, self.units * eps)


LIMITS = (Limit("a relative error", 3, 2), Limit("an error somewhere", 4, 16))


def far_off(what: str, error: tuple[float, float], plain: tuple[float, float], eps: float, beside: str) -> str | None:
    """Say which error, relative (L2) or largest, is above its limit, or NaN; None where none is.

    plain: the errors that `beside`, in words, has.
    """
    for limit, found, usual in zip(LIMITS, error, plain, strict=True):
        allowed = limit.allowed(usual, eps)
        if not found <= allowed:  # nor where it is NaN
            return f"{what} has {limit.words} of {found:.2g}, {beside} {usual:.2g}, allowed is {allowed:.2g}"
    return None
