"""Attention that changes torch's process-wide state when it is imported and when it is called."""

import torch

from .attention import right_at_any_length

torch.set_num_threads(torch.get_num_threads() + 1)
torch.autograd.set_detect_anomaly(True)
torch.set_default_dtype(torch.float64)


def with_a_state_of_its_own(q, k, v, is_causal):
    torch.use_deterministic_algorithms(True, warn_only=True)
    return right_at_any_length(q, k, v, is_causal)
