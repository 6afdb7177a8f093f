"""The accounting section: closed forms with their derivation, evaluated for the assignment's questions."""

from pathlib import Path

import pandas as pd

from pipeline.formulas.units import GB, GIB
from pipeline.report.section import render
from pipeline.report.tables import fold, markdown, markdown_folded_if_long, significant
from pipeline.stages.accounting.report import baselines, findings
from pipeline.stages.accounting.report.figures import draw_all
from pipeline.stages.accounting.report.findings import answered
from pipeline.stages.accounting.report.words import MESH_CASES

TEMPLATE = Path(__file__).parent / "section.md.j2"
MB = 10**6
SMALL_SHARE = 0.01
MODEL_PARTS = ("norms", "attention", "scores", "feed_forward", "head")


def build(rows: pd.DataFrame, figures_dir: Path) -> str:
    """Write the section's Markdown from the rows of all its tables, and its figures as SVG into a folder."""
    found = {question: answered(rows, question) for question in findings.QUESTIONS}
    facts = {
        name: {**find(found[name]), "table": _table(name, found[name])} if len(found[name]) else {}
        for name, find in findings.QUESTIONS.items()
    }
    figures = draw_all(found["fsdp"], found["mesh"], figures_dir)
    missing = rows[rows["status"] != "ok"]
    lacking = missing[["question", "size", "reason"]].drop_duplicates().to_dict("records")
    facts |= {"figures": figures, "missing": lacking, "others": _others(found)}
    return render(TEMPLATE, {**facts, "gib_over_gb": GIB / GB - 1, "mb": MB, "small_share": SMALL_SHARE})


def _table(question: str, rows: pd.DataFrame) -> str:
    table = TABLES[question](rows)
    return markdown_folded_if_long(table, f"All {len(table)} lines of this table")


def _memory_table(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows.sort_values(["batch_size", "seq_len"])
    return pd.DataFrame(
        {
            "batch": rows["batch_size"],
            "sequence length": rows["seq_len"],
            "activations (GB)": (rows["activation_bytes"] / GB).map(significant),
            "with state (GB)": (rows["total_bytes"] / GB).map(significant),
            "GPUs": rows["total_gpus"].map(_whole),
        }
    )


def _fsdp_table(rows: pd.DataFrame) -> pd.DataFrame:
    lines = []
    for seq_len, group in rows.groupby("seq_len"):
        by_devices = (group.set_index("num_devices")["bytes_per_device"] / GB).map(significant)
        least = group["least_devices"].iloc[0]
        enough = pd.notna(least)
        lines.append(
            {
                "sequence length": seq_len,
                "half of the activations (GB)": significant(group["activation_bytes"].iloc[0] / 2 / GB),
                "least N": _whole(least) if enough else "none is enough",
                "memory with N (GB)": by_devices[least] if enough else "–",
                "with N − 1 (GB)": by_devices.get(least - 1, "–") if enough else "–",
            }
        )
    return pd.DataFrame(lines)


def _mesh_table(rows: pd.DataFrame) -> pd.DataFrame:
    cases = rows[rows["case"] != "batch"]
    never = cases["tokens"].isna()
    given = cases.loc[cases["case"] == "given", "tokens"].iloc[0]
    return pd.DataFrame(
        {
            "mesh": cases["case"].map(MESH_CASES),
            "X": cases["fsdp_size"].map("{:.4g}".format),
            "Y": cases["tensor_size"].map("{:.4g}".format),
            "tokens per device": cases["tokens_per_device"].map(significant).mask(never, "never"),
            "whole": cases["whole_tokens_per_device"].map(_whole).mask(never, "–"),
            "tokens overall": cases["whole_tokens"].map(_whole).mask(never, "–"),
            "of that as given": (cases["tokens"] / given).map(significant).mask(never, "–"),
        }
    )


def _buckets_table(rows: pd.DataFrame) -> pd.DataFrame:
    whole = rows[rows["case"] == "buckets"]
    return pd.DataFrame(
        {
            "buckets n": whole["num_buckets"].map(_whole),
            "bucket (MB)": (whole["bucket_bytes"] / MB).map(significant),
            "overhead (ms)": whole["overhead_ms"].map(significant),
        }
    )


def _activations_table(rows: pd.DataFrame) -> pd.DataFrame:
    eager, flash = (rows[rows["attention"] == kind].set_index("seq_len") for kind in ("eager", "flash"))
    table = pd.DataFrame({"context length": eager.index}, index=eager.index)
    for part in MODEL_PARTS:
        table[part.replace("_", "-")] = (eager[f"{part}_bytes"] / GB).map(significant)
    table["sum, eager"] = (eager["activation_bytes"] / GB).map(significant)
    table["sum, flash"] = (flash["activation_bytes"] / GB).map(significant)
    return table


def _attention_table(rows: pd.DataFrame) -> pd.DataFrame:
    eager, flash = (rows[rows["attention"] == kind].set_index("seq_len") for kind in ("eager", "flash"))
    columns = {
        "q, k and v": eager["inputs_bytes"],
        "one score matrix": eager["score_matrix_bytes"],
        "kept, eager": eager["kept_bytes"],
        "at most at once, eager": eager["most_bytes"],
        "kept, flash": flash["kept_bytes"],
    }
    table = pd.DataFrame({"sequence length": eager.index}, index=eager.index)
    return table.assign(**{name: (column / GIB).map(significant) for name, column in columns.items()})


def _whole(value: float) -> str:
    return "n/a" if pd.isna(value) else f"{value:,.0f}"


TABLES = {
    "memory": _memory_table,
    "fsdp": _fsdp_table,
    "mesh": _mesh_table,
    "buckets": _buckets_table,
    "activations": _activations_table,
    "attention": _attention_table,
}


def _others(found: dict[str, pd.DataFrame]) -> dict:
    pairs = baselines.beside_ours(found)
    if pairs.empty:
        return {}
    apart = pairs[~pairs["agrees"]]
    theirs = {(line["write_up"], line["quantity"]): line["theirs"] for line in apart.to_dict("records")}
    facts = {
        "count": len(pairs),
        "agree": int(pairs["agrees"].sum()),
        "gpus": theirs.get(("write-up 0", "H100 80GB needed")),
        "limit": theirs.get(("write-up 0", "batch below which it is communication bound")),
        "devices": theirs.get(("write-up 0", "FSDP devices so that one holds under 95 GB")),
        "saved_gb": theirs.get(("write-up 1", "memory saved for backward")),
        "activations": bool(apart["topic"].str.startswith("2.7B activations").any()),
        "same_buckets": baselines.same_bucket_formula(),
        "table": fold(f"All {len(pairs)} figures", markdown(baselines.table(pairs))),
    }
    if facts["limit"] is not None:
        mesh = found["mesh"]
        facts["limit_solved"] = baselines.their_mesh_limit(mesh[mesh["case"] == "given"].iloc[0])
    return facts
