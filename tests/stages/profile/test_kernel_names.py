# ruff: noqa: E501  real names are long
import pytest

from pipeline.stages.profile.kernel_names import short_name

SHORT = {
    "ampere_sgemm_128x64_tn": "ampere_sgemm_128x64_tn",
    "aten::mm": "aten::mm",
    "[CUDA memcpy Device-to-Device]": "[CUDA memcpy Device-to-Device]",
    "Memcpy DtoD (Device -> Device)": "Memcpy DtoD (Device -> Device)",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nt_align1>(T1::Params)": (
        "cutlass_80_simt_sgemm_128x32_8x5_nt_align1"
    ),
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 4, true, false>(float*, int)": (
        "softmax_warp_forward"
    ),
    "void at::native::<unnamed>::CatArrayBatchedCopy<at::native::<unnamed>::OpaqueType<(unsigned int)4>>(T1 *)": (
        "CatArrayBatchedCopy"
    ),
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)": (
        "vectorized_elementwise_kernel<CUDAFunctor_add>"
    ),
    "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<at::native::"
    "BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float>>>(at::TensorIteratorBase &)>": (
        "elementwise_kernel<MulFunctor>"
    ),
    "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<at::native::"
    "direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]>(int, T3)": (
        "elementwise_kernel<direct_copy_kernel_cuda>"
    ),
    "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::MaxOps<float>, int>>(T3)": (
        "reduce_kernel<MaxOps>"
    ),
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float>(cublasGemvParamsEx<int>)": (
        "gemvx::kernel"
    ),
}


@pytest.mark.parametrize(("name", "short"), SHORT.items(), ids=list(SHORT.values()))
def test_a_name_is_its_function_and_the_operation_of_a_template(name, short):
    assert short_name(name) == short
