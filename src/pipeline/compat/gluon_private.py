"""Gluon's private names that this project uses, each with its reason and the public alternative that is missing.

`tests/compat/test_gluon_private.py` fails if an upgrade has moved one.
"""

from collections.abc import Sequence
from typing import Any

from triton._C.libtriton import ir
from triton.experimental.gluon.language._core import builtin


@builtin
def tma_reduce_add(descriptor: Any, coordinates: Sequence[Any], source: Any, _semantic: Any = None) -> None:
    """Add a tile in shared memory to one in global memory; `tma.store_wait` waits until it has been read.

    Gluon has the operation but, up to 3.7, no function for it. Private: `builtin`, the object behind `_semantic`, and
    the operation's name.
    """
    coordinates = _semantic._convert_to_ir_values(coordinates, require_i64=False)
    _semantic.builder.create_async_tma_reduce(
        ir.DESCRIPTOR_REDUCE_KIND.ADD, descriptor.handle, coordinates, source.handle
    )
