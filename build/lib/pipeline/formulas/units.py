"""Bytes per element, and the two units of memory."""

FP32_BYTES = 4
BF16_BYTES = 2
INT64_BYTES = 8

GB, GIB = 10**9, 2**30
