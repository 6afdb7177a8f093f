"""What holds for all tests of the package: one thread, and Triton's interpreter where there is no GPU."""

import os

import torch

# Tensors here are small: threads would wait for each other longer than they compute, most of all where cores are busy.
torch.set_num_threads(1)

# Triton has to be asked for its interpreter before a kernel is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
