import pytest
import torch

from pipeline.model.fused.operations import in_torch, in_triton


@pytest.fixture(autouse=True)
def memory_begins_as_nan():
    """Make torch fill uninitialised memory with NaN, so that an output that was never written shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=[in_triton, in_torch])
def kernels(request):
    return request.param()
