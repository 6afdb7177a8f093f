"""Build the levers section, and the page's first screen: each model as written and tuned."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from pipeline.formulas.parameters import parameter_count
from pipeline.formulas.sizes import SIZES
from pipeline.report.chart import Chart, Limit
from pipeline.report.formats import written
from pipeline.report.frame import having, in_order, matching, with_values
from pipeline.report.markup import Markdown
from pipeline.report.section import Change, FirstScreen, Section
from pipeline.report.table import NOTHING, OUTCOME_WORDS, Table
from pipeline.report.versus import COLUMNS, FASTER, UNDECIDED, against_base, judge, peer_of, shaded, versus
from pipeline.report.words import Words
from pipeline.stages.levers.cell import EAGER, EAGER_AGAIN, LEVERS, UNPROVEN, names
from pipeline.stages.levers.report_fp8 import predicted_ratios

WORDS = Words(__file__)
ON = ["size", "context_length", "precision"]
FIGURES = ["median_ms", "tokens_per_s", "mfu_pct", "peak_bytes", "gpu_idle_pct"]
ENERGY = "tokens_per_j"
WHERE = "{size}, {precision}, batch {setting_batch_size}, context {context_length}"
NAMES = {
    "eager": "as written",
    "eager_again": "as written, once more",
    "fused": "fused AdamW",
    "flash": "our flash attention",
    "sdpa": "SDPA",
    "muon": "Muon",
    "blocks": "our fused blocks",
    "compile": "torch.compile",
    "fp8": "fp8 matmuls",
    "fp8_rowwise": "fp8 matmuls, scaled by row",
    "bf16_moments": "bf16 moments",
    "graph": "CUDA graph",
    "bf16_weights": "bf16 weights",
    "checkpointing": "checkpoints",
}


def build(rows: pd.DataFrame, other_stages: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the levers stage, with the first screen."""
    rows = rows.assign(parameters=[*map(parameter_count, rows["size"].map(SIZES), rows["setting_vocab_size"])])
    rows = rows.assign(
        model=written(rows, "{size} ({parameters:parameters})"),
        name=rows["levers"].map(_in_words),
        where=written(rows, WHERE),
        is_alone=rows["levers"].isin(LEVERS),
        is_tuned=[_is_tuning(levers) for levers in rows["levers"]],
        predicted=predicted_ratios(rows, other_stages["ceilings"]) if "ceilings" in other_stages else None,
    ).sort_values("parameters", kind="stable", ignore_index=True)
    duel = versus(rows, ON, "levers", [name for name in rows["levers"].unique() if name != EAGER], [EAGER])
    tuned = _fastest(duel[duel["is_tuned"]])
    precision = _main_precision(duel if len(duel) else rows)
    # The model with the most decided comparisons with the step as written; on a tie, the largest.
    candidates = (matching(each, precision) for each in (duel[duel["verdict"] != UNDECIDED], duel, with_values(rows)))
    counted = next(each for each in candidates if len(each))
    _, *most_compared = counted.groupby(["parameters", *ON]).size()[::-1].idxmax()
    here = dict(zip(ON, most_compared, strict=True))
    duel_here, tuned_here = matching(duel, here), matching(tuned, here)
    return Section(
        _answer(duel_here, tuned_here, matching(rows, here)),
        [_gains(matching(duel, precision), tuned), _ladder(matching(rows, here), duel_here, tuned_here)],
        _changes(duel_here, tuned_here),
        _first_screen(rows, precision),
    )


def _fastest(steps: pd.DataFrame) -> pd.DataFrame:
    return steps.loc[steps.groupby(ON, sort=False)["median_ms"].idxmin()]


def _main_precision(rows: pd.DataFrame) -> dict[str, str]:
    """Choose the precision to report: the one in which most models have steps; on a tie, bf16."""
    models = with_values(rows).groupby("precision")["size"].nunique()
    return {"precision": min(models[models == models.max()].index)}


def _in_words(levers: str) -> str:
    """Write a combination of levers in words: `SDPA + torch.compile`."""
    return " + ".join(NAMES.get(name, name.replace("_", " ")) for name in (names(levers) or [levers]))


def _is_tuning(levers: str) -> bool:
    """Tell whether a combination tunes a step: it neither changes the training nor saves memory by checkpoints."""
    return bool(names(levers)) and not {*names(levers)} & {*UNPROVEN, "checkpointing"}


