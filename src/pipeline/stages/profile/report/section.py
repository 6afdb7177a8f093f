"""The profile section: its tables and figures, and a template that says what they show."""

from pathlib import Path

import pandas as pd

from pipeline.report.markup import Markdown, code
from pipeline.report.section import render
from pipeline.report.tables import (
    OUTCOME_WORDS,
    fold,
    markdown,
    markdown_folded_if_long,
    significant,
)
from pipeline.stages.profile.cell import BACKWARD_BY_PART, PASSES
from pipeline.stages.profile.report import baselines, findings
from pipeline.stages.profile.report.figures import draw_all
from pipeline.stages.profile.report.selection import (
    CELL,
    WORDS,
    at_context,
    kernels,
    main_captures,
    main_context,
    of_cell,
    of_kind,
    ordered,
    reference_cell,
    shares,
    times,
)
from pipeline.stages.profile.report.shown_names import shown_name

TEMPLATE = Path(__file__).parent / "section.md.j2"
CLOCKS = {
    "host": "host clock",
    "profiled": "host clock, profiled",
    "span": "span",
    "busy": "busy",
    "kernel_sum": "sum of kernels",
}
READABLE = {"context_length": "context length", "captured_by": "profiler"}
SHOWN_CATEGORIES = 5


def build(rows: pd.DataFrame, figures_dir: Path) -> str:
    """Write the section's Markdown from the rows of all its tables, and its figures as SVG into a folder."""
    rows = ordered(rows)
    captured = main_captures(rows)
    facts = {"missing": _missing(rows), "measured": not of_kind(captured, "category").empty}
    if facts["measured"]:
        facts |= _facts(captured, rows, figures_dir)
    return render(TEMPLATE, facts)


def _facts(rows: pd.DataFrame, all_rows: pd.DataFrame, figures_dir: Path) -> dict:
    context_length = main_context(rows)
    cell = reference_cell(rows, context_length)
    top = findings.top_kernels(rows, context_length)
    attention = findings.attention(rows)
    attention_backward = findings.attention(rows, BACKWARD_BY_PART)
    by_profiler = findings.two_profilers(all_rows)
    return {
        "setting": findings.setting(rows),
        "context_length": context_length,
        "cell": cell,
        "same_time": findings.SAME_TIME,
        "forward": findings.forward_time(rows, context_length),
        "top": findings.top_kernel_words(top),
        "beside_matmul": findings.beside_matmul(rows, context_length),
        "unknown": findings.unknown_share(rows),
        "training": findings.training_against_inference(rows, context_length),
        "attention": findings.attention_words(attention, context_length),
        "attention_backward": findings.attention_words(attention_backward, context_length),
        "profilers": findings.two_profilers_words(by_profiler),
        "figures": draw_all(rows, context_length, cell, figures_dir),
        "tables": {
            "forward": _times_table(rows, "inference", context_length),
            "times": _all_times(rows),
            "top": _top_table(top),
            "beside_matmul": _kernel_table(rows, cell),
            "shares": _share_table(rows, context_length),
            "all_shares": _all_shares(rows),
            "attention": _attention_table(at_context(attention, context_length)),
            "attention_backward": _attention_table(at_context(attention_backward, context_length)),
            "all_attention": _all_attention(attention),
            "profilers": _profiler_table(by_profiler),
        },
        "others": baselines.compared(rows, attention),
    }


def _readable(table: pd.DataFrame) -> pd.DataFrame:
    return table.rename(columns=READABLE)


def _ms(values: pd.Series) -> pd.Series:
    return values.map(significant).replace("n/a", "–")


def _percent(values: pd.Series) -> pd.Series:
    return values.map(lambda share: f"{100 * share:.1f}%")


def _clock_columns(table: pd.DataFrame) -> dict[str, pd.Series]:
    columns = {f"{title} (ms)": _ms(table[clock]) for clock, title in CLOCKS.items()}
    host = f"{CLOCKS['host']} (ms)"
    return columns | {host: columns[host].mask(table["unstable"], columns[host] + " (unstable)")}


def _times_table(rows: pd.DataFrame, path: str, context_length: int) -> str:
    table = times(rows)
    table = at_context(table[table["range"] == path], context_length)
    difference = (table["span"] / table["host"] - 1).map(lambda share: f"{100 * share:+.1f}%")
    return markdown(table[["precision", "size"]].assign(**_clock_columns(table), **{"span against host": difference}))


def _all_times(rows: pd.DataFrame) -> str:
    texts = []
    for precision, group in times(rows).groupby("precision", sort=False):
        group = group.assign(range=group["range"].map(WORDS))
        written = group[["size", "context_length", "range"]].assign(**_clock_columns(group))
        texts.append(
            fold(f"{precision}: every pass and its parts, at every context length", markdown(_readable(written)))
        )
    return Markdown("\n").join(texts)


