import pytest

from tools.tuning.machine_code import MachineCode

NVIDIA = """
        STL [R1], R2 ;
.L_x_0:
        LDL R3, [R1] ;
        HMMA.16816.F32 R4, R8, R12, R4 ;
    @P0 BRA `(.L_x_0) ;
        LDL R3, [R1] ;
        BRA `(.L_x_1) ;
        STL [R1], R2 ;
.L_x_1:
        EXIT ;
"""
AMD = """
	scratch_store_dword off, v1, s32
.LBB0_1:
	scratch_load_dword v1, off, s32
	v_mfma_f32_32x32x8_bf16_1k v[0:15], v[16:17], v[18:19], v[0:15]
	s_cbranch_scc1 .LBB0_1
	scratch_load_dword v2, off, s32
	s_branch .LBB0_2
	scratch_load_dword v2, off, s32
.LBB0_2:
	s_endpgm
"""


@pytest.mark.parametrize("text", [NVIDIA, AMD])
def test_spills_in_loops_are_those_before_a_branch_that_leads_back(text):
    code = MachineCode(text, registers=255)
    assert (code.spills, code.spills_in_loops) == (4, 1)


def test_a_spill_in_nested_loops_counts_once_and_instructions_match_by_whole_name():
    inner = ".L_x_1:\nLDL R3, [R1] ;\n@P0 BRA `(.L_x_1) ;\n"
    assert MachineCode(f".L_x_0:\n{inner}@P1 BRA `(.L_x_0) ;\n", registers=1).spills_in_loops == 1
    assert [MachineCode(NVIDIA, registers=255).count(name) for name in ("HMMA", "MMA")] == [1, 0]
