"""The memory section: its tables and figures, and a template that says what they show."""

from pathlib import Path

import pandas as pd

from pipeline.report.markup import Markdown, code
from pipeline.report.section import listing, render
from pipeline.report.table_rows import has_figures, ok
from pipeline.report.tables import (
    OUTCOME_WORDS,
    fold,
    markdown,
    markdown_folded_if_long,
    pivot,
    significant,
    with_outcomes,
)
from pipeline.stages.memory.report import baselines, findings, predicted, trade
from pipeline.stages.memory.report.figures import draw_all
from pipeline.stages.memory.report.selection import (
    AXES,
    CATEGORY_WORDS,
    MODE_WORDS,
    Unit,
    cell_peaks,
    complete,
    main_size,
    of_kind,
    plain,
    shown_context,
    unit_for,
    variant,
)

TEMPLATE = Path(__file__).parent / "section.md.j2"


def build(rows: pd.DataFrame, figures_dir: Path) -> str:
    """Write the section's Markdown from the rows of all its tables, and its figures as SVG into a folder."""
    rows = predicted.with_predictions(complete(rows))
    facts = {"missing": _missing(rows), "measured": not ok(plain(rows)).empty}
    if facts["measured"]:
        facts |= _facts(rows, figures_dir)
    return render(TEMPLATE, facts)


def _facts(rows: pd.DataFrame, figures_dir: Path) -> dict:
    size = main_size(plain(rows))
    rows = rows[rows["size"] == size]
    context_length = shown_context(rows)
    pairs = baselines.beside_ours(rows)
    table = trade.trade(rows)
    setting = findings.setting(rows, size)
    forward_only = _forward_only(rows)
    unit = unit_for(ok(rows)["peak_bytes"].max())
    largest = findings.largest(rows, size, forward_only, context_length)
    return {
        "setting": setting,
        "context_length": context_length,
        "mode_words": MODE_WORDS,
        "phases": findings.phases(rows, size, context_length),
        "growth": findings.growth(rows, size),
        "mixed": findings.mixed_precision_by_mode(rows, size),
        "kept": findings.kept_in_bf16(rows, context_length),
        "out_of_memory": predicted.out_of_memory(rows, setting["device_type"]),
        "residual": findings.residual(rows, size),
        "largest": _largest_facts(largest),
        "forward_only": MODE_WORDS[forward_only],
        "predictions": predicted.predictions(rows),
        "saved": predicted.saved(rows),
        "trade": trade.trade_words(table) if len(table) else [],
        "variant": variant,
        "allocator": predicted.allocator(rows),
        "figures": draw_all(rows, size, context_length, figures_dir),
        "unit": unit,
        "tables": {
            "peaks": _peaks_table(rows, unit),
            "predictions": _predictions_table(rows, unit),
            "phases": _phases_table(rows, context_length, unit),
            "terms": _terms_table(rows, context_length, unit),
            "trade": _trade_table(table, unit) if len(table) else "",
            "largest": _largest_table(largest) if len(largest) else "",
        },
        "others": baselines.table(pairs) if len(pairs) else "",
        "others_largest": baselines.largest_allocations() if size == "2.7B" else "",
    }


def _forward_only(rows: pd.DataFrame) -> str:
    """Choose the mode that shows a forward pass alone: without gradients, where it was measured."""
    modes = set(ok(plain(rows))["mode"])
    return next((mode for mode in MODE_WORDS if mode in modes), "train_step")


def _largest_facts(largest: pd.DataFrame) -> dict:
    """Say how large the largest allocations are, and which lines make those of just this size."""
    if largest.empty:
        return {}
    top = largest[largest["size_bytes"] == largest["size_bytes"].max()]
    return {
        "bytes": top["size_bytes"].iloc[0],
        "count": int(top["count"].sum()),
        "categories": [CATEGORY_WORDS[name] for name in top["category"].unique()],
        "lines": [code(location) for location in top["location"].unique()],
    }


def _amounts(rows: pd.DataFrame, column: str, unit: Unit) -> pd.Series:
    """Write bytes in a unit, or the outcome, for every row."""
    cells = (rows[column].astype(float) / unit.bytes).map(significant)
    return with_outcomes(cells, rows)


def _figures_only(cells: pd.Series, rows: pd.DataFrame) -> pd.Series:
    """Leave a cell empty where its row has no figure: the outcome stands elsewhere in the line."""
    return cells.where(has_figures(rows["status"]), "")


def _readable(table: pd.DataFrame) -> pd.DataFrame:
    return table.rename(columns={"context_length": "context length", "checkpoint_every": "checkpoint every"})


def _peaks_table(rows: pd.DataFrame, unit: Unit) -> str:
    peaks = cell_peaks(plain(rows))
    peaks = peaks.assign(mode=peaks["mode"].map(MODE_WORDS))
    cells = _amounts(peaks, "peak_bytes", unit)
    return markdown(_readable(pivot(peaks, ["precision", "context_length"], "mode", cells)))


