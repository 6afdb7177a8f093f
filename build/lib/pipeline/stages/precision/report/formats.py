"""What low precision does to a training step under autocast, and to layer norm."""

import pandas as pd

from pipeline.report.page_parts import Problem
from pipeline.report.section import listing, percent

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
LOW_FORMATS = ("fp16", "bf16")
# How many times more exact sums in fp32 must make the variance to be worth a word.
WORTH_IT = 2.0


def autocast_problem(rows: pd.DataFrame) -> Problem:
    """Answer with the data types seen in fp16 on the first device, GPUs first, and say where another device differs."""
    asked = rows[rows["component"].isin(ASKED) & ~((rows["component"] == "loss") & (rows["detail"] != TRAINING_LOSS))]
    in_fp16 = asked[asked["autocast_dtype"] == "fp16"]
    asked = in_fp16 if len(in_fp16) else asked[asked["autocast_dtype"] == asked["autocast_dtype"].iloc[0]]
    seen = asked.groupby(["device", "component"])["observed_dtype"].agg(lambda dtypes: "/".join(sorted(set(dtypes))))
    wide = seen.unstack("device").reindex(ASKED).dropna(how="all").rename(index=ASKED).fillna("–")
    first, *others = sorted(wide, reverse=True)
    words = listing(f"{name} {dtype}" for name, dtype in wide[first].items())
    sentences = [f"Under autocast to {asked['autocast_dtype'].iloc[0]} on {first}: {words}."]
    for device in others:
        differs = wide.loc[wide[device] != wide[first], device]
        words = listing(f"{name} is {dtype}" for name, dtype in differs.items())
        sentences += [f"On {device} the {words}."] if len(differs) else []
    return Problem("benchmarking_mixed_precision (a)", " ".join(sentences))


def _of_method(norms: pd.DataFrame, dtype: str, method: str) -> pd.DataFrame:
    """Keep the normal inputs of one format and method, the smallest first."""
    wanted = (norms["dtype"] == dtype) & (norms["method"] == method) & (norms["input"] == "normal")
    return norms[wanted].sort_values("magnitude")


def _variance_error(norms: pd.DataFrame, dtype: str, method: str) -> float:
    """Return the relative error of the variance of inputs of size one."""
    return float(_of_method(norms, dtype, method).set_index("magnitude").loc[1, "variance_rel_error"])


def _overflow(norms: pd.DataFrame, limit: float) -> str:
    """Say between which inputs in fp16 the first row is lost; limit: the largest inputs without a lost row."""
    magnitudes = _of_method(norms, "fp16", "in_format")["magnitude"]
    beyond = magnitudes[magnitudes > limit].min()
    return (
        f"is finite up to {limit:.3g}"
        if pd.isna(beyond)
        else f"overflows between inputs of {limit:.3g} and {beyond:.3g}"
    )


def layer_norm_answer(norms: pd.DataFrame) -> str:
    """Say how far the variance is off with all in the format, and with its sums in fp32."""
    own, summed = (
        listing(f"{percent(_variance_error(norms, dtype, method))} in {dtype}" for dtype in LOW_FORMATS)
        for method in ("in_format", "fp32_sums")
    )
    return f"Layer norm's variance is off by {own} with everything in that format, by {summed} with its sums in fp32."


def layer_norm_problem(norms: pd.DataFrame, eps: pd.DataFrame) -> list[Problem]:
    """Answer what of layer norm is sensitive, what bf16 changes, and which eps a format loses."""
    sentences = []
    if len(norms):
        limits, errors = {}, {}
        for dtype in LOW_FORMATS:
            sweep = _of_method(norms, dtype, "in_format")
            limits[dtype] = sweep.loc[sweep["overflow_share"] == 0, "magnitude"].max()
            errors[dtype] = _variance_error(norms, dtype, "in_format")
        needs = errors["bf16"] >= WORTH_IT * _variance_error(norms, "bf16", "fp32_sums")
        sentences.append(
            f"With everything in fp16 the variance {_overflow(norms, limits['fp16'])} and is off by "
            f"{percent(errors['fp16'])}; in bf16 it is finite up to {limits['bf16']:.3g} but off by "
            f"{percent(errors['bf16'])}{', so that its sums still belong in fp32' if needs else ''}."
        )
    if len(eps):
        for dtype, lost in eps[eps["zeros_nonfinite_in_format"] > 0].groupby("dtype", sort=False)["eps"]:
            sentences.append(f"An eps of {listing(map('{:g}'.format, lost))} rounds to zero in {dtype}.")
    return [Problem("benchmarking_mixed_precision (b)", " ".join(sentences))] if sentences else []
