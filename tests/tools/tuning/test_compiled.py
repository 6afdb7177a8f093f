"""Compile the tiles in use for Hopper, in a separate process because this one may interpret kernels."""

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


@pytest.mark.slow  # it compiles every kernel at every tile
def test_the_tiles_in_use_are_promising_and_two_forward_programs_fit_on_a_multiprocessor():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    words = [sys.executable, "-c", COMPILE]
    found = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    reports = json.loads(found.stdout)
    assert [report for report in reports if not report["promising"]] == []
    forward = [(report["head_dim"], report["programs_per_sm"]) for report in reports if report["kernel"] == "forward"]
    # One computes the softmax while the other multiplies: Triton does not overlap the two within a program.
    assert all(programs >= 2 for _, programs in forward)
    # With fewer keys, a third program fits.
    assert [programs for head_dim, programs in forward if head_dim == 64] == [3, 2]