def _predictions_table(rows: pd.DataFrame, unit: Unit) -> str:
    peaks = cell_peaks(rows)
    errors = peaks["error"].astype(float).map(_signed_percent)
    table = pd.DataFrame(
        {
            "precision": peaks["precision"],
            "context length": peaks["context_length"],
            "pass": peaks["mode"].map(MODE_WORDS),
            "variant": _variants(peaks),
            f"measured ({unit.name})": _amounts(peaks, "peak_bytes", unit),
            f"predicted ({unit.name})": _figures_only(_amounts(peaks, "predicted_bytes", unit), peaks),
            "predicted / measured − 1": _figures_only(errors, peaks),
            "highest in": _figures_only(peaks["phase"], peaks),
        }
    )
    return markdown_folded_if_long(table, f"Predicted and measured peaks of all {len(table)} recordings")


def _variants(rows: pd.DataFrame) -> list[str]:
    return [variant(*pair) for pair in zip(rows["attention"], rows["checkpoint_every"], strict=True)]


def _signed_percent(share: float) -> str:
    return "0%" if abs(share) < 5e-4 else f"{100 * share:+.1f}%"


def _phases_table(rows: pd.DataFrame, context_length: int, unit: Unit) -> str:
    """List every phase of the training steps at one context: measured, predicted, and by category."""
    peaks = of_kind(plain(rows), "peak")
    peaks = peaks[(peaks["mode"] == "train_step") & (peaks["context_length"] == context_length)]
    if peaks.empty:
        return ""
    predicted = _amounts(peaks, "predicted_bytes", unit)
    table = pd.DataFrame(
        {
            "precision": peaks["precision"],
            "step": peaks["step"].astype(int),
            "phase": peaks["phase"],
            f"peak ({unit.name})": _amounts(peaks, "peak_bytes", unit),
            f"predicted ({unit.name})": predicted.where(peaks["predicted_bytes"].notna(), ""),
            f"made of ({unit.name})": [_made_of(peak, unit) for _, peak in peaks.iterrows()],
        }
    )
    return fold(f"Every phase of the recorded training steps at context length {context_length}", markdown(table))


def _made_of(peak: pd.Series, unit: Unit) -> str:
    parts = {word: peak[f"{name}_bytes"] for name, word in CATEGORY_WORDS.items()}
    return ", ".join(f"{word} {significant(count / unit.bytes)}" for word, count in parts.items() if count > 0)


def _terms_table(rows: pd.DataFrame, context_length: int, unit: Unit) -> str:
    """List what each attention keeps in each precision, without checkpoints."""
    terms = predicted.terms(rows)
    without = (terms["mode"] == "train_step") & (terms["checkpoint_every"] == 0)
    terms = terms[without & (terms["context_length"] == context_length)]
    if terms.empty:
        return ""
    terms = terms.assign(variant=terms["precision"] + ", " + terms["attention"])
    table = pivot(terms, ["term"], "variant", _amounts(terms, "bytes", unit))
    summary = f"What a forward pass keeps, by term, in {unit.name}, at context length {context_length}"
    return fold(summary, markdown(table))


def _trade_table(variants: pd.DataFrame, unit: Unit) -> str:
    table = pd.DataFrame(
        {
            "precision": variants["precision"],
            "context length": variants["context_length"],
            "variant": _variants(variants),
            f"peak ({unit.name}), in": _amounts(variants, "peak_bytes", unit)
            + _figures_only(", " + variants["phase"], variants),
            "peak / eager's": _figures_only(variants["memory_ratio"].astype(float).map(significant), variants),
            f"kept for backward ({unit.name})": _figures_only(_amounts(variants, "saved_bytes", unit), variants),
            "step (ms)": _figures_only(variants["median_ms"].astype(float).map(significant), variants),
            "step / eager's": _figures_only(variants["time_ratio"].astype(float).map(significant), variants),
        }
    )
    return markdown(table)


def _largest_table(largest: pd.DataFrame) -> str:
    return markdown(
        pd.DataFrame(
            {
                "size (MiB)": (largest["size_bytes"] / 2**20).map(significant),
                "how many": largest["count"].astype(int),
                "what": largest["category"].map(CATEGORY_WORDS),
                # One column: words of code do not break, and side by side they are wider than a page.
                "made at": [
                    Markdown(": ").join(map(code, words if words[1] else words[:1]))
                    for words in zip(largest["location"], largest["code"], strict=True)
                ],
            }
        ),
        written=["made at"],
    )


def _missing(rows: pd.DataFrame) -> str:
    """List the cells that are not ok, those alike but for the context length in one line; empty if none."""
    failed = rows[rows["status"] != "ok"].drop_duplicates([*AXES, "status"]).fillna({"reason": ""})
    if failed.empty:
        return ""
    failed = failed.assign(
        status=failed["status"].map(OUTCOME_WORDS),
        mode=failed["mode"].map(MODE_WORDS),
        variant=_variants(failed),
    )
    keys = ["precision", "size", "mode", "variant", "status", "reason"]
    lengths = failed.groupby(keys, sort=False)["context_length"]
    table = lengths.agg(lambda found: listing(sorted(found))).reset_index()
    return markdown_folded_if_long(_readable(table), f"The {len(table)} lines of what is missing or unstable")
