"""Name recordings in words; compare a cell's peak with its formula, and its step's time with the first that fits."""

import pandas as pd

from pipeline.cells.timed_rows import TRAIN_STEP
from pipeline.formulas.activations import Workload
from pipeline.formulas.peak_memory import predict_peaks
from pipeline.formulas.sizes import SIZES
from pipeline.report.formats import written
from pipeline.report.frame import card_counts, in_order
from pipeline.report.versus import JUDGED, against_base
from pipeline.stages.memory.cell import Cell

AXES = ["precision", "size", "context_length", "mode", "attention", "checkpointing", "checkpoint_every", "num_layers"]
MODEL = ["precision", "size", "context_length", "num_layers"]
OPTIMIZER = "optimizer"
NAMES = {
    "mode": {"inference": "forward, no gradients", "forward": "forward", TRAIN_STEP: "training step"},
    "attention": {"eager": "plain", "tiled": "tiled", "flash": "our flash", "sdpa": "SDPA"},
    "checkpointing": {"segments": "", "selective": ", attention kept", "recursive": ", recursive"},
}
ORDERS = {"precision": ("fp32", "bf16"), **{name: tuple(words) for name, words in NAMES.items()}}


def in_words(rows: pd.DataFrame) -> pd.DataFrame:
    """Sort rows in reading order; add columns with axes in words, the setting as text, and the model's width."""
    rows = in_order(rows, AXES, ORDERS)
    told = {"what": "mode", "with_attention": "attention", "kept": "checkpointing"}
    rows = rows.assign(**{name: rows[key].map(NAMES[key]) for name, key in told.items()})
    setting = written(rows, "{what}, {precision}, context {context_length}, {with_attention} attention")
    return rows.assign(setting=setting, d_model=[SIZES[size].d_model for size in rows["size"]])


def highest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per cell: the highest phase of its last step, or its outcome, and the peak by formula.

    Also added: the step's time, with its own `status_ms` and `cards_ms`, compared with that of the first cell of the
    same model and context that fits.
    """
    peaks = rows[rows["kind"] == "peak"]
    last = peaks[peaks["step"].eq(peaks.groupby(AXES)["step"].transform("max")) | peaks["step"].isna()]
    before = last[last["phase"] != OPTIMIZER].groupby(AXES)[["peak_bytes", "activations_bytes"]].max()
    before = before.set_axis(["before_update_bytes", "most_activations_bytes"], axis="columns")
    found = last.sort_values("peak_bytes", kind="stable").drop_duplicates(AXES, keep="last").sort_index()
    timed = rows[rows["kind"] == "time"].set_index(AXES)[[*JUDGED, "cards"]]
    timed = timed.rename(columns={"status": "status_ms", "cards": "cards_ms"})
    found = found.drop(columns=list(timed), errors="ignore").join(before, on=AXES).join(timed, on=AXES)
    # A failed cell does not record its device.
    found["device_type"] = found["device_type"].fillna(next(iter(rows["device_type"].dropna()), "cpu"))
    every = against_base(found.assign(status=found["status_ms"]), MODEL, pd.Series(True, found.index))
    cards = card_counts(every.assign(base_cards=every["base"].map(every["cards_ms"])), "cards_ms", "base_cards")
    peaks_by_formula = [predict_peaks(workload(row), row["mode"]).values() for _, row in found.iterrows()]
    checkpoints = pd.Series(written(every, "every {checkpoint_every} blocks{kept}"), every.index)
    checkpoints = checkpoints.str.replace("every 1 blocks", "each block")
    return every.assign(
        status=found["status"],
        checkpoints=checkpoints.where(every["checkpoint_every"] > 0, "none"),
        gpus=pd.Series(cards, every.index).map(str).where(every["median_ms"].notna() & every["device_type"].ne("cpu")),
        by_formula_bytes=[max(moment.total_bytes for moment in each) for each in peaks_by_formula],
    )


def workload(row: pd.Series) -> Workload:
    """Return the input of the memory formulas for a cell."""
    return Cell(**row[AXES]).workload(row["setting_vocab_size"], row["setting_batch_size"], row["device_type"])
