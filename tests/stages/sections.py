"""What the tests of every section share: its parts, its prose, its gaps, and numbers that its tables do not hold."""

import dataclasses
import functools
import re
from typing import NamedTuple

import numpy as np
import pandas as pd

from pipeline.cells.stage import RUN_COLUMNS, SETTING
from pipeline.instruments.machine.identity import SOFTWARE
from pipeline.registry import stages
from pipeline.report.page_parts import Figure, write
from pipeline.report.repeats import with_repeats
from pipeline.report.table_rows import complete, readable
from pipeline.report.tables import MAX_COLUMNS

NUMBER = re.compile(r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w]|\.\d)")
GAP = re.compile(r"\bnan\b|\bNone\b|\binf\b|Undefined|\n{3,}| \n|\(\)")
EMPTY_TABLE = re.compile(r"^(\|.*)\n\|[ :|-]+\|\n(?!\|)", flags=re.MULTILINE)
# A page of 896 px, as GitHub shows it: letters of its text and code, and what stands around a cell, in px.
PAGE_PX, TEXT_PX, CODE_PX, PADDING_PX = 896, 7.5, 8.2, 27
# What `pipeline.report.outcomes.not_measured` says: counts of rows.
COUNTS = re.compile(r"^.*\bfigures? (?:is|are) missing\b.*$", flags=re.MULTILINE)
MOST_ROUNDS = 12
SOME_CELLS = 2
# Columns that may hold any text, and text that has whatever Markdown, HTML and Matplotlib's formulas take for theirs.
FREE_TEXT = {
    *("reason", "machine", "kernel", "location", "code", "device_name", "peak_source", "peak_of", "throttle_reasons"),
    *SOFTWARE,
}
HOSTILE = (
    "</td></summary><script>alert(1)</script><!-- --> [x](http://e.com) ![x](http://e.com/x.png) `x` **x** __x__ ~~x~~"
    " | x <https://e.com> https://e.com www.e.com a@e.com $\\frac{$ \\| &lt;\n\n# x\n\n[x]: http://e.com\n```\n\u202e\x1b[2J"
)
OUR_TAGS = {"<details>", "</details>", "<summary>", "</summary>", "<!-- findings -->", "<!-- end of findings -->"}


class Rendered(NamedTuple):
    """A section that was built once: from which rows, its text, and its folder of figures."""

    rows: pd.DataFrame
    text: str
    folder: object


def as_read(stage, rows):
    """Return made-up rows as a section reads a stage's."""
    return complete(readable(rows), stages()[stage].row_types)


def thrice(stage, rows):
    """Return rows as a section gets them where every cell was measured three times, a little apart."""
    declared = stages()[stage]
    rows = rows.assign(samples_ms=rows["median_ms"].map(lambda median: [median] * 5, na_action="ignore"))
    times_ms = rows[["median_ms", "q1_ms", "q3_ms"]].astype(float)
    repeats = [rows.assign(repeat=number, **(1 + 0.002 * number) * times_ms) for number in (1, 2, 3)]
    axes = [name for name in declared.axes if name != "repeat"]
    return with_repeats(pd.concat(repeats, ignore_index=True), axes, declared.row_types.key_columns())


def made_once(make):
    """Keep the rows that a function makes; each test gets a copy of them, which it may change."""
    made = functools.cache(make)
    return lambda *what: made(*what).copy()


def render(build, tables, tmp_path_factory):
    """Build a section from each of the named tables."""
    folders = {name: tmp_path_factory.mktemp(name) for name in tables}
    return {name: Rendered(rows, build(rows, folders[name]), folders[name]) for name, rows in tables.items()}


def built(build, stage):
    """Turn a function that builds a section of parts into one that draws its figures and returns all its words.

    Those are the section's text and what other pages take of it: headline, actions, answers, titles of figures.
    """

    def text(rows, folder, *beside):
        section = build(rows, *beside)
        written = write(section, stage, [f"{stage}/all.csv"], folder, trust={})
        titles = [item.title for item in section.parts if isinstance(item, Figure)]
        actions = [f"{action['what']} {action['why']}" for action in written.actions]
        problems = [f"{problem['name']}: {problem['answer']}" for problem in written.problems]
        return "\n\n".join(filter(None, [written.text.strip(), written.headline, *titles, *actions, *problems])) + "\n"

    return text


