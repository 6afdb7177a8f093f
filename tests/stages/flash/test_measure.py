import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from triton.runtime.errors import OutOfResources

from pipeline.attention.eager import eager_attention
from pipeline.attention.triton import autograd, forward_plan
from pipeline.attention.triton.gpu import Gpu
from pipeline.errors import Skipped
from pipeline.formulas.attention import pass_flops
from pipeline.instruments.sampling import side_by_side, sustained
from pipeline.instruments.sampling.interleaving import Taken, Work
from pipeline.instruments.sampling.kernel_timing import latency_sampler
from pipeline.stages.flash import implementations
from pipeline.stages.flash import measure as measuring
from pipeline.stages.flash.cell import COMPILED, FA4, GPU_ONLY, OURS, PEERS, PHASES, SUSTAINED, TILES, Cell, Settings

from ...records import attention_row, derived, rows_read

CELL = Cell(dtype="fp32", head_dim=16, seq_len=48)
SHARED = replace(CELL, num_heads=6, query_heads_per_kv_head=3)
UNMASKED = replace(SHARED, is_causal=False)
QUICK = Settings(min_samples=3, max_samples=3, budget_s=5.0, call_limit_s=5.0, sustained_s=0.0)
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
QUANTITIES = {"forward": ["output"], "backward": ["dq", "dk", "dv"], "forward_backward": []}
SEVERAL, HELD = Cell(num_heads=4), replace(QUICK, sustained_s=1.5)
V100 = Gpu("Tesla V100", "nvidia", (7, 0), 80, 96 * 1024)


@pytest.fixture
def measured(monkeypatch):
    """Measure a cell with some implementations, whose functions the test may replace."""

    def run(names, cell=CELL, settings=QUICK, **replaced):
        monkeypatch.setattr(implementations, "names", lambda _cell, _device, _tiles: list(names))
        for name, attend in replaced.items():
            monkeypatch.setitem(implementations.FUNCTIONS, name, attend)
        rows = rows_read(measuring.measure, cell, settings)
        return {(row["impl"], row["phase"]): row for row in rows}

    return run


@pytest.fixture
def gpu_is_cpu(monkeypatch):
    """Let what needs a GPU run on the CPU: our kernels in Triton's interpreter."""
    monkeypatch.setattr(implementations, "GPU_ONLY", ())


@pytest.mark.parametrize(
    ("cell", "exact"),
    [(CELL, (0, 1e-6)), (replace(CELL, dtype="fp16"), (1e-5, 2e-3)), (SHARED, (0, 1e-6)), (UNMASKED, (0, 1e-6))],
)
def test_every_implementation_and_phase_has_a_row_with_time_rate_and_errors(measured, cell, exact):
    rows = measured(["tiled", "eager", "sdpa"], cell=cell)
    assert set(rows) == {(impl, phase) for impl in ("tiled", "eager", "sdpa") for phase in PHASES}
    for (impl, phase), row in rows.items():
        if impl == "tiled" and cell.shape.has_shared_keys:
            assert (row["status"], row["reason"]) == ("skipped", "needs as many heads of keys as of queries")
            continue
        assert (row["n"], row["peak_of"]) == (3, cell.dtype)
        errors = {name for name in row if name.endswith("_rel_error")}
        assert errors == {f"{name}_rel_error" for name in QUANTITIES[phase]}
        assert all(exact[0] < row[name] < exact[1] for name in errors), impl
        assert row["tflops_per_s"] == pytest.approx(pass_flops(cell.shape, phase) / row["median_ms"] / 1e9)
        assert row["peak_share_pct"] == pytest.approx(100 * row["tflops_per_s"] / row["peak_tflops_per_s"])


@pytest.mark.usefixtures("gpu_is_cpu")
def test_our_kernels_are_skipped_on_a_gpu_that_is_too_old(measured, monkeypatch):
    monkeypatch.setattr(forward_plan, "gpu_of", lambda _device: V100)
    rows = measured(["triton", "eager"], cell=replace(CELL, seq_len=47))  # a shape without a plan yet
    outcomes = {(rows["triton", phase]["status"], rows["triton", phase]["reason"]) for phase in PHASES}
    assert outcomes == {("skipped", V100.why_refused)}
    assert {rows["eager", phase]["status"] for phase in PHASES} <= {"ok", "unstable"}


@pytest.mark.parametrize("others", [[], ["eager", "sdpa"]])
def test_a_wrong_implementation_has_errors_and_no_times(measured, others):
    rows = measured(["tiled", *others], tiled=lambda q, k, v, _is_causal: eager_attention(q, k, v, False))
    assert min(rows["tiled", "forward"]["output_rel_error"], rows["tiled", "forward"]["output_max_error"]) > 0.1
    assert {rows["tiled", phase]["status"] for phase in PHASES} == {"wrong"}
    assert not any("samples_ms" in rows["tiled", phase] for phase in PHASES)
    assert all("samples_ms" in rows[name, phase] for name in others for phase in PHASES)


