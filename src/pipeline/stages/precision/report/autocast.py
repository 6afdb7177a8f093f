"""The data types of a training step under autocast."""

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.page_parts import Problem, say
from pipeline.report.section import listing

# What the assignment asks for, in its order. Of the losses it means one that trains.
ASKED = {
    "parameters": "parameters",
    "fc1_output": "output of the first linear layer",
    "layernorm_output": "output of layer norm",
    "logits": "logits",
    "loss": "loss",
    "gradients": "gradients of parameters",
}
TRAINING_LOSS = "cross-entropy"
FIRST_DTYPE = "fp16"


def observed(rows: pd.DataFrame) -> pd.DataFrame:
    """Spread the data types that were seen: a row a component, a column a (device, autocast_dtype), GPUs first."""
    asked = rows[rows["component"].isin(ASKED)]
    asked = asked[(asked["component"] != "loss") | (asked["detail"] == TRAINING_LOSS)]
    wide = asked.pivot_table(
        index="component",
        columns=["device", "autocast_dtype"],
        values="observed_dtype",
        aggfunc=lambda dtypes: "/".join(sorted(set(dtypes))),
    )
    wide = wide.sort_index(axis="columns", ascending=False)
    return wide.reindex([name for name in ASKED if name in wide.index]).rename(index=ASKED).fillna("–")


def problem(rows: pd.DataFrame) -> Problem:
    """Answer for fp16 on the first device, and say where another device differs."""
    wide = observed(rows)
    device = wide.columns[0][0]
    dtype = FIRST_DTYPE if (device, FIRST_DTYPE) in wide else wide.columns[0][1]
    words = listing(f"{name} {seen}" for name, seen in wide[device, dtype].items())
    sentences = [say("Under autocast to {dtype} on {device}: {words}.", dtype=dtype, device=device, words=words)]
    for other in (name for name, autocast_dtype in wide.columns if name != device and autocast_dtype == dtype):
        differs = wide[wide[other, dtype] != wide[device, dtype]][other, dtype]
        if len(differs):
            words = listing(f"{name} is {seen}" for name, seen in differs.items())
            sentences.append(say("On {device} the {words}.", device=other, words=words))
    return Problem("benchmarking_mixed_precision (a)", Markdown(" ").join(sentences))
