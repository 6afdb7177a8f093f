import dataclasses
import itertools
from types import SimpleNamespace

import pytest
import torch
from triton.runtime.errors import OutOfResources

from pipeline.attention.eager import eager_attention
from pipeline.attention.triton import autograd, forward_plan
from pipeline.attention.triton.gpu import Gpu
from pipeline.errors import Skipped
from pipeline.formulas.attention import Shape, pass_flops
from pipeline.instruments.sampling import side_by_side, sustained
from pipeline.instruments.sampling.interleaving import Taken, Work
from pipeline.instruments.sampling.kernel_timing import latency_sampler
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.instruments.sampling.sustained import Sustained
from pipeline.stages.flash import implementations
from pipeline.stages.flash import measure as measuring
from pipeline.stages.flash.cell import COMPILED, FA4, GPU_ONLY, OURS, PEERS, PHASES, SUSTAINED, TILES, Cell, Settings
from pipeline.stages.flash.measure import measure

from ...records import attention_row, derived, rows_read

CELL = Cell(dtype="fp32", head_dim=16, seq_len=48)
CUDA = torch.device("cuda")
QUICK = Settings(min_samples=3, max_samples=3, budget_s=5.0, call_limit_s=5.0, sustained_s=0.0)


@pytest.fixture
def measured(monkeypatch):
    """Measure a cell with some implementations, others' functions put in their place."""

    def run(names, cell=CELL, settings=QUICK, **replaced):
        monkeypatch.setattr(implementations, "names", lambda _cell, _device, _tiles: list(names))
        for name, attend in replaced.items():
            monkeypatch.setitem(implementations.FUNCTIONS, name, attend)
        rows = rows_read(measure, cell, settings, Stopwatch())
        return {(row["impl"], row["phase"]): row for row in rows}

    return run


V100 = Gpu("Tesla V100", "nvidia", (7, 0), 80, 96 * 1024)
OOM = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 16.00 GiB.")


def test_a_gpu_too_old_for_the_kernels_is_the_reason_for_which_they_are_skipped(measured, monkeypatch):
    monkeypatch.setattr(implementations, "GPU_ONLY", ())
    monkeypatch.setattr(forward_plan, "gpu_of", lambda _device: V100)
    rows = measured(["triton", "eager"], cell=dataclasses.replace(CELL, seq_len=47))  # of which there is no plan yet
    assert {rows["triton", phase]["status"] for phase in PHASES} == {"skipped"}
    assert {rows["triton", phase]["reason"] for phase in PHASES} == {V100.why_refused}
    assert {rows["eager", phase]["status"] for phase in PHASES} <= {"ok", "unstable"}


def test_every_implementation_and_phase_has_a_row_with_time_rate_and_samples(measured):
    rows = measured(["tiled", "eager", "sdpa"])
    assert set(rows) == {(impl, phase) for impl in ("tiled", "eager", "sdpa") for phase in PHASES}
    for (impl, phase), row in rows.items():
        assert (row["n"], row["peak_of"]) == (3, "fp32")
        errors = {name for name in row if name.endswith("_rel_error")}
        quantities = {"forward": ["output"], "backward": ["dq", "dk", "dv"]}.get(phase, [])
        assert errors == {f"{name}_rel_error" for name in quantities}
        assert all(0 < row[name] < 1e-6 for name in errors), impl
        flops = pass_flops(Shape(1, 1, 48, 16, True), phase)
        assert row["tflops_per_s"] == pytest.approx(flops / row["median_ms"] / 1e9)
        assert row["peak_share_pct"] == pytest.approx(100 * row["tflops_per_s"] / row["peak_tflops_per_s"])


def test_errors_are_figures_where_there_is_one_key_and_gradients_vanish(measured):
    def off(q, k, v, is_causal):
        return eager_attention(q, k, v, is_causal) + 1e-3 * (q + k)

    rows = measured(["tiled", "eager", "sdpa"], cell=dataclasses.replace(CELL, seq_len=1), tiled=off)
    for name in ("dq", "dk"):
        errors = {impl: rows[impl, "backward"][f"{name}_rel_error"] for impl in ("tiled", "eager", "sdpa")}
        assert 1e-4 < errors["tiled"] < 1e-2
        assert max(errors["eager"], errors["sdpa"]) < 1e-6


def test_a_wrong_implementation_shows_in_its_errors_and_a_refusal_of_ours_is_skipped(measured):
    def refuse(*_inputs):
        raise ValueError("head_dim is 48: must be one of 16, 32")

    rows = measured(["tiled", "eager"], tiled=lambda q, k, v, _is_causal: eager_attention(q, k, v, False))
    assert rows["tiled", "forward"]["output_rel_error"] > 0.1
    assert rows["tiled", "forward"]["output_max_error"] > 0.1
    rows = measured(["tiled", "eager"], tiled=refuse)
    assert {rows["tiled", phase]["reason"] for phase in PHASES} == {"head_dim is 48: must be one of 16, 32"}
    assert rows["eager", "forward"]["n"] == 3


