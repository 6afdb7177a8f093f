"""Say which records pages show, and under which scale they were asked for; without pandas, for the workflow."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.cells.disk import write_text
from pipeline.errors import UserError


@dataclass(frozen=True)
class Asked:
    """What pages are asked to show: which records, and what is said of the run.

    scale: which cells were asked for; empty where what is there is written up. missing: cells of the scale that have no
    record: `stage` and `cell`. outdated: digests of code that has changed since it measured. config: the words after
    Snakemake's `--config` that ask for the same run. in_clone: whether this is a clone of the project, where
    `snakemake` finds the workflow.
    """

    records: Sequence[str]
    scale: str = ""
    missing: Sequence[Mapping[str, Any]] = ()
    outdated: Sequence[str] = ()
    config: Sequence[str] = ()
    in_clone: bool = True


def write_asked(asked: Asked, path: Path) -> None:
    """Write what `read_asked` reads, unless it is there already: an unchanged file keeps its time."""
    text = json.dumps(asdict(asked), indent=1) + "\n"
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def read_asked(path: Path) -> Asked:
    """Read what pages are asked to show; raises UserError, one line, for a file that is no such thing."""
    try:
        return Asked(**json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, TypeError):
        raise UserError(f"{path} is damaged: run snakemake, which writes it again") from None
