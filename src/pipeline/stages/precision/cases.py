"""The cases that the experiments compare. Imports no torch: the workflow and the report read it."""

from dataclasses import dataclass

FORMAT_NAMES = ("fp32", "fp16", "bf16")
AUTOCAST_DTYPES = ("fp16", "bf16")


@dataclass(frozen=True)
class Sum:
    """A running sum: its addend and number of steps, the data types of both, and how the addend is converted.

    cast: `none` if both types are the same; `implicit` if the addition promotes; `explicit` if the addend is cast to
    the accumulator's type first.
    """

    accumulator: str
    addend_dtype: str
    cast: str
    steps: int
    addend: float


# The assignment's four, in its order.
ASSIGNED_SUMS = (
    Sum("fp32", "fp32", "none", 1000, 0.01),
    Sum("fp16", "fp16", "none", 1000, 0.01),
    Sum("fp32", "fp16", "implicit", 1000, 0.01),
    Sum("fp32", "fp16", "explicit", 1000, 0.01),
)

# The same with bf16, with an addend wider than its accumulator, and with ten times as many, smaller steps.
FURTHER_SUMS = (
    Sum("bf16", "bf16", "none", 1000, 0.01),
    Sum("fp32", "bf16", "implicit", 1000, 0.01),
    Sum("fp16", "fp32", "implicit", 1000, 0.01),
    Sum("fp32", "fp32", "none", 10_000, 0.001),
    Sum("fp16", "fp16", "none", 10_000, 0.001),
    Sum("bf16", "bf16", "none", 10_000, 0.001),
    Sum("fp32", "fp16", "implicit", 10_000, 0.001),
    Sum("fp32", "bf16", "implicit", 10_000, 0.001),
    Sum("fp16", "fp32", "implicit", 10_000, 0.001),
)

SUMS = ASSIGNED_SUMS + FURTHER_SUMS

# How layer norm keeps intermediate values. in_format: step by step, each in the format of the input; fp32_sums: the
# same with both sums in fp32; kernel: torch's own kernel.
METHODS = ("in_format", "fp32_sums", "kernel")

# Magnitudes of inputs, as powers of two: in factors of 4 past the range of fp16's squares, then of 256 for fp32 and
# bf16.
MAGNITUDE_EXPONENTS = (*range(-16, 18, 2), *range(24, 72, 8))

# Features of a token, for inputs of +1 and -1: every square is 1, so the sum of squares is the number of features.
WIDTHS = (64, 256, 1024, 4096)

# torch's default eps of LayerNorm, and larger and smaller ones that models use.
DEFAULT_EPS = 1e-5
EPSILONS = (1e-3, DEFAULT_EPS, 1e-6, 1e-8, 1e-12)