def laid_out_by_token(q, k, v, causal):
    """Compute attention of contiguous (batch, length, heads, head_dim), with an LSE beside the output."""
    assert q.is_contiguous(), "q must be contiguous"
    assert k.is_contiguous(), "k must be contiguous"
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return eager_attention(q, *(x.repeat_interleave(group, 1) for x in (k, v)), causal).transpose(1, 2), None


@pytest.fixture
def fa4(measured, monkeypatch):
    """Measure a cell with FlashAttention-4 on the CPU, whose function is another."""

    def run(function, cell):
        peer = SimpleNamespace(flash_attn_func=function)
        monkeypatch.setattr(implementations, "GPU_ONLY", ())
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
        monkeypatch.setattr(implementations, "load", lambda _name, _module: peer)
        monkeypatch.setattr(side_by_side, "version_of", lambda _name: "4.0")
        return measured([FA4, "eager"], cell=cell)

    return run


@pytest.mark.parametrize("group", [1, 2])
def test_flash_attention_4_is_called_and_checked_in_its_own_layout(fa4, group):
    rows = fa4(laid_out_by_token, dataclasses.replace(CELL, num_heads=4, query_heads_per_kv_head=group))
    assert all(rows[FA4, phase]["n"] == 3 for phase in PHASES)
    assert 0 < rows[FA4, "forward"]["output_rel_error"] < 1e-6
    assert all(0 < rows[FA4, "backward"][f"{name}_rel_error"] < 1e-6 for name in ("dq", "dk", "dv"))
    assert rows[FA4, "forward"]["package_version"] == "4.0"
    assert "package_version" not in rows["eager", "forward"]


def test_whatever_flash_attention_4_raises_costs_its_own_rows(fa4):
    def refuse(*_inputs, causal):
        raise AssertionError("inputs must be float16 or bfloat16")

    rows = fa4(refuse, CELL)
    assert {rows[FA4, phase]["status"] for phase in PHASES} == {"skipped"}
    reason = "flash-attn-4 raises AssertionError: inputs must be float16 or bfloat16"
    assert rows[FA4, "forward"]["reason"] == reason
    assert rows["eager", "forward"]["n"] == 3


def test_a_gpu_before_hopper_has_no_flash_attention_4(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 9))
    with pytest.raises(Skipped, match="needs a Hopper or Blackwell GPU"):
        implementations.build(FA4, CELL.shape, torch.device("cuda"))


def test_what_launches_too_often_is_not_tried_at_all():
    long = dataclasses.replace(CELL, seq_len=2 * implementations.LONGEST_TILED)
    with pytest.raises(implementations.Skipped, match=f"above a length of {implementations.LONGEST_TILED}"):
        implementations.build("tiled", long.shape, torch.device("cpu"))


def test_single_calls_are_timed_but_those_of_slow_ones(monkeypatch):
    monkeypatch.setattr(measuring, "latency_sampler", lambda _device: latency_sampler(torch.device("cpu")))
    works = {("tiled", phase): Work(lambda _: None) for phase in PHASES}
    assert measuring._latencies(works, (), torch.device("cpu")) == {}
    found = measuring._latencies(works, [("tiled", "backward")], CUDA)
    assert set(found) == {("tiled", "forward"), ("tiled", "forward_backward")}
    columns = measuring._latency_columns(found["tiled", "forward"])
    assert 0 < columns["median_enqueue_ms"] <= columns["median_call_ms"]
    columns = measuring._latency_columns(Taken({"call": [3.0, 1.0, 2.0], "enqueue": [0.5, 0.5, 0.5]}))
    assert (columns["q1_call_ms"], columns["median_call_ms"], columns["q3_call_ms"]) == (1.5, 2.0, 2.5)


@pytest.mark.parametrize("is_causal", [True, False])
def test_shared_keys_are_measured_and_their_gradients_are_those_of_the_shared(measured, is_causal):
    cell = Cell(dtype="fp32", head_dim=16, seq_len=48, num_heads=6, query_heads_per_kv_head=3, is_causal=is_causal)
    rows = measured(["tiled", "eager", "sdpa"], cell=cell)
    for impl in ("eager", "sdpa"):
        assert 0 < rows[impl, "forward"]["output_rel_error"] < 1e-6
        assert all(0 < rows[impl, "backward"][f"{name}_rel_error"] < 1e-6 for name in ("dq", "dk", "dv"))
        row = rows[impl, "forward_backward"]
        assert row["tflops_per_s"] == pytest.approx(pass_flops(cell.shape, "forward_backward") / row["median_ms"] / 1e9)
    for phase in PHASES:
        assert rows["tiled", phase]["status"] == "skipped"
        assert rows["tiled", phase]["reason"] == "needs as many heads of keys as of queries"


