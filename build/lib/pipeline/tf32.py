"""Read and set whether fp32 matrices are multiplied as TF32, whichever of torch's two APIs is in use.

The old API is `torch.set_float32_matmul_precision` and `torch.backends.cuda.matmul.allow_tf32`. The new one is
`torch.backends.fp32_precision` and the settings below it, down to `torch.backends.cuda.matmul.fp32_precision`. Matrix
products follow the new API. Setting the old one also sets the new one, but not the reverse: once the new one differs,
reading the old one raises RuntimeError. This holds for torch 2.11 and 2.13.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pipeline.compat.torch_private import get_fp32_precision, set_fp32_precision

BACKENDS = ("cuda", "mkldnn")  # the old API sets the products of both


def allows_tf32() -> bool:
    """Tell whether torch multiplies fp32 matrices on a GPU as TF32."""
    return get_fp32_precision("cuda", "matmul") == "tf32"


@contextmanager
def float32_products(*, tf32: bool) -> Iterator[None]:
    """Multiply fp32 matrices as TF32, or in true fp32, inside this context; restore all settings after it.

    Both APIs are set, because `torch.compile` reads both.
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
    """Return the setting of a backend's products themselves: "none" if they inherit the settings above them."""
    inherited = {}
    for level in (("generic", "all"), (backend, "all")):
        inherited[level] = get_fp32_precision(*level)
        set_fp32_precision(*level, "none")
    own = get_fp32_precision(backend, "matmul")
    for level, setting in inherited.items():
        set_fp32_precision(*level, setting)
    return own
