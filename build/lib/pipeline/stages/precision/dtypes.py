"""The names of torch's data types in this stage."""

import torch

TORCH_DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