def test_our_kernels_share_keys_as_the_reference_does(measured, monkeypatch):
    monkeypatch.setattr(implementations, "GPU_ONLY", ())  # they run in Triton's interpreter
    cell = Cell(dtype="fp32", head_dim=16, seq_len=48, num_heads=4, query_heads_per_kv_head=2)
    rows = measured(["triton", "eager"], cell=cell)
    assert rows["triton", "forward"]["output_rel_error"] < 1e-5
    assert all(rows["triton", "backward"][f"{name}_rel_error"] < 1e-5 for name in ("dq", "dk", "dv"))


def test_fp16_is_measured_and_as_exact_as_it_can_be(measured):
    rows = measured(["tiled", "eager", "sdpa"], cell=dataclasses.replace(CELL, dtype="fp16"))
    for impl in ("tiled", "eager", "sdpa"):
        assert 1e-5 < rows[impl, "forward"]["output_rel_error"] < 2e-3
        assert rows[impl, "forward"]["peak_of"] == "fp16"


SEVERAL = Cell(num_heads=4)
ASKED = dataclasses.replace(QUICK, sustained_s=1.5)


@pytest.fixture
def held(monkeypatch):
    """Choose what runs back to back among works that took 2 ms in turn, each then 3 ms; return that and the calls."""
    asked = []

    def hold(work, call_ms, duration_s):
        asked.append((work.call, call_ms, duration_s))
        return work.prepare() or Sustained(3.0, 1500.0)

    monkeypatch.setattr(sustained, "hold", hold)

    def run(cell=SEVERAL, settings=ASKED, device=CUDA, failed=(), **works):
        works = {
            key: works.get(key[0], Work(key))
            for key in itertools.product(("triton", "sdpa_cudnn", "fa4", "flex"), PHASES)
        }
        taken = {key: Taken({"device": [2.0]}, out_of_memory="no" if key in failed else None) for key in works}
        return measuring._held(cell, works, taken, settings, device), asked

    return run


def test_ours_and_cudnn_run_back_to_back_forward_and_with_the_backward_pass(held):
    found, asked = held()
    assert [call for call, _, _ in asked] == list(found) == list(SUSTAINED)
    assert {(call_ms, duration_s) for _, call_ms, duration_s in asked} == {(2.0, 1.5)}


@pytest.mark.parametrize(
    "of_run",
    [
        {"device": torch.device("cpu")},
        {"cell": Cell(num_heads=1)},
        {"settings": QUICK},
    ],
)
def test_nothing_runs_back_to_back_on_a_cpu_with_one_head_or_where_it_is_off(held, of_run):
    assert held(**of_run) == ({}, [])


def test_what_ran_out_of_memory_or_runs_out_now_is_left_out(held):
    def out_of_memory():
        raise OOM

    failed = ("sdpa_cudnn", "forward_backward")
    found, _ = held(failed=[failed], triton=Work(None, prepare=out_of_memory))
    assert list(found) == [("sdpa_cudnn", "forward"), *(("fa4", phase) for phase in ("forward", "forward_backward"))]
    (row,) = derived(SEVERAL, QUICK, [attention_row(**measuring._sustained_columns(found["fa4", "forward"]))])
    assert row["sustained_tflops_per_s"] == pytest.approx(pass_flops(SEVERAL.shape, "forward") / 3e9)


def test_what_torch_compiles_for_every_shape_is_measured_at_several_heads_only():
    for device in ("cpu", "cuda"):
        one, two = (
            implementations.names(dataclasses.replace(CELL, num_heads=heads), torch.device(device)) for heads in (1, 2)
        )
        assert set(two) - set(one) == set(COMPILED)
    assert {key["impl"] for key in CELL.row_keys()}.isdisjoint(COMPILED)


def test_a_cpu_skips_what_needs_a_gpu_and_has_torch_s_own_choice(measured):
    cpu = torch.device("cpu")
    several_heads = dataclasses.replace(CELL, num_heads=2)
    assert implementations.names(several_heads, cpu) == [*OURS, *PEERS, FA4]
    assert "sdpa" not in implementations.names(several_heads, torch.device("cuda"))
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    rows = measured(["eager", *GPU_ONLY])
    assert {rows[impl, phase]["reason"] for impl in GPU_ONLY for phase in PHASES} == {"needs a CUDA GPU"}


