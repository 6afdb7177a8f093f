"""What holds for all tests of the package: one thread, and Triton's interpreter where there is no GPU."""

import os

import pytest
import torch

# Triton has to be asked for its interpreter before a kernel is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def one_thread():
    """Compute on one thread, whatever the test before asked for.

    Tensors here are small: threads would wait for each other longer than they compute. With more of them oneDNN also
    takes more memory, which some tests count.
    """
    torch.set_num_threads(1)
