"""The tiles in use, compiled for Hopper: in a process of its own, for in this one kernels may be interpreted."""

import json
import os
import subprocess
import sys

import pytest

COMPILE = """
import dataclasses, json, torch
from pipeline.attention.triton.tiles import IN_USE
from tools.tuning.candidates import KERNELS, Candidate, constants
from tools.tuning.compiled import compile_for_hopper

def report(kernel, head_dim, tiles):
    found = compile_for_hopper(KERNELS[kernel], constants(kernel, "bf16", head_dim, tiles), tiles, "bf16")
    return {"kernel": kernel, "head_dim": head_dim, "promising": Candidate("bf16", tiles, found).is_promising,
            **dataclasses.asdict(found)}

reports = []
for head_dim in (32, 64, 80, 128):
    for n_keys in (IN_USE.many_keys - 1, IN_USE.many_keys):
        reports.append(report("forward", head_dim, IN_USE.forward(torch.bfloat16, head_dim, n_keys)))
    for n_keys in (IN_USE.long_sequence - 1, IN_USE.long_sequence):
        backward = IN_USE.backward(torch.bfloat16, head_dim, n_keys)
        reports.append(report("key_value" if backward.query else "key_value_dq", head_dim, backward.key_value))
        if backward.query:
            reports.append(report("query", head_dim, backward.query))
print(json.dumps(reports))
"""


pytestmark = pytest.mark.slow  # it compiles every kernel at every tile


@pytest.fixture(scope="module")
def reports():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    found = subprocess.run(
        [sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def test_the_tiles_in_use_fit_do_not_spill_and_keep_the_tensor_cores_fed(reports):
    assert [report for report in reports if not report["promising"]] == []


def test_at_least_two_programs_of_the_main_kernels_share_a_multiprocessor(reports):
    """One computes weights while the other multiplies: Triton does not overlap the two within a program."""
    forward = [report for report in reports if report["kernel"] == "forward"]
    assert forward
    assert all(report["programs_per_sm"] >= 2 for report in forward)


def test_a_third_program_fits_where_they_go_through_fewer_keys(reports):
    fits = [
        report["programs_per_sm"] for report in reports if (report["kernel"], report["head_dim"]) == ("forward", 64)
    ]
    assert fits == [3, 2]
