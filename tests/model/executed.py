from collections import Counter

from pipeline.compat.torch_private import TorchDispatchMode, operator_name


class Executed(TorchDispatchMode):
    """Count the operators that run; an operator whose result a checkpoint kept does not run again."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[operator_name(func)] += 1
        return func(*args, **(kwargs or {}))
