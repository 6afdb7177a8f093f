"""Choosing tiles and thresholds of the Triton kernels: what the compiler makes of them, and how fast they are."""
