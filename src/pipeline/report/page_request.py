"""Write and read what the pages are asked to show. Imports no pandas, because the workflow imports this module."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.cells.disk import write_text
from pipeline.errors import UserError


@dataclass(frozen=True)
class PageRequest:
    """What the pages are asked to show: the records, and facts about the run.

    scale: which cells were asked for; empty if the pages only show existing records. missing: cells of the scale
    without a record, as `stage` and `cell`. outdated: digests of code that has changed since it measured. config: the
    words after Snakemake's `--config` that repeat this run. in_clone: whether this is a clone of the project, where
    `snakemake` finds the workflow.
    """

    records: Sequence[str]
    scale: str = ""
    missing: Sequence[Mapping[str, Any]] = ()
    outdated: Sequence[str] = ()
    config: Sequence[str] = ()
    in_clone: bool = True


def write_page_request(request: PageRequest, path: Path) -> None:
    """Write the file that `read_page_request` reads; if nothing changed, leave it alone, so that it keeps its mtime."""
    text = json.dumps(asdict(request), indent=1) + "\n"
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def read_page_request(path: Path) -> PageRequest:
    """Read what the pages are asked to show; raises UserError, one line, if the file is unreadable or damaged."""
    try:
        return PageRequest(**json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, TypeError):
        raise UserError(f"{path} is damaged: run snakemake to write it again") from None
