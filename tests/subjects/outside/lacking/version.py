"""Asks for its own version, as the course's package does, but is not installed."""

import importlib.metadata

__version__ = importlib.metadata.version("cs336_systems_of_nobody")


def attention(q, k, v, is_causal):
    return q
