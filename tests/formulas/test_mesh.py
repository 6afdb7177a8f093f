import math
from dataclasses import replace

import pytest

from pipeline.formulas.mesh import Block, Mesh, best_tensor_size, block_s, least_tokens

XXL = Block(d_model=16384, d_ff=53248)
V5P = Mesh(16, 4, 2, 1, link_bytes_per_s=2 * 9e10, flops_per_s=4.6e14)
SPLITS = [{"fsdp_size": 8, "tensor_size": 8}, {"fsdp_axes": 1, "tensor_axes": 2}]


@pytest.mark.parametrize("changed", [{}, {"axes_overlap": True}, {"weight_bytes": 1}, *SPLITS])
@pytest.mark.parametrize("block", [XXL, Block(8192, 28672, matrices=3)])
def test_computing_takes_as_long_as_communicating_at_the_least_batch(changed, block):
    mesh = replace(V5P, **changed)
    times_s = [block_s(block, share * least_tokens(block, mesh), mesh) for share in (0.9, 1, 1.1)]
    less, least, more = (each["compute"] / each["communication"] for each in times_s)
    assert less < 1 < more
    assert least == pytest.approx(1)


def test_times_equal_a_calculation_by_hand():
    found = block_s(XXL, 64_000, V5P)
    assert found["compute"] == 4 * 64_000 * 16384 * 53248 / (64 * 4.6e14)
    assert found["fsdp"] == 4 * 16384 * 53248 / (4 * 1.8e11 * 2)
    assert found["tensor"] == 4 * 64_000 * 16384 / (16 * 1.8e11)


def test_too_much_tensor_parallelism_is_never_compute_bound():
    for overlap in (False, True):
        assert least_tokens(XXL, replace(V5P, fsdp_size=2, tensor_size=32, axes_overlap=overlap)) == math.inf
    assert least_tokens(XXL, replace(V5P, tensor_size=20, axes_overlap=True)) < math.inf


@pytest.mark.parametrize("overlap", [False, True])
def test_no_other_split_of_the_devices_needs_a_smaller_batch(overlap):
    mesh = replace(V5P, axes_overlap=overlap)
    best = best_tensor_size(XXL, mesh)
    sizes = (best, 0.9 * best, 1.1 * best)
    batches = {size: least_tokens(XXL, replace(mesh, tensor_size=size, fsdp_size=64 / size)) for size in sizes}
    assert min(batches, key=batches.get) == best
    per_device = 1 if overlap else 4
    expected = per_device * mesh.intensity**2 / (mesh.fsdp_axes * mesh.tensor_axes * XXL.d_ff)
    assert batches[best] / 64 == pytest.approx(expected)
