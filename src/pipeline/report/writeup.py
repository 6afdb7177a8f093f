"""The write-up: a first screen, how far to trust it, a section per stage, the assignment's answers."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.cells import fields
from pipeline.cells.disk import write_text
from pipeline.cells.failures import Failures, read_failures
from pipeline.cells.record import SOFTWARE, read_record
from pipeline.cells.rows import STATUSES
from pipeline.cells.stage import Stage, Stages
from pipeline.cells.stage_rows import stage_rows
from pipeline.errors import UserError
from pipeline.report import trust
from pipeline.report.all_rows import meanings, row_table
from pipeline.report.html import stage_parts
from pipeline.report.markup import Markdown, anchor, one_line
from pipeline.report.page_parts import MOST_ACTIONS, write
from pipeline.report.same_steps import how_far_apart
from pipeline.report.section import counted, data_size, listing, number, render
from pipeline.report.section_rows import by_stage, section_rows, shown_rows
from pipeline.report.summary import write_summary
from pipeline.report.table_rows import has_figures, known, read_rows, readable
from pipeline.report.tables import markdown, significant
from pipeline.report.users_own import with_users_own
from pipeline.report.written_section import HTML_SUFFIX, WrittenSection, from_json, to_json

TEMPLATE = Path(__file__).parent / "writeup.md.j2"
MOST_OUTCOMES = 12
LACKING = "this machine lacks what they need"
FAILED_CHECK = "the result failed its check"
SECONDS = ["start_up_s", "set_up_s", "measuring_s"]
CELL_COLUMNS = (
    *("stage", "cell", "status", "reason", "started_at", *SECONDS, "machine", "cpu", *SOFTWARE, "commit", "digest"),
)
MEMORY = {"gpu_memory_bytes": "GPU memory", "memory_bytes": "memory"}
VERSIONS = ("torch", "triton", "driver")  # on the first screen; the records have all


def write_section(stage: Stage, stages: Stages, records: Sequence[Path], out: Path, figures: Path) -> None:
    """Write a stage's section, its charts and rows, and draw its figures, from its records and those that it reads too.

    Raises UserError, one line, for what is no record, or one of another stage, and for figures that cannot be written.
    """
    known = {name: stages[name] for name in (stage.name, *stage.reads)}
    found = by_stage(read_record(path, known) for path in records)
    if stage.name not in found:
        raise UserError(f"section: there is no record of {stage.name} among those given")
    every = shown_rows(stage, found[stage.name])
    rows, *rows_beside = section_rows(stage, stages, found)
    split_values = rows[stage.split_axis].drop_duplicates()
    tables = [f"{stage.name}/{fields.text(value)}.csv" for value in split_values]
    section = with_users_own(stage.build_section()(rows, *rows_beside), every, stage)
    try:
        figures.mkdir(parents=True, exist_ok=True)
        written = write(section, stage.name, tables, figures, trust.of_rows(_compared(rows, stage)))
    except OSError as error:
        raise UserError(f"cannot draw figures into {figures}: {error}") from None
    write_text(out, written.text)
    write_text(out.with_suffix(".json"), to_json(written))
    every_row = row_table(readable(stage_rows(stage, found[stage.name])), meanings(stage))
    charts = stage.charts(rows, *rows_beside)
    write_text(
        out.with_suffix(HTML_SUFFIX),
        stage_parts.to_json(stage_parts.StageParts(stage.name, written.title, charts, every_row)),
    )


def _compared(rows: pd.DataFrame, stage: Stage) -> pd.DataFrame:
    """Drop the rows of a reference, whose times nobody compares."""
    is_reference = [stage.row_types.is_reference(row) for row in rows.to_dict("records")]
    return rows[~pd.Series(is_reference, index=rows.index, dtype=bool)]


def write_writeup(
    sections: Sequence[Path],
    cells: Sequence[Path],
    scale: str,
    outdated: Sequence[str],
    out: Path,
    failures: Path | None = None,
    summary: Path | None = None,
    config: Sequence[str] = (),
) -> None:
    """Write the write-up from the rendered sections and the tables of cells.

    scale: which cells were asked for; empty where what is there is written up, whatever asked for it.
    outdated: digests of code that has changed since it measured.
    failures: the list of what failed and is missing therefore (pipeline.cells.failures), if anything did.
    summary: where to write the first screen's figures as JSON, if anywhere.
    config: the words after Snakemake's `--config` that ask for the same run.
    Raises UserError, one line, for a section that cannot be read, a table that is none of cells, or no cells at all.
    """
    lines = pd.concat(map(_read_cells, cells), ignore_index=True) if cells else pd.DataFrame()
    if lines.empty:
        raise UserError("there is nothing to write up: no cell has been measured")
    written = [_read_section(path) for path in sections]
    advice, users_own = actions(written), [row for section in written for row in section.users_own]
    facts = first_page(lines) | {
        "scale": scale,
        "command": _command(["snakemake", "reports/writeup.md", *(["--config", *config] if config else [])]),
        "changed": changed_since(lines, outdated),
        "sections": [Markdown(section.text) for section in written],
        "headline": [Markdown(section.headline) for section in written if section.headline],
        "actions": [Markdown(f"{action['what']} {action['why']}") for action in advice],
        "users_own": markdown(pd.DataFrame(users_own)) if users_own else "",
        "problems": problems(written),
        **_trusted(written),
        "sections_apart": how_far_apart(written),
        **what_is_missing(lines, read_failures(failures) if failures else Failures()),
    }
    write_text(out, render(TEMPLATE, facts))
    if summary is not None:
        write_summary(facts, lines, written, advice, summary)


def _command(words: Sequence[str]) -> Markdown:
    """Write a command for a shell as a line of a block of code, in which nothing is markup."""
    return Markdown(one_line(shlex.join(words)))


def _read_cells(path: Path) -> pd.DataFrame:
    lines = read_rows(path)
    missing = [name for name in CELL_COLUMNS if name not in lines]
    if missing:
        raise UserError(f"{path} is no table of cells, for it has no {', '.join(missing)}")
    return lines


def _read_section(path: Path) -> WrittenSection:
    """Read the parts of a section, which lie beside its text."""
    parts = path.with_suffix(".json")
    try:
        return from_json(parts.read_text())
    except OSError as error:
        raise UserError(f"cannot read {parts}: {error.strerror}") from None
    except (ValueError, TypeError, RecursionError):
        raise UserError(f"{parts} is not the parts of a section: write the section again") from None


def actions(sections: Sequence[WrittenSection]) -> list[dict[str, Any]]:
    """Return what to do on this machine, what concerns most runs first, as many as are read; each topic once."""
    every = sorted((action for section in sections for action in section.actions), key=lambda action: action["rank"])
    shown, settled = [], set()
    for action in every:
        topic = action["topic"] or action["what"]
        if topic not in settled:
            shown.append(action)
            settled |= {topic, *action["covers"]}
    return shown[:MOST_ACTIONS]


def _trusted(sections: Sequence[WrittenSection]) -> dict[str, Any]:
    """Return how many times are unstable, how far repeats lie apart, by stage, and what a power limit lowered.

    unstable_models: those of the first screen's table whose step is unstable; None without that table.
    """
    timed = [section.trust for section in sections if "times" in section.trust]
    limits_pct = sorted({trust["limit_pct"] for trust in timed})
    models = [model for section in sections for model in section.models]
    repeated = {section.stage: _spread(section.trust) for section in sections if "typical_pct" in section.trust}
    capped = [{"stage": section.stage, **section.trust} for section in sections if "capped" in section.trust]
    return {
        "times": sum(trust["times"] for trust in timed),
        "unstable_times": sum(trust["unstable"] for trust in timed),
        "limits": " to ".join(f"{limit:g}%" for limit in (limits_pct[:1] + limits_pct[1:][-1:])),
        "unstable_models": [model["size"] for model in models if model["status"] == "unstable"] if models else None,
        "repeated": repeated,
        "capped": capped,
        "full_clock_mhz": max((line["full_clock_mhz"] or 0 for line in capped), default=0),
        "capped_models": trust.capped_models(models),
    }


def _spread(trust: Mapping[str, float]) -> str:
    """Write how far apart repeats of stable figures lie, typically and at most, and at most those of unstable ones."""
    typical, most = (significant(trust[name], 2) for name in ("typical_pct", "most_pct"))
    unstable = trust.get("unstable_most_pct")
    return f"{typical}% ({most}%" + (f"; unstable ones {significant(unstable, 2)}%)" if unstable else ")")


def problems(sections: Sequence[WrittenSection]) -> list[dict[str, Markdown]]:
    """Return the assignment's problems with their answers, and where they are told; the first answer to each."""
    told: dict[str, dict[str, Markdown]] = {}
    for section in sections:
        for problem in section.problems:
            link = Markdown(f"[{problem['name']}](#{anchor(section.title)})")
            told.setdefault(problem["name"], {"name": link, "answer": Markdown(problem["answer"])})
    return list(told.values())


