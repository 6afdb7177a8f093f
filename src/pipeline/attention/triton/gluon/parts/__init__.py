"""Kernels for Hopper that multiply fp32 as sums of products of bf16 parts."""
