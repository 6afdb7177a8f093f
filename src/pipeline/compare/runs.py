"""Load the runs to compare, and build frames and sections from their records."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from pipeline.cells.stage import Stages
from pipeline.report import frame, pages
from pipeline.report.section import Section
from pipeline.snapshots.records import Record, load_records


@dataclass(frozen=True)
class Run:
    """One run: its name, where it was read from, its records."""

    name: str
    source: Path
    records: Sequence[Record]
    stages: Stages

    @cached_property
    def machine(self) -> str:
        """The kinds of its machines."""
        return ", ".join(sorted({record["machine"]["kind"] for record in self.records}))

    @cached_property
    def frames(self) -> Mapping[str, pd.DataFrame]:
        """The frames of the stages that have records, by name, in the order of the stages."""
        return frame.by_stage(self.stages, self.records)

    @cached_property
    def sections(self) -> Sequence[Section]:
        """The sections of the stages that have records, in the order of the stages.

        Both times of a model, as written and tuned, are of one cell, as in the report of one scale.
        """
        shown = last_measured(self.records, self.stages, one_cell=True)
        frames = self.frames if len(shown) == len(self.records) else frame.by_stage(self.stages, shown)
        return [pages.stage_report(self.stages[name], self.stages, frames).section for name in frames]


def load_runs(sources: Sequence[Path], stages: Stages) -> list[Run]:
    """Load runs, named after the last part of their paths, or after whole paths if two names would be the same.

    Raises UserError, one line, as `load_records` does.
    """
    short = [source.resolve().name.partition(".")[0] for source in sources]
    names = short if len(set(short)) == len(short) else map(str, sources)
    return [
        Run(name, source_path, last_measured(load_records(source_path, stages), stages), stages)
        for name, source_path in zip(names, sources, strict=True)
    ]


def last_measured(records: Sequence[Record], stages: Stages, one_cell: bool = False) -> list[Record]:
    """Drop the records of cells that were measured again with other settings, as another scale does.

    Cells are the same if they differ only in their repeat, or in which rows they have. one_cell: of cells with other
    rows, too, keep only the last measured and its repeats.
    """
    cells, kinds = [], []
    for record in records:
        stage = stages[record["stage"]]
        axes = asdict(stage.cell_type(**record["cell"]))
        cells.append((stage.name, *(axes[name] for name in stage.naming_axes)))
        settings = asdict(stage.settings_type()) | record["settings"]
        kinds.append((settings, {**axes, "repeat": 1} if one_cell else {}))
    in_order = sorted(range(len(records)), key=lambda place: records[place]["started_at"])
    last_kinds = {cells[place]: kinds[place] for place in in_order}
    return [records[place] for place in range(len(records)) if kinds[place] == last_kinds[cells[place]]]
