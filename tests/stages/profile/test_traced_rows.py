# ruff: noqa: E501  real names are long
import json
import math

import pandas as pd
import pytest

from pipeline.formulas.sizes import SIZES
from pipeline.stages.profile.cell import ATTENTION_PHASES
from pipeline.stages.profile.rows import attention_flops
from pipeline.stages.profile.traced_rows import _layer_rows, kernel_table, short_name

from .conftest import trace_of


@pytest.fixture(scope="module")
def rows(frame_of):
    return frame_of({"precision": "bf16", "size": "large", "context_length": 256})


@pytest.fixture
def two_runs():
    """A trace of two runs of a layer, of one kernel: once for 4 µs; then for 6 and 2."""
    work = [("gemm", 7, 5.0, 4.0, 1), ("gemm", 7, 25.0, 6.0, 2), ("gemm", 7, 32.0, 2.0, 3)]
    launches = [(1, 1.0, 1), (2, 21.0, 1), (3, 22.0, 1)]
    ranges = [(name, 1, start, 10.0) for start in (0.0, 20.0) for name in ("inference", "layers.0")]
    return trace_of(work, launches, ranges, "by hand")


def by_category(rows, path):
    return rows[(rows["kind"] == "category") & (rows["range"] == path)].set_index("category")


def clock(rows, path, name):
    return rows[(rows["kind"] == "time") & (rows["range"] == path) & (rows["clock"] == name)].iloc[0]


def test_categories_add_up_to_the_sum_of_kernels(rows):
    for path in ("inference", "forward_backward", "train_step", "train_step/backward"):
        shares = by_category(rows, path)
        assert shares["share_pct"].sum() == pytest.approx(100)
        assert shares["time_ms"].sum() == pytest.approx(clock(rows, path, "kernel_sum")["mean_ms"])


def test_counts_are_of_one_run_and_those_of_a_backward_pass_launched_from_another_thread_are_the_steps(rows):
    # Three layers of seven linear products and two inside attention; captured twice.
    assert by_category(rows, "inference").loc["matmul", "count"] == 3 * 9
    assert clock(rows, "inference", "span")["n"] == 2
    assert by_category(rows, "train_step/backward").loc["matmul", "count"] == 3 * 14
    assert by_category(rows, "train_step").loc["matmul", "count"] == 3 * (9 + 14)


def test_kernels_are_ranked_by_time_and_named_apart_from_each_other(rows):
    kernels = rows[(rows["kind"] == "kernel") & (rows["range"] == "inference")]
    assert list(kernels["rank"]) == list(range(1, len(kernels) + 1))
    assert kernels["time_ms"].is_monotonic_decreasing
    assert kernels.iloc[0][["kernel", "count"]].tolist() == ["nvjet_tst_128x256_64x4_v_bz_TNT", 21]
    assert kernels["avg_us"].tolist() == pytest.approx((1e3 * kernels["time_ms"] / kernels["count"]).tolist())


def test_attentions_products_are_counted_without_mask_and_scaling(rows):
    phases = rows[(rows["kind"] == "attention") & (rows["range"] == "inference")].set_index("phase")
    scores, mask, softmax, final = (phases.loc[name] for name in ATTENTION_PHASES)
    assert scores["matmul_ms"] == pytest.approx(final["matmul_ms"])
    assert scores["time_ms"] > scores["matmul_ms"]
    assert softmax["matmul_ms"] == mask["matmul_ms"] == 0 < mask["time_ms"]
    assert list(phases["count"]) == [6, 3, 3, 3]
    # The backward pass, told from the forward pass before it.
    phases = rows[(rows["kind"] == "attention") & (rows["range"] == "backward_by_part")].set_index("phase")
    assert dict(phases["count"]) == {"attention scores": 2, "softmax": 1, "final matmul": 2}
    assert phases.loc["final matmul", "matmul_ms"] == pytest.approx(0.02)


def test_flops_of_attention_by_hand():
    tiny = SIZES["tiny"]  # 2 layers, d_model 64, 2 heads
    forward, backward = (attention_flops(tiny, 3, 10, direction) for direction in ("forward", "backward"))
    assert forward["attention scores"] == forward["final matmul"] == 2 * (2 * 3 * 10 * 10 * 64)
    assert forward["softmax"] == 5 * forward["mask"] == 2 * (5 * 3 * 2 * 10 * 10)
    assert backward["final matmul"] == 2 * forward["final matmul"]
    assert backward["softmax"] == 2 * (4 * 3 * 2 * 10 * 10)
    assert backward["mask"] == 0


def test_a_kernels_count_and_time_are_of_a_run_and_its_mean_and_extremes_of_a_call(two_runs):
    (kernel,) = kernel_table(two_runs, ["inference"]).to_dict("records")
    assert (kernel["count"], kernel["time_ms"]) == (3 / 2, pytest.approx((4 + 6 + 2) / 2 / 1e3))
    assert (kernel["min_us"], kernel["avg_us"], kernel["max_us"]) == (2, pytest.approx((4 + 6 + 2) / 3), 6)
    assert (kernel["median_us"], kernel["std_us"]) == (4, pytest.approx(math.sqrt((0 + 4 + 4) / 3)))
    (layer,) = _layer_rows(two_runs, "inference")
    assert [duration_us for *_, duration_us in json.loads(layer["events"])] == [6, 2]  # of the last run


def test_the_layers_timeline_is_one_layer_of_one_run(rows):
    layer = rows[rows["kind"] == "layer"].iloc[0]
    events = pd.DataFrame(
        json.loads(layer["events"]), columns=["name", "category", "path", "stream", "start_us", "duration_us"]
    )
    assert layer["layer"] == "layers.1"
    assert len(events) == 14
    assert list(events["path"][[0, 4, 7, 8, 10, 11]]) == [
        "attention_norm",
        "attention",
        "attention/attention/mask",
        "attention/attention/softmax",
        "",
        "feed_forward",
    ]
    assert events["start_us"].iloc[0] == 0
    assert (events["start_us"].diff().dropna() > 0).all()


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
