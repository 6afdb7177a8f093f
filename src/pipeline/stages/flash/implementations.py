"""Build the implementations to compare, as functions of q, k and v, and turn their refusals into Skipped."""

import functools
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from pipeline.attention import FlashAttentionTiled, FlashAttentionTriton, eager_attention
from pipeline.compat.torch_private import sdpa_choice
from pipeline.errors import Skipped
from pipeline.formulas.attention import Shape
from pipeline.instruments.machine.toolchain import require_compiler
from pipeline.instruments.sampling.trying import errors_as_skipped, peer_errors_as_skipped
from pipeline.peers import load
from pipeline.stages.flash.cell import FA4, GPU_ONLY, OURS, TILES, Cell

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

# attention(q, k, v, is_causal): the autograd functions themselves, without the casts that a model under autocast needs.
FUNCTIONS = {
    "triton": FlashAttentionTriton.apply,
    "tiled": FlashAttentionTiled.apply,
    "eager": eager_attention,
}
BACKENDS = {
    "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
}
# Errors with which a kernel refuses a problem: no SDPA kernel for it, no cuDNN plan, not enough shared memory.
REFUSALS = ("No available kernel", "No viable backend", "cuDNN", "CUDNN", "out of resource")
# `tiled` is written to be read: it launches a dozen kernels per pair of tiles, and the number of pairs grows with the
# square of the length. At this length a call takes 2 to 5 ms on an H200; at 4096 it takes 0.1 to 0.2 s and is noisy.
LONGEST_TILED = 1024
# FlexAttention's default block size, in queries and in keys.
FLEX_BLOCK = 128
# FlashAttention-4 has kernels for NVIDIA GPUs from Hopper on.
FA4_CAPABILITY = (9, 0)


@dataclass(frozen=True)
class Implementation:
    """A function (q, k, v) -> output, and the context in which it and its backward pass run.

    by_token: whether its tensors are (batch, length, heads, head_dim), contiguous, instead of (batch, heads, ...).
    """

    attend: Attend
    within: Callable[[], AbstractContextManager] = nullcontext
    by_token: bool = False


def names(cell: Cell, device: torch.device, tiles: bool = False) -> list[str]:
    """Return a cell's implementations to measure or to skip on a device; `sdpa` only on a CPU."""
    return [name for name in cell.impls(tiles) if device.type == "cpu" or name != "sdpa"]


def build(name: str, shape: Shape, device: torch.device) -> Implementation:
    """Return an implementation for one shape, with what depends only on the shape already built, such as a block mask.

    Raises Skipped if this machine lacks what it needs.
    """
    if name in GPU_ONLY and device.type != "cuda":
        raise Skipped("needs a CUDA GPU")
    if name == "tiled" and shape.has_shared_keys:
        raise Skipped("needs as many heads of keys as of queries")
    if name == "tiled" and shape.seq_len > LONGEST_TILED:
        raise Skipped(f"its launches take too long above a length of {LONGEST_TILED}")
    if name == FA4:
        return Implementation(_fa4(shape, device), by_token=True)
    if name in BACKENDS:
        return Implementation(_sdpa(shape), within=functools.partial(sdpa_kernel, BACKENDS[name]))
    if name == "compiled_eager":
        require_compiler()
        return Implementation(torch.compile(_plain(eager_attention, shape), dynamic=False))
    if name in TILES:
        return Implementation(_of_tiles(TILES[name], shape))
    others = {
        "flex": lambda: _flex(shape, device),
        "sdpa": lambda: _sdpa(shape),
        "triton": lambda: _asked(FUNCTIONS["triton"], shape),
    }
    return Implementation(others.get(name, lambda: _plain(FUNCTIONS[name], shape))())


def _asked(function: Callable[..., Tensor], shape: Shape) -> Attend:
    """Bind one of our functions to the shape's causal mask and GQA setting."""
    is_causal, enable_gqa = shape.is_causal, shape.has_shared_keys

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return function(q, k, v, is_causal, None, enable_gqa)

    return attend


def _of_tiles(side: int, shape: Shape) -> Attend:
    """Return our plain Triton kernels with tiles of `side` queries by `side` keys, forward and backward."""
    from pipeline.attention.triton.autograd import planned_by
    from pipeline.attention.triton.tiles import BackwardConfig, Choices, TileConfig

    tiles = TileConfig(side, side, num_warps=4 if side <= 64 else 8, num_stages=2)
    choices = Choices(forward_tiles=tiles, backward_tiles=BackwardConfig(tiles, query=tiles, short=tiles))
    return _asked(planned_by(choices).apply, shape)


