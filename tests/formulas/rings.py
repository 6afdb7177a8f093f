"""Simulated devices in a ring: collectives that move arrays from list to list and count what each device sends."""

import numpy as np


class Ring:
    """N devices that each send to the next one; `sent` counts elements by device."""

    def __init__(self, size):
        self.size = size
        self.sent = [0] * size

    def pass_on(self, arrays):
        """Send each device's array to the next device; return what each one received."""
        for device, array in enumerate(arrays):
            self.sent[device] += array.size
        return [arrays[device - 1] for device in range(self.size)]

    def all_gather(self, shares):
        """Return for each device all shares, one after the other."""
        known = [{device: share} for device, share in enumerate(shares)]
        moving = list(shares)
        for step in range(1, self.size):
            moving = self.pass_on(moving)
            for device in range(self.size):
                known[device][(device - step) % self.size] = moving[device]
        return [np.concatenate([parts[number] for number in range(self.size)]) for parts in known]

    def reduce_scatter(self, arrays):
        """Return for each device its share of the sum of all arrays."""
        shares = [np.array_split(array, self.size) for array in arrays]
        # Share s starts on the device after the one that shall have it, and collects as it goes round.
        moving = [shares[device][(device - 1) % self.size] for device in range(self.size)]
        for step in range(1, self.size):
            moving = self.pass_on(moving)
            moving = [moving[device] + shares[device][(device - 1 - step) % self.size] for device in range(self.size)]
        return moving

    def all_reduce(self, arrays):
        """Return for each device the sum of all arrays: a reduce-scatter, then an all-gather."""
        return self.all_gather(self.reduce_scatter(arrays))

    def all_reduce_whole(self, arrays):
        """Return the same by passing whole arrays around."""
        sums, moving = [array.copy() for array in arrays], list(arrays)
        for _ in range(self.size - 1):
            moving = self.pass_on(moving)
            sums = [total + received for total, received in zip(sums, moving, strict=True)]
        return sums