def _answer(duel: pd.DataFrame, tuned: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Describe the fastest tuned step; rows: all of this model, used if its step as written has no time."""
    if tuned.empty:
        without_eager = _fastest(with_values(rows[rows["is_tuned"]]))
        if without_eager.empty:
            return WORDS.say("nothing_tuned")
        return WORDS.say("tuned_alone", best=without_eager.iloc[0])
    answer = WORDS.say("answer", best=tuned.iloc[0])
    single = duel[duel["is_alone"] & duel["is_tuned"]]
    if len(single) < 2:
        return answer
    return answer + " " + WORDS.say("best_alone", n=len(single), best=single.nlargest(1, "ratio").iloc[0])


def _gains(duel: pd.DataFrame, tuned: pd.DataFrame) -> Chart:
    """Plot each lever alone and the fastest tuned combination, for models with more than one of these."""
    shown = duel[duel["is_alone"] | duel.index.isin(tuned.index)]
    shown = shown[shown.groupby("size")["levers"].transform("nunique") > 1]
    shown = in_order(shaded(shown), ["levers"], {"levers": LEVERS})
    short = shown["levers"].str.replace("+", " + ", regex=False)
    shown = shown.assign(name=shown["name"].where(shown["is_alone"], short), text=written(shown, "{ratio:times}"))
    hover, limits = "gain verdict median_ms", [Limit(1.0, "")]
    return WORDS.chart("gains", shown, "bar", "ratio", "name", "size", label="text", limits=limits, hover=hover)


def _ladder(rows: pd.DataFrame, duel: pd.DataFrame, tuned: pd.DataFrame) -> Table:
    """Tabulate the step as written, each lever alone, the fastest that trains the same, the fastest of all, and fp8."""
    timed = with_values(rows)
    named = [EAGER, EAGER_AGAIN, *timed.nsmallest(1, "median_ms")["levers"], *tuned["levers"]]
    is_shown = rows["is_alone"] | rows["levers"].isin([*named, *timed.dropna(subset="predicted")["levers"]])
    ladder = rows[is_shown].join(duel.set_index("levers")[[*COLUMNS]], on="levers")
    by_formula = " " + WORDS.say("by_formula") if ladder["predicted"].notna().any() else ""
    columns = "name median_ms gain verdict gpu_idle_pct launches peak_bytes:gb mfu_pct loss predicted:times"
    gpus = rows["cards"].str.findall(r"\b[0-9a-f]{8}\b").explode().nunique()
    ran_on = f"; {WORDS.say('ran_on', gpus=gpus)}" if gpus else ""
    repeats = int(ladder["repeats"].max())
    more = " " + WORDS.say("more", n=len(rows) - len(ladder)) if len(ladder) < len(rows) else ""
    return WORDS.table(
        "ladder", ladder, columns, only_filled=True, by_formula=by_formula, ran_on=ran_on, repeats=repeats, more=more
    )


def _changes(duel: pd.DataFrame, tuned: pd.DataFrame) -> list[Change]:
    """Return the fastest tuned combination, the fastest of all, each lever alone; only the faster of SDPA and ours."""
    alone = duel[duel["is_alone"] & (duel["levers"] != _attention_to_leave_out(duel))]
    of_all = duel[duel["levers"] != EAGER_AGAIN].nsmallest(1, "median_ms")
    fastest = pd.concat([tuned, of_all]).drop_duplicates("levers")
    return [
        Change.between(
            row["name"] + (" (changes training)" if {*names(row["levers"])} & {*UNPROVEN} else ""),
            # With another host, the gain differs if a step waits for the host.
            row["where"] + (", limited by the host" if "host" in (row["limited_by"], row["limited_by_peer"]) else ""),
            peer_of(row),
            row,
        )
        for _, row in pd.concat([fastest[~fastest["is_alone"]], alone]).iterrows()
    ]


def _attention_to_leave_out(duel: pd.DataFrame) -> str | None:
    """Choose between two kinds of attention: leave out SDPA if ours is faster, else ours; None unless both have a time.

    Several cells may have the same step; the fastest counts.
    """
    steps = duel.sort_values("median_ms").drop_duplicates("levers").set_index("levers")
    if not {"flash", "sdpa"} <= {*steps.index}:
        return None
    return "sdpa" if judge(steps.loc["sdpa"], steps.loc["flash"])["verdict"] == FASTER else "flash"


def _first_screen(rows: pd.DataFrame, precision: Mapping[str, str]) -> FirstScreen | None:
    """Compare each model's step as written with its fastest tuned one, even if one of them is out of memory.

    Returns None if there is no such model. precision: that of the steps to show, so that they share a peak; the summary
    has all.
    """
    is_plain = rows["levers"] == EAGER
    # Cells with other combinations repeat the same step.
    plain = pd.concat([with_values(rows[is_plain]), rows[is_plain]]).drop_duplicates(ON).sort_index()
    timed = with_values(against_base(rows, ON, is_plain))
    tuned = _fastest(timed[timed["is_tuned"]])
    of_tuned = tuned[[*ON, "levers", "name", "status", "limited_by", *COLUMNS, *FIGURES, ENERGY]]
    both = plain.merge(of_tuned, "left", ON, suffixes=("", "_tuned"))
    both = both[both[["median_ms", "median_ms_tuned"]].notna().any(axis=1)]
    both = both.assign(
        utilisation=_from_to(both, "{status:mark}{mfu_pct:percent}"),
        peak_gb=_from_to(both, "{peak_bytes:gb}"),
        energy=_from_to(both, f"{{{ENERGY}:number}}"),
    )
    summary = [_summary(row) for _, row in both.iterrows()]
    bars = matching(pd.concat([plain.merge(both[ON], on=ON), tuned]), precision)
    both = matching(both, precision)
    bars = bars.assign(kind=lambda steps: np.where(steps["is_tuned"], "tuned", "as written"))
    if both.empty:
        return None
    ways = both["name_tuned"].dropna().unique()
    tuned_with = ways[0] if len(ways) == 1 else WORDS.say("several_ways")
    contexts = " and ".join(map(str, sorted(both["context_length"].unique())))
    limit, way = "limited_by" if both["limited_by"].nunique() > 1 else "", "name_tuned" if len(ways) > 1 else ""
    shown = f"model tokens_per_s tokens_per_s_tuned gain verdict utilisation energy peak_gb {limit} {way}"
    peak = with_values(bars).iloc[0][["peak_tflops_per_s", "peak_source"]]
    table = WORDS.table("trained", both, shown, only_filled=True, contexts=contexts, tuned_with=tuned_with, **peak)
    return FirstScreen(_line(both), _models(bars, peak), table, summary)


def _from_to(both: pd.DataFrame, template: str) -> list[Markdown | None]:
    """Fill a template for the step as written and tuned: `24% → 47%`; a step without values shows its outcome."""
    after = both.filter(regex="_tuned$").rename(columns=lambda name: name.removesuffix("_tuned"))
    plain, tuned = written(both, template), written(after, template)
    outcomes = both["status"].map(OUTCOME_WORDS).fillna(NOTHING)
    # Markdown, so that the mark `~` is not escaped like text.
    sides = zip(plain, tuned, outcomes, strict=True)
    return [
        Markdown(f"{before or outcome}\N{NO-BREAK SPACE}→\N{NO-BREAK SPACE}{after}") if after else None
        for before, after, outcome in sides
    ]


def _line(both: pd.DataFrame) -> str:
    """Write the headline for the largest model that is surely faster when tuned, with steps the host does not limit.

    A model that fits into memory only when tuned counts too; then the largest of the others is added. Without any, use
    the largest model that has both steps, else the largest that has one.
    """
    by_gpu = both[~both[["limited_by", "limited_by_tuned"]].eq("host").any(axis=1)]
    is_sure, only_tuned = by_gpu["verdict"] == FASTER, by_gpu["status"].eq("oom") & by_gpu["status_tuned"].eq("ok")
    sure, largest = by_gpu[is_sure], by_gpu[is_sure | only_tuned].tail(1)
    if largest["status"].eq("oom").any():
        line = WORDS.say("tuned_line", step=largest.iloc[0], outcome=OUTCOME_WORDS["oom"])
        return line if sure.empty else line + " " + WORDS.say("fits", step=sure.iloc[-1])
    candidates = {
        "line": sure,
        "unsure_line": having(both, "verdict"),
        "tuned_line": having(both, "median_ms_tuned"),
        "plain_line": both,
    }
    name, steps = next((name, steps) for name, steps in candidates.items() if len(steps))
    return WORDS.say(name, step=steps.iloc[-1], outcome=OUTCOME_WORDS.get(steps.iloc[-1]["status"], ""))


def _models(bars: pd.DataFrame, peak: Mapping[str, Any]) -> Chart:
    bars = bars.assign(rate=written(bars, "{status:mark}{tokens_per_s:count} tokens/s"))
    return WORDS.chart("models", bars, "bar", "mfu_pct", "size", "kind", label="rate", hover="rate name", values=peak)


def _summary(row: pd.Series) -> dict[str, Any]:
    """Return both steps of a model as numbers, as summary.schema.json declares them."""

    def step(suffix: str) -> dict[str, Any] | None:
        values = ((name, row[f"{name}{suffix}"]) for name in ("status", *FIGURES))
        known = {name: None if pd.isna(value) else value for name, value in values}
        return {"with": row[f"levers{suffix}"], **known} if known["status"] else None

    model = {"size": row["size"], "precision": row["precision"], "context_length": int(row["context_length"])}
    return {**model, "batch_size": int(row["setting_batch_size"]), "eager": step(""), "tuned": step("_tuned")}