def _fa4(shape: Shape, device: torch.device) -> Attend:
    if torch.version.hip is not None or torch.cuda.get_device_capability(device) < FA4_CAPABILITY:
        raise Skipped("FlashAttention-4 needs a Hopper or Blackwell GPU")
    # It compiles for about 5 s per head_dim and mask, and caches the result for other cells only if asked to.
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
    function, is_causal = load(FA4, "flash_attn.cute.interface").flash_attn_func, shape.is_causal

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = function(q, k, v, causal=is_causal)
        return found[0] if isinstance(found, tuple) else found  # some of its versions return the LSE too

    return attend


def _plain(attention: Callable[..., Tensor], shape: Shape) -> Attend:
    """Wrap a function that has no GQA: every query head gets its own copy of keys and values, as users do it."""
    is_causal, group = shape.is_causal, shape.query_heads_per_kv_head

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, is_causal)

    def attend_copies(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1))

    return attend_copies if shape.has_shared_keys else attend


def _sdpa(shape: Shape) -> Attend:
    is_causal, enable_gqa = shape.is_causal, shape.has_shared_keys

    # A Python function, as for the other implementations, because its overhead counts in the time of a single call.
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=enable_gqa)

    return attend


def chosen_by_sdpa(q: Tensor, k: Tensor, v: Tensor, shape: Shape) -> str | None:
    """Name the backend that SDPA chooses by itself for these inputs; None if it is not one of BACKENDS."""
    choice = sdpa_choice(q, k, v, shape.is_causal, shape.has_shared_keys)
    return next((name for name, backend in BACKENDS.items() if backend == choice), None)


def _flex(shape: Shape, device: torch.device) -> Attend:
    require_compiler()
    compiled = functools.partial(torch.compile(flex_attention, dynamic=False), enable_gqa=shape.has_shared_keys)
    if not shape.is_causal:
        return compiled
    return functools.partial(compiled, block_mask=causal_block_mask(shape.seq_len, device))


def causal_block_mask(seq_len: int, device: torch.device) -> BlockMask:
    """Return FlexAttention's causal mask: blocks before the diagonal are full, those on it are masked by element.

    Built directly, because `create_block_mask` derives it from all seq_len² elements: in memory, or with a kernel that
    takes up to minutes to compile at 8192 and more.
    """
    row = torch.arange(-(-seq_len // FLEX_BLOCK), dtype=torch.int32, device=device)
    every_block = row.repeat(1, 1, len(row), 1)
    return BlockMask.from_kv_blocks(
        kv_num_blocks=torch.ones_like(row)[None, None],
        kv_indices=every_block.mT.contiguous(),  # only the first of each row is read: the diagonal
        full_kv_num_blocks=row[None, None],
        full_kv_indices=every_block,  # only the first i of row i are read
        BLOCK_SIZE=FLEX_BLOCK,
        mask_mod=_causal,
        seq_lengths=(seq_len, seq_len),
    )


def _causal(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return key <= query


@contextmanager
def refusals_as_skipped(name: str) -> Iterator[None]:
    """Turn errors with which an implementation refuses a problem into Skipped; let all others pass.

    Ours raise ValueError before any launch, or Triton's error if the tiles do not fit. SDPA warns why none of its
    kernels fits, then raises.
    """
    if name in TILES:
        with errors_as_skipped(f"the kernel with tiles of {TILES[name]}"):
            yield
        return
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with peer_errors_as_skipped(name):
                yield
        except ValueError as error:
            if name not in OURS:
                raise
            raise Skipped(str(error)) from None
        except RuntimeError as error:
            if not any(text in str(error) for text in REFUSALS):
                raise
            raise Skipped(_reason(error, [str(warning.message) for warning in warned])) from None


def _reason(error: RuntimeError, warned: list[str]) -> str:
    """Return SDPA's warning about the requested backend, else the line of the error that gives the reason."""
    if "No available kernel" in str(error):
        texts = [text.split(" (Triggered internally")[0].strip() for text in warned]
        telling = [text for text in texts if any(word in text for word in ("Expected", "require", "must"))]
        return telling[0] if telling else "torch has no kernel for this problem"
    return next(line for line in str(error).splitlines() if any(text in line for text in REFUSALS)).strip()
