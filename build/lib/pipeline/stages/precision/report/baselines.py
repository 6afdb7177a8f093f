"""Others' running sums beside ours."""

import pandas as pd

from pipeline.report import published
from pipeline.stages.precision.report.selection import shown
from pipeline.stages.precision.report.sums import CASTS, KEYS

FORMATS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what, unit, theirs, ours, write_up and note of every running sum that a write-up has and we have too."""
    theirs = published.load("accumulation").rename(columns={"result": "theirs"})
    theirs = theirs.assign(
        accumulator=theirs["accumulator_dtype"].map(FORMATS), addend_dtype=theirs["addend_dtype"].map(FORMATS)
    )
    ours = shown(rows, "accumulation").reindex(columns=[*KEYS, "result"]).rename(columns={"result": "ours"})
    paired = ours.merge(theirs[[*KEYS, "theirs", "write_up", "note"]].astype({"cast": object}), on=KEYS)
    what = paired["steps"].map("{:,.0f} × ".format) + paired["addend"].map("{:g}, ".format) + paired["accumulator"]
    what += " + " + paired["addend_dtype"] + paired["cast"].map(CASTS)
    return paired.assign(what=what, unit="sum")
