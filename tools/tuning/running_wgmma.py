"""Find instructions that touch registers of a wgmma that may still be running: a race that may never show in a run.

Hopper's tensor cores read operands from registers, and write sums there, while other instructions go on. Until a wait
for them, nothing may read or write those sums, or write those operands. A wait that counts one product too few breaks
this, and so does ptxas by itself (triton-lang/triton#11781). Backward branches are not followed.
"""

import re

INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([^;]+?)\s*;")
WGMMA = re.compile(r"HGMMA\.64x(\d+)x\d+\S*\s+R(\d+), (?:R(\d+))?")
WAIT = re.compile(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x([0-9a-f]+)")
GROUP_ENDS = "gsb0"  # marks the last wgmma of a group
OPERAND_REGISTERS = 4  # per thread, for 64 × 16 numbers of 16 bits over a warpgroup
REGISTER = re.compile(r"\bR(\d+)\b")
# Instructions without a result in a register, and how many registers the wider results and stores have.
WITHOUT_RESULT = ("ST", "BAR", "RED", "BRA", "SYNCS", "WARPGROUP", "UTMA", "R2UR", "FENCE", "MEMBAR", "ATOM")
WIDTHS = {".64": 2, ".128": 4, "CS2R": 2, "IMAD.WIDE": 2, "STSM": 4}


def touched_early(text: str) -> list[str]:
    """Return the racing instructions of a kernel's machine code, in order."""
    found = []
    running: list[tuple[set[int], set[int]]] = []  # sums and operands of each group that may still run
    sums, operands = set[int](), set[int]()  # of the unfinished group
    for instruction in INSTRUCTION.findall(text):
        if wait := WAIT.match(instruction):
            left = int(wait[1], 16)
            running = running[-left:] if left else []
        elif wgmma := WGMMA.match(instruction):
            sums |= set(range(int(wgmma[2]), int(wgmma[2]) + int(wgmma[1]) // 2))
            if wgmma[3]:
                operands |= set(range(int(wgmma[3]), int(wgmma[3]) + OPERAND_REGISTERS))
            if GROUP_ENDS in instruction:
                running.append((sums, operands))
                sums, operands = set(), set()
        else:
            reads, writes = _touched(instruction)
            for group_sums, group_operands in [*running, (sums, operands)]:
                if (reads | writes) & group_sums or writes & group_operands:
                    found.append(instruction)
                    break
    return found


def _touched(instruction: str) -> tuple[set[int], set[int]]:
    """Return the registers that an instruction reads and writes; its name tells how many adjacent ones it uses."""
    name, _, operands = instruction.partition(" ")
    registers = [int(number) for number in REGISTER.findall(operands)]
    width = next((width for part, width in WIDTHS.items() if part in name), 1)
    if not registers:
        return set(), set()
    if name.startswith(WITHOUT_RESULT):
        return {*registers, *range(registers[-1], registers[-1] + width)}, set()
    if not REGISTER.match(operands.strip()):  # its result is a predicate, a uniform register or none
        return set(registers), set()
    return set(registers[1:]), set(range(registers[0], registers[0] + width))
