"""Benchmark a machine for training language models, and write a report."""
