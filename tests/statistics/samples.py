"""Draw samples as processes on a noisy machine would take them."""

import math

import numpy as np


def process(generator, median_ms, *, noise, between, drift, count):
    """Draw samples of a process with lag-1 autocorrelation 0.5, around the process's own median."""
    steps = generator.standard_normal(count) * noise
    logs = [steps[0]]
    for step in steps[1:]:
        logs.append(0.5 * logs[-1] + math.sqrt(0.75) * step)
    slope = 1 + drift * np.linspace(-0.5, 0.5, count)
    return list(median_ms * np.exp(between * generator.standard_normal() + np.array(logs)) * slope)
