"""Publish a snapshot of a run, small enough to commit: pages, figures, tables, and the records in one file."""

import os
import re
import shutil
import tarfile
from collections.abc import Collection
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.cells.disk import files_below
from pipeline.cells.fields import text
from pipeline.cells.layout import check_place
from pipeline.cells.record import read_record, record_paths
from pipeline.cells.stage import Stages
from pipeline.errors import UserError
from pipeline.snapshots.records import ARCHIVE

FOLDERS = ("figures", "tables")
PAGES = ("writeup.md", "course.md", "report.html", "summary.json")
FILES = (*PAGES, "figures/*.svg", "tables/*.csv", ARCHIVE)
# How pages refer to tables, in Markdown and in HTML, and how they do in a snapshot, where the tables are beside them.
TABLE_LINKS = {
    "](../results/": "](tables/",
    "`results/<stage>/": "`tables/<stage>/",
    "<code>results/&lt;stage&gt;/": "<code>tables/&lt;stage&gt;/",
}
IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)")


def publish(root: Path, folder: Path, stages: Stages) -> None:
    """Copy reports/ and results/ of `root` into `folder`, replacing an earlier snapshot.

    Raises UserError, and changes nothing, if the write-up is incomplete, a record is not as its stage declares it or is
    in another's place, the folder holds anything but a snapshot, or it cannot be written.
    """
    reports, results = root / "reports", root / "results"
    for part in (reports / "writeup.md", reports / "figures"):
        if not part.exists():
            raise UserError(f"there is no {part} to publish: run snakemake first")
    tables = set()
    for path in record_paths(results):
        record = read_record(path, stages)
        check_place(path, record)
        stage = stages[record["stage"]]
        tables |= {f"{stage.name}/{name}.csv" for name in ("cells", text(record["cell"][stage.split_axis]))}
    place = Path(os.path.realpath(folder))
    try:
        if place.exists():
            _require_snapshot(place, folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        # Build the snapshot beside its place, then swap it with the old one.
        with TemporaryDirectory(prefix=f".{place.name}.", dir=place.parent) as staging:
            new, old = Path(staging, "snapshot"), Path(staging, "old")
            _copy(reports, results, tables, new)
            if place.exists():
                place.rename(old)
            try:
                new.rename(place)
            except OSError:
                if old.exists():
                    old.rename(place)
                raise
    except OSError as error:
        raise UserError(f"cannot publish into {folder}: {error}") from None


def shown_images(page: Path) -> list[str]:
    """Return the local images that a page shows, as it links to them; none if there is no page."""
    links = IMAGE.findall(page.read_text(encoding="utf-8", errors="replace")) if page.is_file() else []
    return [link for link in dict.fromkeys(links) if "://" not in link]


def _require_snapshot(place: Path, folder: Path) -> None:
    """Raise UserError if `place` holds anything but a snapshot; folder: its name in messages."""
    if not (place / ARCHIVE).is_file():
        raise UserError(f"{folder} exists and is not a snapshot: it has no {ARCHIVE}")
    for path in sorted(place.rglob("*")):
        name = path.relative_to(place).as_posix()
        if not (name.split("/")[0] in FOLDERS if path.is_dir() else any(fnmatch(name, known) for known in FILES)):
            raise UserError(f"{folder} holds {name}, which does not belong to a snapshot: move it elsewhere")


def _copy(reports: Path, results: Path, tables: Collection[str], folder: Path) -> None:
    """Copy pages, figures, records, and the tables that have records: others are of cells since removed."""
    pages = [reports / name for name in PAGES if (reports / name).is_file()]
    places = {path: path.relative_to(reports) for path in (*pages, *files_below(reports / "figures", ".svg"))}
    places |= {results / name: Path("tables", name) for name in sorted(tables) if (results / name).is_file()}
    for path, place in places.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / place)
    for page in pages:
        _require_images(page, folder)
        content = page.read_text(encoding="utf-8")
        for link, local_link in TABLE_LINKS.items():
            content = content.replace(link, local_link)
        (folder / page.name).write_text(content, encoding="utf-8")
    # Store files instead of links, which would reveal a path of this machine.
    with tarfile.open(folder / ARCHIVE, "w:xz", dereference=True) as archive:
        for path in record_paths(results):
            archive.add(path, arcname=path.relative_to(results), filter=_anonymous)


def _require_images(page: Path, folder: Path) -> None:
    """Raise UserError if a page shows an image that is missing in the folder of its copy."""
    missing = [link for link in shown_images(page) if not (folder / link).is_file()]
    if missing:
        others = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise UserError(f"{page} shows {missing[0]}{others}, but there is no such figure: run snakemake again")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out the files' owners and modification times: the records hold what matters."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member