def first_page(cells: pd.DataFrame) -> dict[str, Any]:
    """Return the facts of the first page: machine, versions, commit, counts by status, and the time taken."""
    seconds = cells[SECONDS]
    started = pd.to_datetime(cells["started_at"])
    ended = started + pd.to_timedelta(seconds[["set_up_s", "measuring_s"]].sum(axis=1), unit="s")
    return {
        "machines": sorted(cells["machine"].unique()),
        "versions": [
            f"{name} {version}"
            for name in VERSIONS
            for version in sorted(cells[name].astype(str).unique())
            if version not in ("none", "absent")
        ],
        "hosts": _hosts(cells),
        "memory": _memory(cells),
        "commits": sorted(cells["commit"].unique()),
        "counts": _counts(cells),
        "statuses": [status for status in STATUSES if (cells["status"] == status).any() or status == "ok"],
        "without_figures": int((~has_figures(cells["status"])).sum()),
        "cells": len(cells),
        "first_start": started.min().strftime("%Y-%m-%d %H:%M UTC"),
        "last_end": ended.max().strftime("%Y-%m-%d %H:%M UTC"),
        "total_s": float(seconds.sum().sum()),
        "wall_s": _covered_s(started, ended),
        "waiting_s": float(cells["waiting_s"].sum()) if "waiting_s" in cells else 0.0,
        "measuring": float(seconds["measuring_s"].sum() / seconds.sum().sum()),
        "outcomes": _outcomes(cells),
        "on_busy_host": _on_busy_host(cells),
    }