def part(text, title):
    """Keep one part of a section, by its title up to a colon."""
    return re.split(rf"### {re.escape(title)}(?::.*)?\n", text, maxsplit=1)[1].split("\n### ", 1)[0]


def prose(text):
    """Keep the sentences of a section: neither tables, code, summaries, links nor headings."""
    lines = [line for line in text.splitlines() if not line.startswith(("|", "<", "!", "#", "    "))]
    return without_code("\n".join(lines))


def without_code(text):
    """Leave out what stands between backticks."""
    return re.sub(r"`[^`]*`", "``", text)


def gaps(text):
    """Find words, brackets, lines and tables that should have been filled in; code has brackets of its own."""
    return GAP.findall(without_code(text)) + EMPTY_TABLE.findall(text)


def wide_tables(text):
    """Return the heads of tables that no page holds or nobody reads: cells break at spaces, words do not."""
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    heads = {table.splitlines()[0]: table for table in tables}
    return [
        head for head, table in heads.items() if _least_width_px(table) > PAGE_PX or head.count("|") - 1 > MAX_COLUMNS
    ]


def _least_width_px(table):
    lines = [line.strip("|").split("|") for line in table.splitlines() if not re.match(r"\|[ :|-]+$", line)]
    return sum(max(map(_widest_word_px, column)) + PADDING_PX for column in zip(*lines, strict=True))


def _widest_word_px(cell):
    letter_px = CODE_PX if "`" in cell else TEXT_PX
    return max((letter_px * len(word.strip("`")) for word in cell.split()), default=0)


def linked_figures(text, stage):
    """Return the names of the figures that a section links."""
    return set(re.findall(rf"\(figures/{stage}/(\w+)\.svg\)", text))


def drawn_figures(folder):
    """Return the names of the figures in a folder."""
    return {path.stem for path in folder.iterdir()}


def contents(folder):
    """Return the bytes of each file in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def keys(stage, *others):
    """Return the columns that say what a stage's row is of: axes, settings, those that name a row, and others."""
    return [*stages()[stage].axes, *_settings(stage), *stages()[stage].row_types.key_columns(), *others]


def _settings(stage):
    return [SETTING + item.name for item in dataclasses.fields(stages()[stage].settings_type)]


def unnamed_rows(stage, rows):
    """Return the rows of a table that the columns which tell a stage's rows apart do not."""
    columns = [name for name in (*stages()[stage].axes, *stages()[stage].row_types.key_columns()) if name in rows]
    return rows[rows.duplicated(columns, keep=False)]


def obeyed_markup(text):
    """Find what a renderer would take for markup and no template has: tags, links, addresses, broken tables, spans."""
    words = without_code(text)
    tags = set(re.findall(r"<[A-Za-z/!?][^>]*>?", words)) - OUR_TAGS
    ours = ("figures/", "../results/", "#")
    links = [link for link in re.findall(r"\]\(([^)]*)\)", words) if not link.startswith(ours)]
    others = re.findall(r"://|www\.|@\w|\]:|\]\[|__|~~|\$|\\\\|^# |^```|[\u202e\x1b]", words, re.MULTILINE)
    tables = [table.splitlines() for table in re.findall(r"(?:^\|.*\n)+", words, flags=re.MULTILINE)]
    broken = [table[0] for table in tables if len({line.count("|") for line in table}) > 1]
    return [*tags, *links, *others, *broken, *(line for line in text.splitlines() if line.count("`") % 2)]


def faults_of_parts(build, stage, rows, tmp_path_factory):
    """Build a section from parts of its cells; return, by part, gaps, wide tables, figures not drawn or linked."""
    found = {}
    for name, (_, text, folder) in render(build, _parts(stage, rows), tmp_path_factory).items():
        faults = {*gaps(text), *wide_tables(text), *(linked_figures(text, stage) ^ drawn_figures(folder))}
        if name == "hostile_text":  # which is as wide, and has the gaps, that its author likes
            faults = {*obeyed_markup(text), *({"not shown"} if "alert(1)" not in text else ())}
        if faults:
            found[name] = faults
    return found


