"""Others' peaks beside ours, where model, context length and precision are the same."""

import pandas as pd

from pipeline.report import published
from pipeline.report.markup import Markdown, paragraphs
from pipeline.report.table_rows import ok
from pipeline.report.tables import fold, markdown, significant
from pipeline.stages.memory.report.selection import cell_peaks, plain

PRECISIONS = {"fp32": "fp32", "bf16_autocast": "bf16", "mixed_not_named": "bf16"}
KEYS = ["size", "context_length", "precision"]
OURS = {
    "inference": "ours, no gradients (GB)",
    "forward": "ours, with gradients (GB)",
    "first": "ours, first step (GB)",
    "train_step": "ours, later steps (GB)",
}
# Which of ours can be meant by what a source calls a forward pass or a step.
MEANT = {"forward": ("inference", "forward"), "train_step": ("first", "train_step")}


def beside_ours(rows: pd.DataFrame) -> pd.DataFrame:
    """Pair others' peaks of a forward pass or a training step with ours.

    Returns KEYS, mode, write_up, note, assumed, theirs_gb and a column of OURS for each reading of theirs, empty where
    it is not meant or was not measured. Precision that a source calls mixed stands beside our bf16.
    """
    theirs = published.load("memory")
    theirs = theirs[(theirs["quantity"] == "peak") & theirs["mode"].isin(MEANT) & theirs["peak_gb"].notna()]
    theirs = theirs[theirs["context_length"].notna()]
    theirs = theirs.assign(
        size=theirs["model"],
        context_length=theirs["context_length"].astype(int),
        assumed=theirs["precision"].map({"mixed_not_named": "bf16 for 'mixed'"}).fillna(""),
        precision=theirs["precision"].map(PRECISIONS),
        theirs_gb=theirs["peak_gb"],
    )
    paired = theirs[[*KEYS, "mode", "write_up", "note", "assumed", "theirs_gb"]].merge(_ours(rows), on=KEYS)
    for mode, readings in MEANT.items():
        others = [OURS[name] for name in OURS if name not in readings]
        paired.loc[paired["mode"] == mode, others] = None
    return paired[paired[list(OURS.values())].notna().any(axis="columns")]


def _ours(rows: pd.DataFrame) -> pd.DataFrame:
    """Give our peaks in GB: a row a size, context and precision, a column a reading."""
    last, first = ok(cell_peaks(plain(rows))), ok(cell_peaks(plain(rows), step="first"))
    first = first[first["mode"] == "train_step"].assign(mode="first")
    both = pd.concat([last, first], ignore_index=True)
    wide = both.assign(gb=both["peak_bytes"] / 1e9).pivot(index=KEYS, columns="mode", values="gb")
    return wide.reindex(columns=list(OURS)).rename(columns=OURS).reset_index()


def table(pairs: pd.DataFrame) -> str:
    """Write the pairs, and under them the doubts about each source, folded."""
    text = pd.DataFrame(
        {
            "source": pairs["write_up"],
            "pass": pairs["mode"].replace({"train_step": "training step"}),
            "precision": pairs["precision"].where(pairs["assumed"] == "", "mixed"),
            "context length": pairs["context_length"],
            "theirs (GB)": pairs["theirs_gb"].map(significant),
            **{
                name: pairs[name].map(lambda value: "" if pd.isna(value) else significant(value))
                for name in OURS.values()
            },
        }
    )
    forward, steps = (text[(pairs["mode"] == mode)] for mode in MEANT)
    tables = [
        markdown(part.drop(columns=["pass", *(OURS[name] for name in OURS if name not in MEANT[mode])]))
        for mode, part in (("forward", forward), ("train_step", steps))
        if len(part)
    ]
    doubts = fold("Doubts about these figures", published.doubts_list(pairs) or "None noted.")
    return paragraphs(*tables, doubts)


def largest_allocations() -> str:
    """List what others name as the largest allocation."""
    found = published.load("memory")
    found = found[found["quantity"].isin(["largest_allocation", "allocation_with_stack_trace"])]
    line = Markdown("- {write_up}: {size} ({note})")
    lines = [line.format(**row, size=written_mib(row["allocation_mb"])) for row in found.to_dict("records")]
    return Markdown("\n").join(lines)


def written_mib(value: float) -> str:
    """Write MiB that a source printed."""
    return f"{significant(value)} MiB"
