"""Snakemake's private names: all that this project uses, each with its reason and the public way that is missing."""
