# ruff: noqa: E501  real names are long
import json
import math

import pytest

from pipeline.formulas.sizes import SIZES
from pipeline.stages.profile.rows import attention_flops
from pipeline.stages.profile.traced_rows import kernel_table, rows_of, short_name

from .conftest import Simulator, trace_of

GEMM, MUL = "nvjet_tst_128x256_64x4_v_bz_TNT", "void at::native::elementwise_kernel<4, MulFunctor<float>>(int)"
SOFTMAX = "void softmax_warp_forward<float, 8>(float *)"
LAYER = (
    ("attention", GEMM, 40.0),
    *(("attention/attention/attention scores", *kernel) for kernel in ((GEMM, 10.0), (MUL, 2.0))),
    ("attention/attention/mask", MUL, 3.0),
    ("attention/attention/softmax", SOFTMAX, 5.0),
    ("attention/attention/final matmul", GEMM, 10.0),
    ("", MUL, 1.0),
    ("feed_forward", GEMM, 70.0),
)


@pytest.fixture(scope="module")
def rows():
    """Return the rows of two forward passes of three layers, and of a backward pass of one, with ranges by part."""
    device = Simulator()

    def forward(layers):
        for index in range(layers):
            with device.range(f"layers.{index}"):
                for kernel in LAYER:
                    device.kernel(*kernel)

    for _ in range(2):
        with device.range("inference"):
            forward(3)
    with device.range("forward_backward"):
        device.kernel("", GEMM, 1.0)
    with device.range("backward_by_part"):
        with device.range("forward"):
            forward(1)
        with device.range("backward"):
            for kernel in (("final matmul", GEMM, 20.0), ("softmax", SOFTMAX, 15.0), ("attention scores", GEMM, 20.0)):
                device.kernel(f"forward/layers.0/attention/attention/{kernel[0]}", *kernel[1:])
    return rows_of(device.trace(), ["inference", "forward_backward"], top_kernels=10)


def of(rows, kind, path="inference"):
    return [row for row in rows if (row["kind"], row["range"]) == (kind, path)]


@pytest.fixture
def two_runs():
    """Return a trace of two runs of a layer with one kernel: one call of 4 µs, then calls of 6 and 2 µs."""
    work = [("gemm", 7, 5.0, 4.0, 1), ("gemm", 7, 25.0, 6.0, 2), ("gemm", 7, 32.0, 2.0, 3)]
    launches = [(1, 1.0, 1), (2, 21.0, 1), (3, 22.0, 1)]
    ranges = [(name, 1, start, 10.0) for start in (0.0, 20.0) for name in ("inference", "layers.0")]
    return trace_of(work, launches, ranges)


def test_times_and_counts_are_per_run_and_kernels_are_ranked_by_time(rows):
    categories = {row["category"]: (row["count"], pytest.approx(row["time_ms"])) for row in of(rows, "category")}
    assert categories == {"matmul": (12, 0.39), "elementwise": (9, 0.018), "softmax": (3, 0.015)}
    samples = {row["clock"]: row["samples_ms"] for row in of(rows, "time")}
    assert samples["kernel_sum"] == pytest.approx([0.423] * 2)
    kernels = of(rows, "kernel")
    ranked = [(row["rank"], row["kernel"], row["count"]) for row in kernels]
    assert ranked == [(1, GEMM, 12), (2, "elementwise_kernel<MulFunctor>", 9), (3, "softmax_warp_forward", 3)]


def test_attentions_products_exclude_mask_and_scaling_and_its_backward_the_forward(rows):
    phases = {
        path: {row["phase"]: (row["count"], row["time_ms"], row["matmul_ms"]) for row in of(rows, "attention", path)}
        for path in ("inference", "backward_by_part")
    }
    forward = {"attention scores": (6, 0.036, 0.03), "mask": (3, 0.009, 0), "softmax": (3, 0.015, 0)}
    backward = {"attention scores": (1, 0.02, 0.02), "softmax": (1, 0.015, 0), "final matmul": (1, 0.02, 0.02)}
    for path, expected in (("inference", forward | {"final matmul": (3, 0.03, 0.03)}), ("backward_by_part", backward)):
        assert phases[path] == {phase: pytest.approx(values) for phase, values in expected.items()}


def test_the_layer_timeline_covers_one_layer_of_one_run(rows):
    (layer,) = of(rows, "layer")
    assert layer["layer"] == "layers.1"
    _, _, paths, _, starts_us, durations_us = zip(*json.loads(layer["events"]), strict=True)
    assert (list(paths), list(durations_us)) == ([path for path, *_ in LAYER], [us for *_, us in LAYER])
    assert starts_us[0] == 0
    assert list(starts_us) == sorted({*starts_us})


def test_attention_flops_match_a_count_by_hand():
    tiny = SIZES["tiny"]  # 2 layers, d_model 64, 2 heads
    forward, backward = (attention_flops(tiny, 3, 10, direction) for direction in ("forward", "backward"))
    assert forward["attention scores"] == forward["final matmul"] == 2 * (2 * 3 * 10 * 10 * 64)
    assert forward["softmax"] == 5 * forward["mask"] == 2 * (5 * 3 * 2 * 10 * 10)
    assert backward["final matmul"] == 2 * forward["final matmul"]
    assert backward["softmax"] == 2 * (4 * 3 * 2 * 10 * 10)
    assert backward["mask"] == 0


def test_a_kernels_count_and_time_are_per_run_and_its_statistics_per_call(two_runs):
    (kernel,) = kernel_table(two_runs, ["inference"]).to_dict("records")
    assert (kernel["count"], kernel["time_ms"]) == (3 / 2, pytest.approx((4 + 6 + 2) / 2 / 1e3))
    assert (kernel["min_us"], kernel["avg_us"], kernel["max_us"]) == (2, pytest.approx((4 + 6 + 2) / 3), 6)
    assert (kernel["median_us"], kernel["std_us"]) == (4, pytest.approx(math.sqrt((0 + 4 + 4) / 3)))
    (layer,) = of(rows_of(two_runs, ["inference"], 10), "layer")
    assert [duration_us for *_, duration_us in json.loads(layer["events"])] == [6, 2]  # of the last run


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
def test_a_short_name_is_the_function_and_for_templates_the_operation(name, short):
    assert short_name(name) == short
