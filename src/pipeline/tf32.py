"""Whether fp32 matrices are multiplied as TF32: torch's switch, read and set whichever of its two APIs is in use.

The old one is `torch.set_float32_matmul_precision` and `torch.backends.cuda.matmul.allow_tf32`, the new one
`torch.backends.fp32_precision` and what lies below it, down to `torch.backends.cuda.matmul.fp32_precision`. Products go
by the new one. The old one sets it too, but not the other way round: once the new one says something else, reading the
old one raises RuntimeError. All that is so in torch 2.11 and 2.13.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pipeline.compat.torch_private import get_fp32_precision, set_fp32_precision

BACKENDS = ("cuda", "mkldnn")  # whose products the old API sets


def allows_tf32() -> bool:
    """Tell whether torch multiplies fp32 matrices on a GPU as TF32."""
    return get_fp32_precision("cuda", "matmul") == "tf32"


@contextmanager
def float32_products(*, tf32: bool) -> Iterator[None]:
    """Multiply fp32 matrices as TF32 or else in true fp32 inside this context; put back all that was set after it.

    Inside both APIs say so, for `torch.compile` reads both.
    """
    own = {backend: _own_setting(backend) for backend in BACKENDS}
    for backend in BACKENDS:
        set_fp32_precision(backend, "matmul", "ieee")  # so that the old API can be read
    former = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(former)
        for backend, setting in own.items():
            set_fp32_precision(backend, "matmul", setting)


def _own_setting(backend: str) -> str:
    """Return what was set for a backend's products themselves: "none" where they follow the settings above them."""
    above = {}
    for place in (("generic", "all"), (backend, "all")):
        above[place] = get_fp32_precision(*place)
        set_fp32_precision(*place, "none")
    own = get_fp32_precision(backend, "matmul")
    for place, setting in above.items():
        set_fp32_precision(*place, setting)
    return own
