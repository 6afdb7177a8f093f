"""Estimate a cell's time and memory before it is measured. Imports no torch: the workflow reads it."""

from pipeline.ways.needs import expected_s, needed_bytes

__all__ = ["expected_s", "needed_bytes"]
