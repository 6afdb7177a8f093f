"""Load runs to compare: records of results folders, snapshots and archives, and their sections."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.cells import layout
from pipeline.cells.record import read_record, record_paths
from pipeline.cells.stage import Stages
from pipeline.compare.archive import archived_records
from pipeline.errors import UserError
from pipeline.report import frame, pages
from pipeline.report.publish import ARCHIVE
from pipeline.report.section import Section

Record = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One run: what it is called, where it was read from, its records."""

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
        """The frame of each stage that it has records of, by name, in the order of the stages."""
        return frame.by_stage(self.stages, self.records)

    @cached_property
    def sections(self) -> Mapping[str, Section]:
        """The section of each stage that has figures, by name."""
        told = [pages.told(self.stages[name], self.stages, self.frames) for name in self.frames]
        return {each.stage.name: each.section for each in told if each.section}


def load_runs(sources: Sequence[Path], stages: Stages) -> list[Run]:
    """Read runs, each called by the last part of its path, or all of it where two would have one name.

    Raises UserError, one line, as `load_records` does.
    """
    short = [source.resolve().name.partition(".")[0] for source in sources]
    names = short if len(set(short)) == len(short) else list(map(str, sources))
    return [
        Run(name, source, load_records(source, stages), stages) for name, source in zip(names, sources, strict=True)
    ]


def load_records(source: Path, stages: Stages) -> list[Record]:
    """Read every record of a results folder, of a folder that holds `results`, of a snapshot or of its archive.

    Raises UserError, one line, if there is no record, or one is damaged.
    """
    try:
        if source.is_dir():
            os.listdir(source)  # raises for an unreadable folder, which a search for files would skip
        archive = source / ARCHIVE if source.is_dir() else source
        records = list(archived_records(archive, stages) if archive.is_file() else _in_folder(source, stages))
    except OSError as error:
        raise UserError(f"cannot read {source}: {error.strerror}") from None
    if not records:
        raise UserError(f"{source} holds no records: neither STAGE/cells/, results/STAGE/cells/ nor {ARCHIVE}")
    cells = set()
    for name, record in records:
        layout.check_place(Path(name), record)
        cell = (record["stage"], *record["cell"].items())
        if cell in cells:
            raise UserError(f"{name} cannot be compared: {source} holds two records of this cell")
        cells.add(cell)
    return [record for _, record in records]


def _in_folder(source: Path, stages: Stages) -> Iterator[tuple[str, Record]]:
    for folder in (source, source / "results"):
        for path in record_paths(folder):
            yield str(path), read_record(path, stages)
