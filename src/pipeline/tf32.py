"""Whether fp32 matrices are multiplied as TF32: torch's switch, read and set whichever of its two APIs is in use.

The old one is `torch.set_float32_matmul_precision` and `torch.backends.cuda.matmul.allow_tf32`, the new one
`torch.backends.fp32_precision` and what lies below it, down to `torch.backends.cuda.matmul.fp32_precision`. Products go
by the new one. The old one sets it too, but not the other way round: once the new one says something else, reading the
old one raises RuntimeError. All that is so in torch 2.11 and 2.13.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

BACKENDS = ("cuda", "mkldnn")  # whose products the old API sets


def allows_tf32() -> bool:
    """Tell whether torch multiplies fp32 matrices on a GPU as TF32."""
    # By `_get`, but for a function call less: attention asks before every launch.
    return torch._C._get_fp32_precision_getter("cuda", "matmul") == "tf32"


@contextmanager
def float32_products(*, tf32: bool) -> Iterator[None]:
    """Multiply fp32 matrices as TF32 or else in true fp32 inside this context; put back all that was set after it.

    Inside both APIs say so, for `torch.compile` reads both.
    """
    own = {backend: _own_setting(backend) for backend in BACKENDS}
    for backend in BACKENDS:
        _set(backend, "matmul", "ieee")  # so that the old API can be read
    former = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(former)
        for backend, setting in own.items():
            _set(backend, "matmul", setting)


def _own_setting(backend: str) -> str:
    """Return what was set for a backend's products themselves: "none" where they follow the settings above them."""
    above = {}
    for place in (("generic", "all"), (backend, "all")):
        above[place] = _get(*place)
        _set(*place, "none")
    own = _get(backend, "matmul")
    for place, setting in above.items():
        _set(*place, setting)
    return own


# What `torch.backends` calls: its own names take 1 µs to read, and set another backend's (`mkldnn.fp32_precision`).
def _get(backend: str, operation: str) -> str:
    return torch._C._get_fp32_precision_getter(backend, operation)


def _set(backend: str, operation: str, setting: str) -> None:
    torch._C._set_fp32_precision_setter(backend, operation, setting)