def test_only_where_it_is_asked_for_ours_also_runs_by_size_of_tile_and_what_does_not_fit_says_so(measured, monkeypatch):
    cuda = torch.device("cuda")
    assert set(implementations.names(CELL, cuda, tiles=True)) - set(implementations.names(CELL, cuda)) == {*TILES}
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    planned = autograd.planned_by

    def fits_up_to_16(choices):
        if choices.forward_tiles.block_queries == choices.forward_tiles.block_keys > 16:
            raise OutOfResources(98304, 65536, "shared memory")
        return planned(choices)

    monkeypatch.setattr(implementations, "GPU_ONLY", ())
    monkeypatch.setattr(autograd, "planned_by", fits_up_to_16)
    rows = measured(["triton_16", "triton_32"], settings=dataclasses.replace(QUICK, call_limit_s=60.0))
    assert rows["triton_16", "backward"]["dq_rel_error"] < 1e-5
    assert {rows["triton_32", phase]["status"] for phase in PHASES} == {"skipped"}
    assert "tiles of 32 raises OutOfResources: out of resource: shared mem" in rows["triton_32", "forward"]["reason"]


@pytest.fixture
def gpu():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU")
    return torch.device("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_every_implementation_on_a_gpu_is_right_or_says_why_not(gpu, dtype, is_causal):
    cell = Cell(dtype=dtype, head_dim=64, seq_len=512, num_heads=2, is_causal=is_causal)
    rows = {(row["impl"], row["phase"]): row for row in rows_read(measure, cell, QUICK, Stopwatch())}
    refused = {"sdpa_flash", "sdpa_cudnn"} if dtype == "fp32" else set()
    for impl in implementations.names(cell, gpu):
        row = rows[impl, "forward"]
        if impl == FA4 and row["status"] == "skipped":  # its extra is not installed, or it is fp32
            assert row["reason"]
            continue
        if impl in refused:
            assert row["status"] == "skipped"
            assert "dtype" in row["reason"]
            continue
        assert row["clock"] == "device"
        assert row["output_rel_error"] < (1e-2 if dtype != "fp32" else 2e-3 if impl == "flex" else 1e-5)
        assert rows[impl, "backward"]["dq_rel_error"] < (2e-2 if dtype != "fp32" else 1e-2 if impl == "flex" else 1e-5)
        assert row["median_enqueue_ms"] <= row["median_call_ms"]


@pytest.mark.gpu
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_shared_keys_are_right_with_every_implementation_on_a_gpu_that_takes_them(gpu, dtype, is_causal):
    cell = Cell(dtype, head_dim=64, seq_len=512, num_heads=8, query_heads_per_kv_head=4, is_causal=is_causal)
    rows = {(row["impl"], row["phase"]): row for row in rows_read(measure, cell, QUICK, Stopwatch())}
    assert rows["tiled", "forward"]["status"] == "skipped"
    for impl in ("triton", "eager", "compiled_eager", "sdpa_flash", "flex"):
        assert rows[impl, "forward"]["output_rel_error"] < 1e-2
        assert all(rows[impl, "backward"][f"{name}_rel_error"] < 2e-2 for name in ("dq", "dk", "dv"))
    for impl in ("sdpa_cudnn", "sdpa_efficient"):  # not on every GPU, nor with every torch: what refuses says so
        assert rows[impl, "forward"].get("output_rel_error", 0) < 1e-2
        assert all(rows[impl, "backward"].get(f"{name}_rel_error", 0) < 2e-2 for name in ("dq", "dk", "dv"))
        assert rows[impl, "forward"]["status"] != "skipped" or rows[impl, "forward"]["reason"]
    assert rows["triton", "forward"]["sdpa_choice"] in ("sdpa_flash", "sdpa_cudnn")


@pytest.mark.gpu
def test_what_a_gpu_holds_is_about_what_it_does_in_turn(gpu, measured):
    cell = Cell("bf16", head_dim=128, seq_len=4096, batch_size=4, num_heads=16)
    rows = measured(["triton", "eager"], cell=cell, settings=dataclasses.replace(QUICK, sustained_s=0.3))
    for phase in ("forward", "forward_backward"):
        row = rows["triton", phase]
        assert row["sustained_ms"] == pytest.approx(row["median_ms"], rel=0.5)
        assert row["sustained_tflops_per_s"] * row["sustained_ms"] == pytest.approx(
            row["tflops_per_s"] * row["median_ms"]
        )
    assert "sustained_ms" not in rows["triton", "backward"]
    assert not any("sustained_ms" in rows["eager", phase] for phase in PHASES)


@pytest.mark.gpu
def test_flash_attention_adds_no_quadratic_memory_on_a_gpu(gpu, measured):
    cell = Cell(dtype="bf16", head_dim=64, seq_len=4096)
    rows = measured(["triton", "eager"], cell=cell)
    scores = cell.shape.scores * 2
    assert rows["eager", "forward_backward"]["extra_bytes"] >= 3 * scores
    assert rows["triton", "forward_backward"]["extra_bytes"] < scores