def _parts(stage, rows):
    """Return tables with some cells alone, with the first and last, with the first failed, with all others failed."""
    axes = list(stages()[stage].axes)
    cells = [cell for _, cell in rows.groupby(axes, sort=False, dropna=False)]
    some = {*range(0, len(cells), -(-len(cells) // SOME_CELLS)), len(cells) - 1}
    return {
        **{f"cell_{number}_alone": cells[number] for number in some},
        "first_and_last_cell": pd.concat([cells[0], *cells[1:][-1:]], ignore_index=True),
        "first_cell_failed": pd.concat([_failed(stage, cells[0]), *cells[1:]], ignore_index=True),
        "other_cells_failed": pd.concat(
            [cells[0], *(_failed(stage, cell, "failed") for cell in cells[1:])], ignore_index=True
        ),
        "hostile_text": with_hostile_text(pd.concat([_failed(stage, cells[0]), *cells[1:]], ignore_index=True)),
    }


def with_hostile_text(rows):
    """Put text that looks like markup before whatever free text a table has."""
    changed = rows.copy()
    for name in FREE_TEXT & set(rows):
        changed[name] = rows[name].map(_hostile, na_action="ignore")
    return readable(changed)


def _hostile(value):
    return [_hostile(item) for item in value] if isinstance(value, list) else f"{HOSTILE} {value}"


def _failed(stage, rows, status="oom"):
    """Return the rows that a cell leaves which ran out of memory before it measured anything, or failed otherwise."""
    first, axes = rows.iloc[0], stages()[stage].axes
    cell = stages()[stage].cell_type(**{name: first[name] for name in axes})
    shared = first[first.index.intersection([*axes, *_settings(stage), *RUN_COLUMNS])].to_dict()
    outcome = {"status": status, "reason": "CUDA out of memory. Tried to allocate 8.00 GiB."}
    return as_read(stage, pd.DataFrame([{**shared, **key, **outcome} for key in cell.row_keys()]))


def numbers_that_stay(build, rows, keys, allowed=()):
    """Find numbers of a section's prose that stay although every figure in its tables becomes another one.

    Such a number does not come from the tables. `keys` are the columns that say what a row is of: their values, and
    those of columns of text, may stand in a sentence; so may what is `allowed`.
    """
    rng = np.random.default_rng(0)
    found = _numbers(prose(build(rows)), rows)
    assert found, "there is no number in the prose"
    known = {_plain(value) for key in rows.columns.intersection(keys) for value in rows[key].dropna().unique()}
    found -= known | set(allowed)
    for _ in range(MOST_ROUNDS):
        if found:
            found &= _numbers(prose(build(perturbed(rows, keys, rng))), rows)
    return found


def perturbed(rows, keys, rng):
    """Return rows with all figures changed but those of `keys`."""
    changed = rows.copy()
    for name in rows.columns.difference(keys):
        if rows[name].dtype.kind in "if":
            # Each row by another factor, and all by one: a mean over rows would hardly move.
            changed[name] = rows[name] * rng.uniform(0.8, 1.25, len(rows)) * rng.uniform(0.5, 2)
        elif rows[name].map(type).eq(list).any():
            changed[name] = [_others(values, rng) for values in rows[name]]
    for median in [name for name in changed if name.startswith("median_")]:  # else no range could be drawn
        quartiles = [
            name for name in (median.replace("median", "q1"), median, median.replace("median", "q3")) if name in changed
        ]
        changed[quartiles] = np.sort(changed[quartiles].to_numpy(dtype=float))
    return changed


def _others(value, rng):
    if isinstance(value, list):
        return [_others(item, rng) for item in value]
    return value * rng.uniform(0.8, 1.25) if isinstance(value, float) else value


def _numbers(text, rows):
    """Return the numbers of a text, without thousands separators; those inside names are none."""
    names = {name for column in rows.select_dtypes(exclude="number") for name in rows[column].dropna().astype(str)}
    names = sorted((name for name in names if re.search(r"\d", name)), key=len, reverse=True)
    text = COUNTS.sub("", text)
    without_names = re.sub("|".join(map(re.escape, names)), "", text) if names else text
    return {_plain(float(found.replace(",", ""))) for found in NUMBER.findall(without_names)}


def _plain(value):
    return f"{value:g}" if isinstance(value, int | float | np.number) else str(value)
