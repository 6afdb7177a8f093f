"""Read a compiled kernel's machine code: its registers, and how often it spills them to memory.

NVIDIA's is disassembled by the tools that come with Triton; AMD's comes as text.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
LABEL = re.compile(r"^\s*(\.L\w+):")
BRANCH = re.compile(r"\b(?:BRA|s_c?branch\w*)\b.*?(\.L\w+)")
SPILL = re.compile(r"\b(?:LDL|STL|scratch_(?:load|store)\w*)\b")


@dataclass(frozen=True)
class MachineCode:
    """A kernel's instructions as text, and its registers per thread."""

    text: str
    registers: int

    @property
    def spills(self) -> int:
        """Count the instructions that load or store a register kept in memory."""
        return len(SPILL.findall(self.text))

    @property
    def spills_in_loops(self) -> int:
        """Count the spills between a backward branch and its target."""
        lines = self.text.splitlines()
        first_line_of: dict[str, int] = {}
        spilling: set[int] = set()
        for number, line in enumerate(lines):
            if label := LABEL.match(line):
                first_line_of[label[1]] = number
            if (branch := BRANCH.search(line)) and branch[1] in first_line_of:
                body = range(first_line_of[branch[1]], number)
                spilling |= {inside for inside in body if SPILL.search(lines[inside])}
        return len(spilling)

    def count(self, instruction: str) -> int:
        """Count the instructions with this name."""
        return len(re.findall(rf"\b{re.escape(instruction)}\b", self.text))


def machine_code(compiled: Any) -> MachineCode:
    """Return the machine code of a kernel that `triton.compile` returned, for an NVIDIA or an AMD GPU."""
    if "amdgcn" in compiled.asm:
        text = compiled.asm["amdgcn"]
        return MachineCode(text, int(re.findall(r"\.vgpr_count:\s+(\d+)", text)[0]))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _run("cuobjdump", "-res-usage", file.name)
        return MachineCode(_run("nvdisasm", file.name), int(re.findall(r"REG:(\d+)", usage)[0]))


def _run(tool: str, *words: str) -> str:
    return subprocess.run([TOOLS / tool, *words], capture_output=True, encoding="utf-8", check=True).stdout
