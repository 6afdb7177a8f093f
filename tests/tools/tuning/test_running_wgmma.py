import pytest

from tools.tuning.running_wgmma import touched_early

# The first two are one group, with 64 sums per thread in R24 to R87. The third is another, with 32 sums in R152 to R183
# and operands in R8 to R11.
FIRST = ["HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], RZ, !UPT", "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24, gsb0"]
SECOND = ["HGMMA.64x64x16.F32.BF16 R152, R8, gdesc[UR4].tnspB, R152, gsb0"]
WAIT_FOR_FIRST, WAIT_FOR_ALL = "WARPGROUP.DEPBAR.LE gsb0, 0x1", "WARPGROUP.DEPBAR.LE gsb0, 0x0"


def listing(*instructions):
    return "\n".join(f"    /*{place * 16:04x}*/        {each} ;" for place, each in enumerate(instructions))


@pytest.mark.parametrize(
    ("touching", "is_early"),
    [
        ("FMUL R0, R24, R1", True),  # a sum is read
        ("MOV R87, R1", True),  # the last sum is written
        ("FMUL R0, R88, R1", False),
        ("@P0 FMUL R0, R30, R1", True),
        ("MOV R11, R1", True),  # an operand is written
        ("FMUL R0, R11, R1", False),  # an operand is read
        ("LDS.128 R5, [R1]", True),  # the last of four results
        ("LDS.128 R4, [R1]", False),
        ("STSM.16.M88.4 [R9+0x4000], R149", True),
        ("STS.128 [R24], R0", True),  # as an address
        ("ISETP.GE.AND P0, PT, R25, RZ, PT", True),
        ("BAR.SYNC.DEFER_BLOCKING 0x7, 0x100", False),
    ],
)
def test_touching_the_sums_or_writing_the_operands_of_a_running_product_is_found(touching, is_early):
    assert touched_early(listing(*FIRST, *SECOND, touching)) == [touching.removeprefix("@P0 ")] * is_early
    assert touched_early(listing(*FIRST, *SECOND, WAIT_FOR_ALL, touching)) == []


def test_a_wait_ends_all_groups_but_the_last_ones_that_it_leaves_running():
    of_both = ["FADD R0, R24, R1", "FADD R0, R152, R1"]
    assert touched_early(listing(*FIRST, *SECOND, WAIT_FOR_FIRST, *of_both)) == of_both[1:]
    leaves_more = "WARPGROUP.DEPBAR.LE gsb0, 0x3"
    assert touched_early(listing(*FIRST, *SECOND, leaves_more, *of_both)) == of_both
    assert touched_early(listing(FIRST[0], of_both[0], FIRST[1])) == of_both[:1]  # of an unfinished group
