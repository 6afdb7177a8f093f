"""Estimate a cell's time and memory before it is measured. Imports no torch: the workflow reads it."""

from functools import partial

from pipeline.stages.fsdp.cell import IMPLS
from pipeline.ways import needs

expected_s = partial(needs.expected_s, len(IMPLS))
needed_bytes = needs.needed_bytes
