import math

import pytest
import torch

from pipeline.stages.precision.accumulation import TORCH_DTYPES
from pipeline.stages.precision.cases import DEFAULT_EPS, FORMAT_NAMES, METHODS
from pipeline.stages.precision.cell import Cell
from pipeline.stages.precision.layer_norm import limits, normalise, swallowed_from
from pipeline.stages.precision.roundoff import FORMATS

EXPERIMENT = "layer_norm"


def pick(rows, **wanted):
    return [row for row in rows if wanted.items() <= row.items()]


@pytest.mark.parametrize("method", [*METHODS, "fp64"])
def test_every_method_computes_layer_norm_and_the_reference_is_in_fp64(method):
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)) * 3 + 1
    output = normalise(x, method, DEFAULT_EPS).output
    expected = torch.nn.functional.layer_norm(x.double(), (64,)).to(output.dtype)
    torch.testing.assert_close(output, expected)
    assert output.dtype == (torch.float64 if method == "fp64" else torch.float32)


@pytest.mark.parametrize("dtype", FORMAT_NAMES)
def test_in_format_keeps_every_value_in_the_format_and_rounds_every_partial_sum(dtype):
    found = normalise(torch.ones(1, 1024, dtype=TORCH_DTYPES[dtype]), "in_format", DEFAULT_EPS)
    assert {each.dtype for each in (found.mean, found.variance, found.output)} == {TORCH_DTYPES[dtype]}
    assert found.mean.item() == (256 / 1024 if dtype == "bf16" else 1)


@pytest.mark.parametrize("method", ["in_format", "fp32_sums"])
def test_the_variance_of_fp16_is_lost_only_outside_its_limits(method):
    unit = torch.tensor([[1.0, -1.0] * 32], dtype=torch.float64)
    for limit, lost in zip(limits(unit, "fp16", method), (math.inf, 0.0), strict=True):
        for factor in (0.98, 1.02):
            found = normalise((unit * limit * factor).half(), method, DEFAULT_EPS)
            beyond = factor > 1 if lost else factor < 1
            assert (found.variance.item() == lost) == beyond, (limit, factor)


def test_lost_rows_are_predicted_and_have_no_error_and_the_kernel_loses_none(rows):
    for row in pick(rows, input="normal"):
        for kind in ("overflow", "vanish"):
            if row.get(f"predicted_{kind}_share") in (0.0, 1.0) and row[f"{kind}_share"] in (0.0, 1.0):
                assert row[f"{kind}_share"] == row[f"predicted_{kind}_share"], row
    assert {row["overflow_share"] for row in pick(rows, dtype="fp16", method="in_format", input="normal")} >= {0.0, 1.0}
    kernel = pick(rows, dtype="fp16", method="kernel", input="normal")
    assert kernel
    assert all(row["output_nonfinite_share"] == row["output_zero_share"] == 0 for row in kernel)
    for row in (row for row in pick(rows, input="normal") if row.get("overflow_share") == 1):
        assert row["variance_rel_error"] is None
        assert row["output_zero_share"] + row["output_nonfinite_share"] == 1


def test_the_variance_of_plus_minus_one_is_as_predicted_and_the_kernel_is_accurate(rows):
    known = [row for row in pick(rows, input="alternating") if "predicted_variance_ratio" in row]
    assert {row["predicted_variance_ratio"] for row in known} >= {1.0, 0.25}
    for row in known:
        assert row["variance_ratio"] == row["predicted_variance_ratio"]
    for row in pick(rows, method="kernel", magnitude=1.0):
        if row["dtype"] != "fp32":
            assert row["output_max_error"] <= 1.1 * max(row["output_half_spacing"], DEFAULT_EPS)


def test_eps_is_stored_swallowed_and_lost_as_predicted(cpu_rows_by_cell):
    for row in cpu_rows_by_cell[Cell("layer_norm_eps", "cpu")]:
        assert row["stored_eps"] == row["predicted_stored_eps"]
        assert row["swallowed_from_variance"] == row["predicted_swallowed_from_variance"]
        assert row["zeros_nonfinite_in_format"] == row["predicted_zeros_nonfinite"]
        assert row["zeros_nonfinite_kernel"] == 0
    # `edge` is the first power of two that eps does not change.
    eps = torch.tensor(1e-5, dtype=torch.bfloat16)
    edge = swallowed_from(eps, FORMATS["bf16"])
    assert torch.tensor(edge).bfloat16() + eps == edge
    assert torch.tensor(edge / 2).bfloat16() + eps > edge / 2
