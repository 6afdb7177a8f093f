"""The last step for dq where it was summed in fp32 and without its scale."""

import triton
import triton.language as tl

ELEMENTS_SCALED = 4096  # of a program


@triton.jit
def scaled_kernel(sum_ptr, scaled_ptr, n_elements, scale, BLOCK: tl.constexpr):
    """Multiply numbers by a scale and round them to the other tensor's dtype; the two may be one."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = index < n_elements
    found = tl.load(sum_ptr + index, mask=exists) * scale
    tl.store(scaled_ptr + index, found.to(scaled_ptr.dtype.element_ty), mask=exists)