def _top_table(top: pd.DataFrame) -> str:
    """Write the kernel with the most time, a line a pass: the names are too long to stand side by side."""
    lines = [
        {
            **{name: row[name] for name in ("precision", "size")},
            "pass": WORDS.get(name, name),
            "kernel": code(shown_name(row[name])),
            "calls": f"{row[f'{name}_count']:.0f}",
            "share": f"{100 * row[f'{name}_share']:.0f}%",
        }
        for row in top.to_dict("records")
        for name in ("inference", "backward", "forward_backward")
        if pd.notna(row[name])
    ]
    summary = f"The {len(lines)} kernels, by precision, size and pass"
    return markdown_folded_if_long(pd.DataFrame(lines), summary, written=["kernel"])


def _kernel_table(rows: pd.DataFrame, cell: dict) -> str:
    table = of_cell(kernels(rows, "inference"), cell)
    table = table[table["category"] != findings.MATMUL]
    return markdown(
        pd.DataFrame(
            {
                "kernel": table["kernel"].map(shown_name).map(code),
                "category": table["category"],
                "calls": table["count"].map("{:.0f}".format),
                "time (ms)": _ms(table["time_ms"]),
                "share": _percent(table["share_pct"] / 100),
            }
        ),
        written=["kernel"],
    )


def _share_columns(table: pd.DataFrame) -> list[str]:
    """Choose the categories with a column of their own: those with the largest shares somewhere."""
    names = [name for name in table.columns if name not in (*CELL, "range")]
    return sorted(names, key=lambda name: -table[name].max())[:SHOWN_CATEGORIES]


def _written_shares(table: pd.DataFrame, keys: list[str], shown: list[str]) -> pd.DataFrame:
    written = table[keys].assign(
        **{"pass": table["range"].map(WORDS)}, **{name: _percent(table[name]) for name in shown}
    )
    return _readable(written)


def _share_table(rows: pd.DataFrame, context_length: int) -> str:
    table = at_context(shares(rows), context_length)
    table = table[table["range"].isin(PASSES)]
    written = _written_shares(table, ["precision", "size"], _share_columns(table))
    return markdown_folded_if_long(written, f"Shares of {len(written)} passes, by precision and size")


def _all_shares(rows: pd.DataFrame) -> str:
    table = shares(rows)
    if table["context_length"].nunique() < 2:
        return ""
    texts = []
    for precision, group in table[table["range"].isin(PASSES)].groupby("precision", sort=False):
        text = markdown(_written_shares(group, ["size", "context_length"], _share_columns(table)))
        texts.append(fold(f"{precision}: shares at every context length", text))
    return Markdown("\n").join(texts)


def _attention_cells(table: pd.DataFrame) -> dict[str, pd.Series]:
    return {
        "scores (ms)": _ms(table["scores_ms"]),
        "softmax (ms)": _ms(table["softmax_ms"]),
        "final matmul (ms)": _ms(table["final_ms"]),
        "products / softmax, time": table["time_ratio"].map(lambda ratio: f"{significant(ratio)}×"),
        "products / softmax, FLOPs": table["flops_ratio"].map(lambda ratio: f"{significant(ratio)}×"),
    }


def _attention_table(table: pd.DataFrame) -> str:
    return markdown(table[["precision", "size"]].assign(**_attention_cells(table))) if len(table) else ""


def _all_attention(table: pd.DataFrame) -> str:
    if table["context_length"].nunique() < 2:
        return ""
    return Markdown("\n").join(
        fold(
            f"{precision}: attention at every context length",
            markdown(_readable(group[["size", "context_length"]].assign(**_attention_cells(group)))),
        )
        for precision, group in table.groupby("precision", sort=False)
    )


def _profiler_table(table: pd.DataFrame) -> str:
    if table.empty:
        return ""
    clocks = {f"{CLOCKS[clock]} (ms)": _ms(table[clock]) for clock in ("host", "profiled", "kernel_sum")}
    table = table.assign(range=table["range"].map(WORDS))
    return markdown(_readable(table[[*findings.CONFIGURATION, "range", "captured_by"]].assign(**clocks)))


def _missing(rows: pd.DataFrame) -> str:
    """List the cells that are not ok, those alike but for the context length in one line; empty if none."""
    failed = findings.outcomes(rows)
    if failed.empty:
        return ""
    failed = failed.assign(status=failed["status"].map(OUTCOME_WORDS))
    keys = ["precision", "size", "profiler", "passes", "status", "reason"]
    lengths = failed.groupby(keys, sort=False)["context_length"]
    table = lengths.agg(lambda found: ", ".join(map(str, found))).reset_index()
    table = table[["precision", "size", "context_length", "profiler", "passes", "status", "reason"]]
    table = table.rename(columns={"context_length": "context length", "profiler": "profiler asked for"})
    return markdown_folded_if_long(table, f"The {len(table)} lines of what is missing or unstable")