def _hosts(cells: pd.DataFrame) -> str:
    """Name the models of the hosts' CPUs, each with the numbers of cores that it had; how many kinds if several."""
    cores: dict[str, list[str]] = {}
    cpus = sorted(cells["cpu"].dropna().unique(), key=lambda cpu: (len(cpu), cpu))
    for cpu in cpus:
        model, _, count_of_cores = cpu.rpartition(", ")
        cores.setdefault(model, []).append(count_of_cores.removesuffix(" cores"))
    named = " / ".join(f"{model} with {listing(counts)} cores" for model, counts in sorted(cores.items()))
    return f"hosts of {len(cpus)} kinds: {named}" if len(cpus) > 1 else f"host: {named}" if cpus else ""


def _memory(cells: pd.DataFrame) -> str:
    """Write how much memory each GPU has, or else the host; several where machines differ, nothing where unknown."""
    for name, words in MEMORY.items():
        if len(told := known(cells, name)):
            sizes = [f"{data_size(size)} ({number(size / 2**30)} GiB)" for size in told[name].sort_values()]
            return f"{' or '.join(dict.fromkeys(sizes))} of {words}"
    return ""


def _outcomes(cells: pd.DataFrame) -> list[dict[str, Any]]:
    """Return what became of the cells without figures: status, reason, how many, of which stages; the most first."""
    failed = cells[~has_figures(cells["status"])].astype({"reason": object}).fillna({"reason": ""})
    # These differ from cell to cell: their own section or table says them.
    for status, reason in (("skipped", LACKING), ("wrong", FAILED_CHECK)):
        failed["reason"] = failed["reason"].mask(failed["status"] == status, reason)
    groups = failed.groupby(["status", "reason"], sort=False)["stage"]
    found = groups.agg(size="size", stages=lambda stages: list(stages.unique())).reset_index()
    return found.sort_values("size", ascending=False, kind="stable").head(MOST_OUTCOMES).to_dict("records")


def _on_busy_host(cells: pd.DataFrame) -> list[str]:
    """Return the stage of each cell beside which other processes kept more than half of the cores busy."""
    return list(cells.loc[cells["host_busy"].astype(str) == "True", "stage"]) if "host_busy" in cells else []


def what_is_missing(cells: pd.DataFrame, failures: Failures) -> dict[str, Any]:
    """Return what failed, how much that is, and the stages of which nothing is left."""
    of_cells = [failure.stage for failure in failures.failed if failure.stage]
    others = len(failures.failed) - len(of_cells)
    amounts = {"cell": len(of_cells), "report step": others}
    return {
        "failed": failures.failed,
        "failed_amounts": [counted(number, noun) for noun, number in amounts.items() if number],
        "unmeasured": sorted({*of_cells} - {*cells["stage"]}),
    }


def changed_since(cells: pd.DataFrame, outdated: Sequence[str]) -> list[str]:
    """Name what was measured by code that has changed since, by its digests: stages, then parts of others."""
    changed, parts = [], []
    for stage, digests in cells.groupby("stage", sort=False)["digest"]:
        older = digests.isin(outdated)
        if older.all():
            changed.append(stage)
        elif older.any():
            parts.append(f"{older.sum()} of the {len(older)} cells of {stage}")
    return ["all of it"] if changed == [*cells["stage"].unique()] else [*changed, *parts]


def _covered_s(started: pd.Series, ended: pd.Series) -> float:
    """Return the seconds in which at least one cell was at work: pauses do not count, nor cells side by side twice."""
    spans = pd.DataFrame({"start": started, "end": ended}).sort_values("start")
    reached = spans["end"].cummax()
    pauses = (spans["start"].shift(-1) - reached).clip(lower=pd.Timedelta(0)).sum()
    return (reached.max() - spans["start"].min() - pauses).total_seconds()


def _counts(cells: pd.DataFrame) -> list[dict[str, Any]]:
    counts = pd.crosstab(cells["stage"], cells["status"])
    counts = counts.reindex(index=cells["stage"].unique(), columns=list(STATUSES), fill_value=0)
    return counts.reset_index().to_dict("records")
