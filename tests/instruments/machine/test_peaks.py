import pytest
import torch

from pipeline.instruments.machine import peaks
from pipeline.instruments.machine.peaks import datasheet_gb_per_s, datasheet_peak_tflops, measured_peak_tflops
from pipeline.tf32 import allows_tf32

PRECISIONS = ["fp32", "tf32", "bf16"]


@pytest.mark.parametrize(
    ("name", "rates", "gb_per_s"),
    [
        ("NVIDIA H200", [66.9, 494.7, 989.4], 4800.0),
        ("Tesla V100-SXM2-16GB", [15.7, None, None], 900.0),
        *((name, [None] * 3, None) for name in ("NVIDIA H200 NVL", "NVIDIA H20", "nvidia h200", "NVIDIA A100", "")),
    ],
)
def test_datasheet_rates_are_found_by_exact_name_only(name, rates, gb_per_s):
    assert [datasheet_peak_tflops(name, precision) for precision in PRECISIONS] == rates
    assert datasheet_gb_per_s(name) == gb_per_s


@pytest.mark.parametrize("name", sorted(peaks._DATASHEETS))
def test_every_datasheet_has_a_bandwidth_and_dense_rates_in_the_usual_ratios(name):
    rates = peaks._DATASHEETS[name]
    if "bf16" in rates:
        assert rates["bf16"] == rates["fp16"] == pytest.approx(2 * rates["tf32"], rel=0.02)
        assert rates["fp32"] < rates["tf32"]
    assert rates.get("fp8", 2 * rates["fp16"]) == pytest.approx(2 * rates["fp16"], rel=0.02)
    assert datasheet_gb_per_s(name) > 0


@pytest.mark.parametrize("peak", [datasheet_peak_tflops, measured_peak_tflops])
def test_an_unknown_precision_is_refused(peak):
    with pytest.raises(ValueError, match="fp4"):
        peak("cpu", "fp4")


@pytest.mark.parametrize(("gflops", "size"), [(1000, 1024), (25, 1024), (20, 512), (1, 256), (0.1, 128), (0.01, 128)])
def test_a_slow_cpu_multiplies_smaller_matrices(monkeypatch, gflops, size):
    monkeypatch.setattr(peaks, "_products", lambda size, _dtype, _device: [size])
    monkeypatch.setattr(peaks, "_times_ms", lambda size, on_gpu: [2 * size**3 / gflops / 1e6])
    assert peaks._cpu_size(torch.bfloat16) == size
    assert measured_peak_tflops("cpu", "bf16") == pytest.approx(gflops / 1e3)


def test_the_rate_is_of_the_fastest_timed_layout_at_two_flops_per_multiply_add(monkeypatch):
    choosing, warm_up, timed = [[3.0]] * 3, [[1.0]] * 3, [[9.0], [5.0, 2.0, 4.0], [8.0]]
    times_ms = iter([*choosing, *warm_up, *timed])
    monkeypatch.setattr(peaks, "_CPU_SIZES", (100,))
    monkeypatch.setattr(peaks, "_times_ms", lambda multiply, on_gpu: next(times_ms))
    assert measured_peak_tflops("cpu", "fp32") == pytest.approx(2 * 100**3 / 2e-3 / 1e12)


@pytest.mark.parametrize(("precision", "setting"), [("fp32", "highest"), ("tf32", "high"), ("bf16", "highest")])
def test_float32_products_run_as_requested_and_restore_the_setting(monkeypatch, tf32_switch, precision, setting):
    seen, dtypes, real_mm = set(), set(), torch.mm

    def watched_mm(left, right, out):
        seen.add(torch.get_float32_matmul_precision())
        dtypes.add(left.dtype)
        return real_mm(left, right, out=out)

    monkeypatch.setattr(peaks, "_CPU_SIZES", (16,))
    monkeypatch.setattr(torch, "mm", watched_mm)
    assert 0 < measured_peak_tflops("cpu", precision) < 10
    assert allows_tf32() == tf32_switch.allows_tf32
    assert seen == {setting}
    assert dtypes == {torch.bfloat16 if precision == "bf16" else torch.float32}


def test_only_gpus_without_a_datasheet_are_measured(monkeypatch):
    monkeypatch.setattr(peaks, "measured_peak_tflops", lambda device, precision: 7.0)
    for name, measured in (("NVIDIA L4", None), ("NVIDIA L4000", 7.0)):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        assert peaks.peak_to_measure("cuda", "bf16") == measured


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_measured_gpu_stays_under_its_datasheet(precision):
    promised = datasheet_peak_tflops(torch.cuda.get_device_name(), precision)
    if promised is None:
        pytest.skip("no datasheet known")
    assert 0.4 * promised < measured_peak_tflops("cuda", precision) < 1.05 * promised
