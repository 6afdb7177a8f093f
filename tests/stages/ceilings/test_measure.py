from itertools import product

import pytest
import torch

from pipeline.instruments.machine import ceilings
from pipeline.stages.ceilings import measure
from pipeline.stages.ceilings.cell import DTYPES, KINDS, Cell, Settings

from ...records import rows_read

SETTINGS = Settings(max_side=64, memory_bytes=65536, link_bytes=65536, samples=3, max_samples=3)


@pytest.fixture
def measured(monkeypatch):
    """Measure a cell at tiny sizes on the CPU; its rows are checked against the declaration."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return lambda what: rows_read(measure.measure, Cell(what), SETTINGS)


def test_declared_dtypes_and_kinds_can_be_measured_and_sides_halve():
    assert set(DTYPES) == set(ceilings.DTYPES)
    assert {kind for kinds in KINDS.values() for kind in kinds} == {*ceilings._CALLS} - {"matmul"}
    assert Settings().sides() == [1024, 2048, 4096, 8192, 16384]


def test_products_have_a_rate_per_side_and_dtypes_a_cpu_lacks_are_skipped(measured):
    rows = measured("matmul")
    timed = [row for row in rows if row["status"] != "skipped"]
    assert [(row["side"], row["dtype"]) for row in timed] == [*product((16, 32, 64), ("bf16", "fp32"))]  # small first
    for row in timed:
        assert row["n"] == 3
        assert row["tflops_per_s"] == pytest.approx(2 * row["side"] ** 3 / row["median_ms"] / 1e9)
    lacking = [row["reason"] for row in rows if row["status"] == "skipped"]
    assert lacking == [f"{dtype} needs a GPU" for dtype in ("fp16", "tf32", "fp8")]


def test_slow_products_are_skipped_and_calls_that_do_not_fit_are_out_of_memory(measured, monkeypatch):
    monkeypatch.setattr(measure, "LONGEST_CALL_MS", 0.0)
    first, skipped = (row for row in measured("matmul") if row["dtype"] == "fp32")
    assert ("samples_ms" in first, skipped["side"], skipped["status"]) == (True, 32, "skipped")

    def out_of_memory():
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setitem(ceilings._CALLS, "copy", lambda _ceiling, _device: out_of_memory)
    copied, reduced, _ = measured("memory")
    assert (copied["status"], "samples_ms" in reduced) == ("oom", True)


def test_a_cpu_has_memory_rates_and_operator_times_and_skips_what_needs_a_gpu(measured):
    copy, reduction, l2_copy = measured("memory")
    assert copy["gb_per_s"] == pytest.approx(2 * 65536 / copy["median_ms"] / 1e6)
    assert reduction["gb_per_s"] == pytest.approx(65536 / reduction["median_ms"] / 1e6)
    assert l2_copy == {"kind": "l2_copy", "status": "skipped", "reason": "l2_copy needs a GPU"}
    launch, operator = measured("launches")
    assert 0 < operator["median_ms"] < 1
    assert "gb_per_s" not in operator
    assert {row["status"] for row in (launch, *measured("host_link"), *measured("peer_link"))} == {"skipped"}
