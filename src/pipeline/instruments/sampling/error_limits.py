"""How far errors against float64 may exceed those of the plain way before a result is wrong."""

from typing import NamedTuple

# TF32 has 10 fraction bits. Triton kernels multiply fp32 in TF32 unless asked for more.
TF32_EPS = 2.0**-10
FINE_EPS = 2.0**-20  # for fp32 numbers summed in another order
# For updates of fp32 weights. At its first step AdamW divides by the root of 1 - 0.999. If the step count is on the
# GPU, as when compiled, that difference is computed in fp32, and updates on an H200 are off by 2.3e-5.
STEP_EPS = 2.0**-16


class Limit(NamedTuple):
    """The allowed error: `times` that of the plain way or `units` units of rounding, whichever is more."""

    words: str
    times: float
    units: float

    def allowed(self, plain: float, eps: float) -> float:
        """Return the largest error that is still right; eps: the unit of rounding."""
        return max(self.times * plain, self.units * eps)


LIMITS = (Limit("a relative error", 3, 2), Limit("an error somewhere", 4, 16))


def far_off(what: str, error: tuple[float, float], plain: tuple[float, float], eps: float, beside: str) -> str | None:
    """Say which error, relative (L2) or largest, is NaN or above its limit; None if neither is.

    plain: the errors to compare with; beside: whose errors these are, in words.
    """
    for limit, found, usual in zip(LIMITS, error, plain, strict=True):
        allowed = limit.allowed(usual, eps)
        if not found <= allowed:  # true for NaN too
            return f"{what} has {limit.words} of {found:.2g}, {beside} {usual:.2g}, allowed is {allowed:.2g}"
    return None
