"""Shorten the reasons for missing results to fit a table."""

import re

import pandas as pd

# "CUDA out of memory. Tried to allocate ... Process 579 has 70.67 GiB memory in use. ... this process has 56.20 ..."
_OUT_OF_MEMORY = re.compile(r"CUDA out of memory\. .*", re.DOTALL)
_OTHER_PROCESS = re.compile(r"Process \d+ has ([\d.]+) ([KMG])iB memory in use")
_GIB = {"K": 2**-20, "M": 2**-10, "G": 1.0}
_WORTH_SAYING_GIB = 1.0
# What differs from row to row in reasons that are otherwise the same.
_OWN_NUMBERS = r"[\d.]+(?= s, above)|(?<=known to )[\d.]+%"


def brief(reason: str) -> str:
    """Shorten what PyTorch says where a GPU's memory runs out: that it did, and what other processes held of it.

    The amounts asked for, process numbers and advice stay in the record. Any other reason is returned as it is.
    """
    return _OUT_OF_MEMORY.sub(lambda found: f"CUDA out of memory{_held_by_others(found[0])}", reason)


def without_own_numbers(reasons: pd.Series) -> pd.Series:
    """Make reasons the same that differ in their own numbers alone, so that a table needs one line for them."""
    return reasons.str.replace(_OWN_NUMBERS, "…", regex=True)


def _held_by_others(message: str) -> str:
    # Where the driver cannot tell this process from others, all it lists may be this one.
    if "this process has" not in message:
        return ""
    held_gib = sum(float(size) * _GIB[unit] for size, unit in _OTHER_PROCESS.findall(message))
    return f"; other processes held {held_gib:.0f} GiB of the GPU" if held_gib >= _WORTH_SAYING_GIB else ""
