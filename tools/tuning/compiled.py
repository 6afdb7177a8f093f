"""Report what the compiler makes of a kernel for Hopper, without a GPU: registers, spills, waits for tensor cores.

Whatever else it does, a kernel is slow if it spills, if each of its wgmma instructions waits for the one before, or if
it falls back on mma.sync, the tensor cores' older and slower instruction.
"""

import re
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pipeline.attention.triton.tiles import TileConfig
from tools.tuning.machine_code import machine_code
from tools.tuning.running_wgmma import touched_early

HOPPER = GPUTarget("cuda", 90, 32)
REGISTERS_PER_SM, REGISTER_GRANULE = 65536, 8
SHARED_BYTES_PER_SM, SHARED_BYTES_RESERVED_PER_PROGRAM = 228 * 1024, 1024
# Barriers of a warp, two warps, a warpgroup or all threads; only Triton's own code has these.
TRITONS_BARRIER = re.compile(r"\bBAR\.(?:SYNC|RED|ARV)\S* (0x\w+)(?:, 0x(?:20|40|80))? ;")
# Pointers to fp32, by their names in all kernels here.
FLOAT32_POINTERS = re.compile(r"(lse|delta|dq_sum|chunk)\w*_ptr$")


@dataclass(frozen=True)
class KernelReport:
    """A compiled kernel: what it takes of a multiprocessor, and counts of instructions that show how well it runs.

    touched_early: instructions that race with a wgmma, found by `running_wgmma`; barriers: the lowest number of a named
    barrier that Triton leaves to the kernel.
    """

    registers: int
    shared_bytes: int
    spill_instructions: int
    wgmma: int
    wgmma_waits: int
    mma_sync: int
    programs_per_sm: int
    touched_early: int
    barriers: int

    @property
    def is_serialised(self) -> bool:
        """Tell whether every wgmma waits for the one before it."""
        return self.wgmma_waits >= self.wgmma > 0


def compile_for_hopper(kernel: Any, constants: dict[str, Any], tiles: TileConfig, dtype: str) -> KernelReport:
    """Compile one of the attention kernels and report.

    constants: its compile-time arguments by name, with None for a pointer that it is not given; dtype: "bf16", "fp16"
    or "fp32". Raises what Triton raises if the kernel does not compile.
    """
    options = {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages}
    if tiles.max_registers is not None:
        options["maxnreg"] = tiles.max_registers
    return _report(triton.compile(_source(kernel, constants, dtype), target=HOPPER, options=options), tiles.num_warps)


def compile_gluon_for_hopper(
    kernel: Any, constants: dict[str, Any], options: dict[str, int], dtype: str
) -> KernelReport:
    """Compile one of the Gluon kernels as its launches do and report."""
    from triton.experimental.gluon._runtime import GluonASTSource  # not every Triton has it

    signature = {name: _type(name, constants, dtype) for name in kernel.arg_names}
    aligned = {
        (index,): [["tt.divisibility", 16]] for index, kind in enumerate(signature.values()) if kind.startswith("*")
    }
    source = GluonASTSource(kernel, signature=signature, constexprs=constants, attrs=aligned)
    compiled = triton.compile(source, target=HOPPER, options=options)
    return _report(compiled, compiled.metadata.num_warps)


def _report(compiled: Any, num_warps: int) -> KernelReport:
    code, shared_bytes = machine_code(compiled), compiled.metadata.shared
    return KernelReport(
        registers=code.registers,
        shared_bytes=shared_bytes,
        spill_instructions=code.spills,
        wgmma=code.count("HGMMA"),
        wgmma_waits=code.count("WARPGROUP.DEPBAR"),
        mma_sync=code.count("HMMA"),
        programs_per_sm=_programs_per_sm(code.registers, shared_bytes, num_warps),
        touched_early=len(touched_early(code.text)),
        barriers=1 + max((int(number, 16) for number in TRITONS_BARRIER.findall(code.text)), default=-1),
    )


def _source(kernel: Any, constants: dict[str, Any], dtype: str) -> ASTSource:
    """Describe the kernel's arguments as those of large aligned tensors."""
    signature = {name: _type(name, constants, dtype) for name in kernel.arg_names}
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or (kind == "i32" and name != "heads")
    }
    return ASTSource(kernel, signature=signature, constexprs=constants, attrs=aligned)


def _type(name: str, constants: dict[str, Any], dtype: str) -> str:
    if name in constants:
        return "constexpr"
    if name.endswith("_parts_ptr"):
        return "*bf16"
    if name.endswith("_ptr"):
        return "*fp32" if FLOAT32_POINTERS.match(name) else f"*{dtype}"
    return "fp32" if name.startswith("scale") else "i32"


def _programs_per_sm(registers: int, shared_bytes: int, num_warps: int) -> int:
    """Return how many programs fit on a multiprocessor by registers and shared memory."""
    granted = -(-registers // REGISTER_GRANULE) * REGISTER_GRANULE
    by_registers = REGISTERS_PER_SM // (granted * 32 * num_warps)
    return min(by_registers, SHARED_BYTES_PER_SM // (shared_bytes + SHARED_BYTES_RESERVED_PER_PROGRAM))
