"""The highest rates as numbers and words, without the rest of the section: for a comparison of two runs."""

import pandas as pd

from pipeline.report.table_rows import ok
from pipeline.stages.ceilings.report.selection import highest, written


def rates(rows: pd.DataFrame) -> pd.DataFrame:
    """Return ceiling, rate and words (the rate with its unit) of what was measured."""
    found = ok(highest(rows))
    words = [written(*each) for each in zip(found["rate"], found["quantity"], strict=True)]
    return pd.DataFrame({"ceiling": found["ceiling"], "rate": found["rate"], "words": words})
