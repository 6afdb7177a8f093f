"""The write-up: a first screen, how far to trust it, a section per stage, the assignment's answers."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.cells import fields
from pipeline.cells.disk import write_text
from pipeline.cells.record import read_record
from pipeline.cells.samples import NEGLIGIBLE_SHARE
from pipeline.cells.stage import Stage, Stages
from pipeline.cells.stage_rows import stage_rows
from pipeline.errors import UserError
from pipeline.instruments.machine.identity import SOFTWARE
from pipeline.report import trust
from pipeline.report.all_rows import meanings, row_table
from pipeline.report.html import stage_parts
from pipeline.report.markup import Markdown, anchor, one_line
from pipeline.report.page_parts import MOST_ACTIONS, write
from pipeline.report.run_facts import SECONDS, changed_since, first_page
from pipeline.report.section import render
from pipeline.report.section_rows import by_stage, section_rows, shown_rows
from pipeline.report.summary import write_summary
from pipeline.report.table_rows import read_rows, readable
from pipeline.report.tables import markdown, significant
from pipeline.report.users_own import with_users_own
from pipeline.report.written_section import HTML_SUFFIX, WrittenSection, from_json, to_json

TEMPLATE = Path(__file__).parent / "writeup.md.j2"
CELL_COLUMNS = (
    *("stage", "cell", "status", "reason", "started_at", *SECONDS, "machine", "cpu", *SOFTWARE, "commit", "digest"),
)


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
    summary: Path | None = None,
    config: Sequence[str] = (),
) -> None:
    """Write the write-up from the rendered sections and the tables of cells.

    scale: which cells were asked for; empty where what is there is written up, whatever asked for it.
    outdated: digests of code that has changed since it measured.
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
        return from_json(parts.read_text(encoding="utf-8"))
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
        "limits": _span(limits_pct),
        "negligible": _span([NEGLIGIBLE_SHARE * limit for limit in limits_pct]),
        "unstable_models": [model["size"] for model in models if model["status"] == "unstable"] if models else None,
        "repeated": repeated,
        "capped": capped,
        "full_clock_mhz": max((line["full_clock_mhz"] or 0 for line in capped), default=0),
        "capped_models": trust.capped_models(models),
    }


def _span(percentages: Sequence[float]) -> str:
    """Write the least and the most of sorted percentages, once if they are the same: `5% to 10%`."""
    return " to ".join(f"{each:g}%" for each in (*percentages[:1], *percentages[1:][-1:]))


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
