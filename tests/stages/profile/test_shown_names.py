import pytest

from pipeline.stages.profile.report.shown_names import shown_name

GEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8"
BUILD = "stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute"


@pytest.mark.parametrize(
    ("kernel", "shown"),
    [
        (f"{GEMM}_{BUILD}_kernel__5x_cublas", GEMM),
        (f"{GEMM}_{BUILD}_split_k_kernel__5x_cublas", f"{GEMM}_split_k"),
        (GEMM, GEMM),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN", "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN"),
        ("elementwise_kernel<MulFunctor>", "elementwise_kernel<MulFunctor>"),
    ],
)
def test_a_name_of_cublas_ends_with_its_tile_and_others_stay(kernel, shown):
    assert shown_name(kernel) == shown
