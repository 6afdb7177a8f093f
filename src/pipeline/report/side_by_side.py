"""Cells that measure several ways to do the same: their rows as runs, and what is said of several of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.page_parts import Problem, say
from pipeline.report.section import listing, ms
from pipeline.report.table_rows import in_order, ok

PRECISIONS = ("fp32", "bf16")
AXES = ("precision", "size", "batch_size_per_rank", "context_length", "world_size")
AXIS_WORDS = {"batch_size_per_rank": "batch {}", "context_length": "context {}", "world_size": "{} ranks"}
NONE = "–"
MOST_APART = 0.1  # of profiled steps from timed ones, as a share of these


@dataclass(frozen=True, eq=False)
class Run:
    """One cell of several ways to train; every table has one row per way, by its words.

    name: the precision, and what else tells it from other cells. rows: those with figures. whole: the whole steps by
    the host clock, those without a figure too.
    """

    name: str
    rows: pd.DataFrame
    whole: pd.DataFrame

    @property
    def steps(self) -> pd.DataFrame:
        """The whole steps that have a figure."""
        return ok(self.whole)

    @property
    def size(self) -> str:
        """The model."""
        return str(self.whole["size"].iloc[0])

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return int(self.whole["world_size"].iloc[0])

    @property
    def precision(self) -> str:
        """The precision."""
        return str(self.whole["precision"].iloc[0])

    @property
    def setup(self) -> str:
        """What runs on how many ranks: `xl in bf16 on 2 ranks (batch 2 a rank, context 512)`."""
        return f"{self.size} in {self.precision} on {self.world_size} ranks ({self.batch})"

    @property
    def batch(self) -> str:
        """The batch of a rank, in words."""
        first = self.whole.iloc[0]
        return f"batch {int(first['batch_size_per_rank'])} a rank, context {int(first['context_length'])}"

    @property
    def label(self) -> str:
        """The name, with what must be known to read its times."""
        return self.name


AnyRun = TypeVar("AnyRun", bound=Run)
AnyTime = TypeVar("AnyTime", float, pd.Series)


def named(rows: pd.DataFrame, ways: Sequence[str], axes: Sequence[str] = AXES) -> pd.DataFrame:
    """Return rows in reading order, with `cell_name`.

    rows: with the words for what they are of in `way`. ways: these words in reading order.
    """
    rows = rows.assign(cell_name=cell_names(rows, axes))
    return in_order(rows, [*axes, "way"], {"precision": PRECISIONS, "way": ways})


def whole_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep whole steps by the host clock; those without a figure too."""
    return rows[(rows["phase"] == "train_step") & (rows["clock"] == "host")]


def runs(rows: pd.DataFrame, kind: type[AnyRun]) -> list[AnyRun]:
    """Make a run of each cell of `named` rows; a cell without any figure is left out."""
    cells = [(name, cell.set_index("way")) for name, cell in rows.groupby("cell_name", sort=False)]
    made = [kind(str(name), ok(cell), whole_steps(cell)) for name, cell in cells]
    return [run for run in made if len(run.steps)]


def cell_names(rows: pd.DataFrame, axes: Sequence[str]) -> list[str]:
    """Name each row's cell by the first axis and whichever others vary: `bf16`, or `bf16, xl, 4 ranks`."""
    telling = [axis for axis in axes if axis == axes[0] or rows[axis].nunique() > 1]
    values = pd.DataFrame({axis: rows[axis].map(AXIS_WORDS.get(axis, "{}").format) for axis in telling})
    return list(values.agg(", ".join, axis=1))


def once_each(texts: Iterable[tuple[str, str]]) -> Markdown:
    """Join what is said of named things, `fp32: ...`; what is said of several stands once: `fp32 and bf16: ...`."""
    names: dict[str, list[str]] = {}
    for name, text in texts:
        if text:
            names.setdefault(text, []).append(name)
    return Markdown(" ").join(say("{names}: {text}", names=listing(alike), text=text) for text, alike in names.items())


def problems(measured: Sequence[AnyRun], answers: Mapping[str, Callable[[AnyRun], str]]) -> list[Problem]:
    """Answer each problem that the runs bear on, by what is said of each of them."""
    said = {name: once_each((run.label, answer(run)) for run in measured) for name, answer in answers.items()}
    return [Problem(name, text) for name, text in said.items() if text]


def agree(what: str, differences: str, do_agree: bool, tolerance: float) -> Markdown:
    """Say whether weights agree after the same number of steps, and by how much they differ.

    tolerance: the largest difference that rounding may make, told of those that do not agree.
    """
    words = "the weights of {what} {verdict} after as many steps: they differ by {how}."
    verdict = Markdown("agree" if do_agree else "**do not agree**")
    beyond = "" if do_agree else f", where rounding may make {tolerance:.2g}"
    return say(words, what=what, verdict=verdict, how=differences + beyond)


def step_words(step: pd.Series) -> str:
    """Write the time of a step: `391 ms`, or `391 ms (unstable)`."""
    return f"{ms(step['median_ms'])}{' (unstable)' if step['status'] == 'unstable' else ''}"


def is_as_timed(profiled_ms: AnyTime, timed_ms: AnyTime) -> AnyTime:
    """Tell whether profiled steps take about as long as timed ones, and may be told of beside them."""
    return abs(profiled_ms / timed_ms - 1) <= MOST_APART


def text_cells(values: pd.Series, form: Callable[[float], str], ways: Iterable[str]) -> list[str]:
    """Write a value a way, and a dash where there is none."""
    shown = values.astype(float).reindex(list(ways))
    return [NONE if pd.isna(value) else form(value) for value in shown]


def without_empty(table: pd.DataFrame) -> pd.DataFrame:
    """Leave out the columns that have nothing in any row."""
    return table.loc[:, (table != NONE).any()]
