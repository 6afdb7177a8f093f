import pytest
import torch

from pipeline.stages.precision.accumulation import running_sums
from pipeline.stages.precision.cases import ASSIGNED_SUMS

EXPERIMENT = "accumulation"


def test_the_assigned_sums_match_what_the_assignments_code_prints():
    printed = []
    for case in ASSIGNED_SUMS:
        types = {"fp32": torch.float32, "fp16": torch.float16}
        s = torch.tensor(0, dtype=types[case.accumulator])
        for _ in range(1000):
            x = torch.tensor(0.01, dtype=types[case.addend_dtype])
            s += x.type(torch.float32) if case.cast == "explicit" else x
        printed.append(s.item())
    assert [running_sums(case, 0.0, 1000, torch.device("cpu"))[-1].item() for case in ASSIGNED_SUMS] == printed


def test_sums_and_stalls_are_as_predicted_and_both_roundings_add_up_to_the_error(rows):
    for row in rows:
        for name in ("result", "stalled_at_step", "stall"):
            assert row.get(name) == row.get(f"predicted_{name}"), (name, row)
        assert row["addend_error"] == pytest.approx(row["predicted_addend_error"], rel=1e-12)
        assert row["addend_error"] + row["rounding_error"] == pytest.approx(row["error"], abs=1e-12)
        assert abs(row["rounding_error"]) <= row["rounding_error_bound"]
        assert row["rel_error"] == pytest.approx(abs(row["error"]) / row["expected"])
        assert (row["curve_steps"][0], row["curve_steps"][-1]) == (1, row["steps"])
        assert row["curve_sums"][-1] == row["result"]
        assert row["curve_rel_errors"][-1] == pytest.approx(row["rel_error"])
        assert len(row["curve_steps"]) == len(row["curve_sums"]) == len(row["curve_rel_errors"]) <= 200
