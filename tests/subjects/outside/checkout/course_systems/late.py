"""Each checkout sets another flag, which shows that its own code ran."""

import torch

OF_THIS_CHECKOUT = "benchmark"


def leave_a_trace():
    setattr(torch.backends.cudnn, OF_THIS_CHECKOUT, True)
