"""Estimate a cell's time and memory before it is measured. Imports no torch: the workflow reads it."""

from functools import partial

from pipeline.stages.ddp.cell import VARIANTS
from pipeline.ways import needs

expected_s = partial(needs.expected_s, len(VARIANTS))
needed_bytes = needs.needed_bytes
