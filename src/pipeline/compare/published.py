"""Load values that five write-ups of the course's problems published, to be shown beside a run.

`published.csv` has one line per value: source (which write-up), stage, machine (empty where it is not named), of (what
it measures, in the words of the stage's axes and row keys, as far as the source says), quantity (a column of the stage,
with its unit), value. Values taken under a profiler, or without waiting for the GPU, are left out.
"""

from pathlib import Path

import pandas as pd

FILE = Path(__file__).with_name("published.csv")


def load(stage: str) -> pd.DataFrame:
    """Return the values of a stage, with a column of text for each word of `of`; empty for a stage without any."""
    rows = pd.read_csv(FILE, dtype={"source": str}, keep_default_na=False)
    rows = rows[rows["stage"] == stage]
    words = [dict(word.split("=") for word in of.split()) for of in rows["of"]]
    return rows.join(pd.DataFrame(words, index=rows.index))
