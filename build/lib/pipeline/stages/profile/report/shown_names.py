"""Kernel names as the report shows them: what cuBLAS writes behind the tile is left to the table of all kernels."""

import re

# ..._tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_split_k_kernel__5x_cublas
_BEHIND_TILE = re.compile(r"(_tilesize\d+(?:x\d+)*)_(\w*)")


def shown_name(kernel: str) -> str:
    """Cut a name of cuBLAS behind the tile's size; that a product is split along k stays said.

    Stages, warps, alignments and the library's version go: two kernels can then have one name.
    """
    return _BEHIND_TILE.sub(lambda found: found[1] + ("_split_k" if "split_k" in found[2] else ""), kernel)
