import pytest

from pipeline.stages.health.rows import FINDINGS

from .conftest import UNTOLD, read, recorded, slow


@pytest.mark.parametrize(("gpus", "place", "factor"), [(8, 5, 1.1), (2, 1, 2.0)])
def test_only_the_slower_gpu_is_flagged(rng, gpus, place, factor):
    rows = read(recorded(rng, gpus, {place: factor}))
    assert slow(rows) == {(place, None)}
    worst = [row for row in rows if row["kind"] == "rate" and row["gpu_index"] == place]
    assert all(row["below_pct"] == pytest.approx(100 * (1 - 1 / factor), abs=1.1) for row in worst)


def test_links_are_compared_within_a_path_and_gpus_within_a_model(rng):
    rows = recorded(rng, 4, {(2, 3): 1.1})
    for row in rows:  # a slow path between distant GPUs is not a finding
        if {row["gpu_index"], row.get("peer_index")} == {0, 1}:
            row |= {"path": "PCIe", "samples_ms": [9 * each for each in row["samples_ms"]]}
    assert slow(read(rows)) == {(2, 3)}
    # Cards of different models are not compared.
    rows = recorded(rng, 4, {3: 1.5})
    assert slow(read([row | ({"model": "NVIDIA L4"} if row["gpu_index"] == 3 else {}) for row in rows])) == set()


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"ecc_uncorrected": 1}, "ecc"),
        ({"failed_row_remaps": 1}, "row_remaps"),
        ({"pcie_widths": [8, 8]}, "pcie"),
        ({"pcie_generations": [3, 4]}, "pcie"),
        ({"nvlinks_up": 17}, "nvlinks"),
        ({"nvlink_recoveries": 2}, "nvlink_recoveries"),
        ({"throttle_reasons": ["hw_thermal_slowdown", "sw_power_cap"]}, "throttled"),
        ({"throttle_reasons": ["applications_clocks"]}, "throttled"),
        ({"utilization_before_pct": 40}, "in_use"),
        ({"pcie_generations": [1, 5, 5]}, None),  # it woke up under load
    ],
)
def test_each_finding_is_reported_only_for_its_gpu(rng, changes, found):
    assert found in (*FINDINGS, None)
    rows = recorded(rng, 2, links=False)
    rows[0] |= changes
    assert [row["findings"] for row in read(rows) if row["kind"] == "gpu"] == [[found] if found else [], []]


def test_a_counter_nvml_does_not_report_is_neither_a_finding_nor_zero(rng):
    rows = recorded(rng, 2, links=False)
    rows[0] |= UNTOLD | {"absent": ["ecc_uncorrected: Not Supported"]}
    state = read(rows)[0]
    assert (state["findings"], state.get("mean_power_w"), state.get("ecc_uncorrected")) == ([], None, None)


def test_rates_follow_from_size_and_median(rng):
    rows = [row for row in read(recorded(rng, 2)) if "samples_ms" in row]
    for row in rows:
        if row.get("work") == "matmul":
            assert row["tflops_per_s"] == pytest.approx(2 * 8192**3 / row["median_ms"] / 1e9)
        else:
            passes = {"rate": 2, "link": 1}[row["kind"]]
            assert row["gb_per_s"] == pytest.approx(passes * row["size"] / row["median_ms"] / 1e6)