def laid_out_by_token(q, k, v, causal):
    """Compute attention of contiguous (batch, length, heads, head_dim); return it and None for the LSE."""
    assert q.is_contiguous(), "q must be contiguous"
    assert k.is_contiguous(), "k must be contiguous"
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return eager_attention(q, *(x.repeat_interleave(group, 1) for x in (k, v)), causal).transpose(1, 2), None


@pytest.mark.usefixtures("gpu_is_cpu")
@pytest.mark.parametrize("group", [1, 2])
def test_flash_attention_4_is_called_and_checked_in_its_own_layout(measured, monkeypatch, group):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    monkeypatch.setattr(side_by_side, "version_of", lambda _name: "4.0")
    peer = SimpleNamespace(flash_attn_func=laid_out_by_token)
    monkeypatch.setattr(implementations, "load", lambda _name, _module: peer)
    rows = measured([FA4, "eager"], cell=replace(CELL, num_heads=4, query_heads_per_kv_head=group))
    for phase, names in QUANTITIES.items():
        assert rows[FA4, phase]["n"] == 3
        assert all(0 < rows[FA4, phase][f"{name}_rel_error"] < 1e-6 for name in names)
    assert rows[FA4, "forward"]["package_version"] == "4.0"
    assert "package_version" not in rows["eager", "forward"]


def test_single_calls_are_timed_except_slow_ones(monkeypatch):
    monkeypatch.setattr(measuring, "latency_sampler", lambda _device: latency_sampler(CPU))
    works = {("tiled", phase): Work(lambda _: None) for phase in PHASES}
    assert measuring._latencies(works, (), CPU) == {}
    found = measuring._latencies(works, [("tiled", "backward")], CUDA)
    assert set(found) == {("tiled", "forward"), ("tiled", "forward_backward")}
    columns = measuring._latency_columns(found["tiled", "forward"])
    assert 0 < columns["median_enqueue_ms"] <= columns["median_call_ms"]
    columns = measuring._latency_columns(Taken({"call": [3.0, 1.0, 2.0], "enqueue": [0.5, 0.5, 0.5]}))
    assert (columns["q1_call_ms"], columns["median_call_ms"], columns["q3_call_ms"]) == (1.5, 2.0, 2.5)


def test_ours_and_its_rivals_run_back_to_back_at_several_heads_on_a_gpu(monkeypatch):
    asked = []

    def hold(work, call_ms, duration_s):
        asked.append((work.call, call_ms, duration_s))
        return work.prepare() or sustained.Sustained(3.0, 1500.0)

    def held(cell=SEVERAL, settings=HELD, device=CUDA, failed=(), **works):
        asked.clear()
        keys = itertools.product(("triton", "sdpa_cudnn", "fa4", "flex"), PHASES)
        works = {key: works.get(key[0], Work(key)) for key in keys}
        taken = {key: Taken({"device": [2.0]}, out_of_memory="no" if key in failed else None) for key in works}
        return measuring._held(cell, works, taken, settings, device)

    def out_of_memory():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 16.00 GiB.")

    monkeypatch.setattr(sustained, "hold", hold)
    for nothing in ({"device": CPU}, {"cell": Cell(num_heads=1)}, {"settings": QUICK}):
        assert (held(**nothing), asked) == ({}, [])
    assert [*held()] == [*SUSTAINED]
    assert asked == [(key, 2.0, 1.5) for key in SUSTAINED]
    found = held(failed=[("sdpa_cudnn", "forward_backward")], triton=Work(None, prepare=out_of_memory))
    assert list(found) == [("sdpa_cudnn", "forward"), ("fa4", "forward"), ("fa4", "forward_backward")]
    (row,) = derived(SEVERAL, QUICK, [attention_row(**measuring._sustained_columns(found["fa4", "forward"]))])
    assert row["sustained_tflops_per_s"] == pytest.approx(pass_flops(SEVERAL.shape, "forward") / 3e9)


def test_implementations_depend_on_heads_device_settings_and_length(measured, monkeypatch):
    several = replace(CELL, num_heads=2)
    for device in (CPU, CUDA):  # what torch compiles for every shape is measured at several heads only
        assert {*implementations.names(several, device)} - {*implementations.names(CELL, device)} == {*COMPILED}
    assert {key["impl"] for key in CELL.row_keys()}.isdisjoint(COMPILED)
    assert {*implementations.names(CELL, CUDA, tiles=True)} - {*implementations.names(CELL, CUDA)} == {*TILES}
    assert implementations.names(several, CPU) == [*OURS, *PEERS, FA4]
    assert "sdpa" not in implementations.names(several, CUDA)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert {row["reason"] for row in measured(GPU_ONLY).values()} == {"needs a CUDA GPU"}
    long = replace(CELL, seq_len=2 * implementations.LONGEST_TILED)
    with pytest.raises(Skipped, match=f"above a length of {implementations.LONGEST_TILED}"):
        implementations.build("tiled", long.shape, CPU)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 9))
    with pytest.raises(Skipped, match="needs a Hopper or Blackwell GPU"):
        implementations.build(FA4, CELL.shape, CUDA)


