# ruff: noqa: E501  real names are long
import pytest

from pipeline.instruments.profilers.kernel_categories import CATEGORIES, category

# As CUPTI gives them to torch.profiler ("<4, ...>", "(anonymous namespace)") and to nsys ("<(int)4, ...>", "<unnamed>").
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::{}, std::array<char *, (unsigned long)3>>(int, T2, T3)"
STRIDED = "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<at::native::{}>(at::TensorIteratorBase &, const T1 &)>(int, T3)"
FLASH_TRAITS = "Flash_kernel_traits<(int)64, (int)128, (int)128, (int)4, cutlass::bfloat16_t>"
MULTI_TENSOR = "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::{}>(T1, T2, T3...)"
CUB = "void at_cuda_detail::cub::Device{}<at_cuda_detail::cub::{}, (bool)0, long, long, unsigned long long>(T7 *, const T6 *)"

NAMES = {
    "matmul": [
        "ampere_sgemm_128x64_tn",
        "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64_64x3_nt_align2>(T1::Params)",
        "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::GemmUniversal<...",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true, true, false>(cublasLt::cublasSpl",
        "void cublasLt::epilogue::impl::globalKernel<8, 32, float, float, float, true, true, 1>(int, int, long, float*)",
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float, float, float, false, true>",
        "triton_tem_fused_mm_3",
        "triton_mm_12",
        *("aten::mm", "aten::bmm", "aten::addmm", "aten::linear", "aten::mv"),
    ],
    "attention": [
        f"void pytorch_flash::flash_fwd_kernel<{FLASH_TRAITS}, (bool)0>(pytorch_flash::Flash_fwd_params)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x4x1_cga1x1x1_kernel0_0",
        "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, cutlass::arch::Sm80>)",
        "triton_tem_fused_add_flex_attention_mul_slice_split_with_sizes_stack_sub_transpose_view_16",
        *("forward_kernel", "key_value_kernel", "hopper_forward_kernel", "hopper_wide_key_value_kernel"),
        "aten::_scaled_dot_product_flash_attention_for_cpu",
    ],
    "softmax": [
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 4, true, false>(float*, float const*, int)",
        "void at::native::<unnamed>::cunn_SoftMaxBackward<(int)4, float, float, float, LogSoftMaxBackwardEpilogue>(T2 *)",
        "triton_per_fused__softmax_add_div_5",
        "aten::_log_softmax_backward_data",
    ],
    "normalisation": [
        "void at::native::<unnamed>::vectorized_layer_norm_kernel<c10::BFloat16, float, (bool)1>(int, T2, const T1 *)",
        "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float, float, 32u, 1u, 32u, true>(long)",
        "void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<float, float, true>(long, float, float const*)",
        "triton_red_fused__fused_rms_norm__fused_rms_norm_backward_mul_view_19",
        "triton_per_fused__to_copy_add_mean_mul_pow_rsqrt_0",
        *("aten::native_layer_norm", "aten::rms_norm"),
    ],
    "elementwise": [
        ELEMENTWISE.format("CUDAFunctor_add<float>"),
        "void at::native::triu_tril_kernel<float, int, true, 2, false>(at::cuda::detail::TensorInfo<float, int>)",
        "void at::native::(anonymous namespace)::nll_loss_backward_reduce_cuda_kernel_2d<float, long>(float*, float const*)",
        "triton_poi_fused_add_cat_mul_threshold_backward_22",
        "aten::silu_backward",
    ],
    "reduction": [
        "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::MaxOps<float>>>(T3)",
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*, float*)",
        "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float, float, long>(long const*)",
        "void at::native::(anonymous namespace)::sum_and_scatter<float, long>(long const*, float*, long, long const*)",
        "void at::native::(anonymous namespace)::compute_grad_weight<float, long>(long const*, float const*, long const*)",
        # From about 3,000 tokens on, an embedding's gradient sorts them first. Names from the source, not a capture.
        CUB.format("RadixSortOnesweepKernel", "DeviceRadixSortPolicy<long, long, unsigned long long>::Policy900"),
        CUB.format("ScanInitKernel", "ScanTileState<long, (bool)1>"),
        "void at::native::<unnamed>::compute_num_of_partial_segments<long>(const T1 *, const T1 *, const long *, long *)",
        *("triton_red_fused_abs_amax_view_12", "liger_cross_entropy_kernel"),
        *("aten::sum", "aten::mean", "aten::nll_loss_forward", "aten::embedding_dense_backward"),
    ],
    "copy": [
        *("[CUDA memcpy Device-to-Device]", "Memcpy HtoD (Pageable -> Device)", "Memset (Device)"),
        ELEMENTWISE.format("FillFunctor<long>"),
        STRIDED.format("direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]"),
        "void at::native::<unnamed>::CatArrayBatchedCopy<at::native::<unnamed>::OpaqueType<(unsigned int)4>, unsigned int>",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>(...)",
        "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)",
        "void at::native::detail::chunk_cat_cuda_kernel<float, c10::BFloat16>(T2 **, T1 *, long *)",
        *("aten::copy_", "aten::_to_copy", "aten::cat", "aten::embedding", "aten::fill_", "aten::slice_backward"),
    ],
    "optimizer": [
        MULTI_TENSOR.format("TensorListMetadata<2>, BinaryOpListAlphaFunctor<float, 2, 2, 0>, std::plus<float>"),
        *("aten::_foreach_addcdiv_", "aten::_fused_adamw_"),
    ],
    "communication": [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        *("c10d::allreduce_", "gloo:all_reduce"),
    ],
    "other": [
        "void a_kernel_that_nobody_knows<float>(float*)",
        *("aten::view", "aten::_unsafe_view", "aten::empty_strided", "aten::t", "aten::transpose", "aten::item"),
    ],
}


@pytest.mark.parametrize("expected", CATEGORIES)
def test_real_kernel_and_operator_names_get_the_right_category(expected):
    assert {name: found for name in NAMES[expected] if (found := category(name)) != expected} == {}


def test_optimizer_launches_count_as_optimizer_except_communication():
    assert category(ELEMENTWISE.format("CUDAFunctor_add<float>"), "train_step/optimizer") == "optimizer"
    assert category("aten::addcdiv_", "train_step/optimizer/update") == "optimizer"
    assert category("ncclDevKernel_Broadcast_RING_LL", "train_step/optimizer") == "communication"
    assert category("aten::mul", "train_step/the optimizer's twin") == "elementwise"
