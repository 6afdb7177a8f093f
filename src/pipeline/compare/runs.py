"""Load the runs to compare, and build frames and sections from their records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
        """The sections of the stages that have records, in the order of the stages."""
        return [pages.stage_report(self.stages[name], self.stages, self.frames).section for name in self.frames]


def load_runs(sources: Sequence[Path], stages: Stages) -> list[Run]:
    """Load runs, named after the last part of their paths, or after whole paths if two names would be the same.

    Raises UserError, one line, as `load_records` does.
    """
    short = [source.resolve().name.partition(".")[0] for source in sources]
    names = short if len(set(short)) == len(short) else map(str, sources)
    return [
        Run(name, source_path, load_records(source_path, stages), stages)
        for name, source_path in zip(names, sources, strict=True)
    ]
