import pytest
import torch

from pipeline.model.fused.operations import in_torch, in_triton


@pytest.fixture(autouse=True)
def memory_begins_as_nan():
    """Let torch fill what it allocates without contents: an output that nobody wrote is NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=[in_triton, in_torch])
def kernels(request):
    return request.param()
