"""Measure what an LLM-systems engineer needs to know of a machine, and write it up."""