@pytest.mark.usefixtures("gpu_is_cpu")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_our_kernels_run_with_each_tile_size_or_say_that_it_does_not_fit(measured, monkeypatch):
    planned = autograd.planned_by

    def fits_up_to_16(choices):
        if choices.forward_tiles.block_queries == choices.forward_tiles.block_keys > 16:
            raise OutOfResources(98304, 65536, "shared memory")
        return planned(choices)

    monkeypatch.setattr(autograd, "planned_by", fits_up_to_16)
    rows = measured(["triton_16", "triton_32"], settings=replace(QUICK, call_limit_s=60.0))
    assert rows["triton_16", "backward"]["dq_rel_error"] < 1e-5
    assert {rows["triton_32", phase]["status"] for phase in PHASES} == {"skipped"}
    assert "tiles of 32 raises OutOfResources: out of resource: shared mem" in rows["triton_32", "forward"]["reason"]


def rows_on_gpu(cell):
    return {(row["impl"], row["phase"]): row for row in rows_read(measuring.measure, cell, QUICK)}


@pytest.mark.gpu
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_every_implementation_on_a_gpu_is_right_or_says_why_not(dtype, is_causal):
    cell = Cell(dtype=dtype, head_dim=64, seq_len=512, num_heads=2, is_causal=is_causal)
    rows = rows_on_gpu(cell)
    refused = {"sdpa_flash", "sdpa_cudnn"} if dtype == "fp32" else set()
    for impl in implementations.names(cell, CUDA):
        row = rows[impl, "forward"]
        if impl == FA4 and row["status"] == "skipped":  # its extra is not installed, or it is fp32
            assert row["reason"]
            continue
        if impl in refused:
            assert (row["status"], "dtype" in row["reason"]) == ("skipped", True)
            continue
        assert row["clock"] == "device"
        assert row["output_rel_error"] < (1e-2 if dtype != "fp32" else 2e-3 if impl == "flex" else 1e-5)
        assert rows[impl, "backward"]["dq_rel_error"] < (2e-2 if dtype != "fp32" else 1e-2 if impl == "flex" else 1e-5)
        assert row["median_enqueue_ms"] <= row["median_call_ms"]


@pytest.mark.gpu
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_gqa_is_right_on_a_gpu_with_every_implementation_that_supports_it(dtype, is_causal):
    rows = rows_on_gpu(Cell(dtype, 64, 512, num_heads=8, query_heads_per_kv_head=4, is_causal=is_causal))
    assert rows["tiled", "forward"]["status"] == "skipped"
    for impl in ("triton", "eager", "compiled_eager", "sdpa_flash", "flex"):
        assert rows[impl, "forward"]["output_rel_error"] < 1e-2
        assert all(rows[impl, "backward"][f"{name}_rel_error"] < 2e-2 for name in ("dq", "dk", "dv"))
    for impl in ("sdpa_cudnn", "sdpa_efficient"):  # not on every GPU, nor with every torch: a refusal has a reason
        assert rows[impl, "forward"].get("output_rel_error", 0) < 1e-2
        assert all(rows[impl, "backward"].get(f"{name}_rel_error", 0) < 2e-2 for name in ("dq", "dk", "dv"))
        assert rows[impl, "forward"]["status"] != "skipped" or rows[impl, "forward"]["reason"]
    assert rows["triton", "forward"]["sdpa_choice"] in ("sdpa_flash", "sdpa_cudnn")


@pytest.mark.gpu
def test_the_sustained_rate_on_a_gpu_is_close_to_the_interleaved_one(measured):
    cell = Cell("bf16", head_dim=128, seq_len=4096, batch_size=4, num_heads=16)
    rows = measured(["triton", "eager"], cell=cell, settings=replace(QUICK, sustained_s=0.3))
    for phase in ("forward", "forward_backward"):
        row = rows["triton", phase]
        assert row["sustained_ms"] == pytest.approx(row["median_ms"], rel=0.5)
        held, in_turn = row["sustained_tflops_per_s"] * row["sustained_ms"], row["tflops_per_s"] * row["median_ms"]
        assert held == pytest.approx(in_turn)
    assert "sustained_ms" not in rows["triton", "backward"]
    assert not any("sustained_ms" in rows["eager", phase] for phase in PHASES)


@pytest.mark.gpu
def test_flash_attention_adds_no_quadratic_memory_on_a_gpu(measured):
    cell = Cell(dtype="bf16", head_dim=64, seq_len=4096)
    rows = measured(["triton", "eager"], cell=cell)
    scores = cell.shape.scores * 2
    assert rows["eager", "forward_backward"]["extra_bytes"] >= 3 * scores
    assert rows["triton", "forward_backward"]["extra_bytes"] < scores
