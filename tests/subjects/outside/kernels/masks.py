"""A module that attention.py imports from its own project."""

import torch


def future(n_queries, n_keys):
    """Tell which keys are in each query's future."""
    return torch.ones(n_queries, n_keys, dtype=torch.bool).triu(1)
