"""The model sizes in reading order: the smallest first, by the parameters of their layers."""

from pipeline.formulas.parameters import parameter_count
from pipeline.formulas.sizes import SIZES

BY_SIZE = tuple(sorted(SIZES, key=lambda name: parameter_count(SIZES[name], vocab_size=0)))
