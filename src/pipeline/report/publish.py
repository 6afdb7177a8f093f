"""Publish a snapshot of a run, small enough to commit: pages, figures, tables, and the records in one file."""

import os
import re
import shutil
import tarfile
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

from pipeline.cells.disk import files_below
from pipeline.cells.layout import check_place
from pipeline.cells.record import read_record, record_paths
from pipeline.cells.stage import Stages
from pipeline.errors import UserError

ARCHIVE = "records.tar.xz"
FOLDERS = ("figures", "tables")
PAGES = ("course.md", "report.html", "summary.json")
FILES = ("writeup.md", *PAGES, "figures/*.svg", "tables/*.csv", ARCHIVE)
# What pages say of tables, in Markdown and in HTML, and what they say where these lie beside the page.
TABLES_HERE = {
    "](../results/": "](tables/",
    "`results/<stage>/": "`tables/<stage>/",
    "<code>results/&lt;stage&gt;/": "<code>tables/&lt;stage&gt;/",
}
IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)")


def publish(root: Path, folder: Path, stages: Stages) -> None:
    """Copy reports/ and results/ of `root` into `folder`, in place of what an earlier snapshot left there.

    Raises UserError, and changes nothing, where there is no whole write-up, a record is not as its stage declares it,
    the folder holds anything but a snapshot, or it cannot be written.
    """
    writeup, results = root / "reports/writeup.md", root / "results"
    for part in (writeup, writeup.parent / "figures"):
        if not part.exists():
            raise UserError(f"there is no {part} to publish: run snakemake first")
    for path in record_paths(results):
        check_place(path, read_record(path, stages))
    place = Path(os.path.realpath(folder))
    try:
        _put_back(place)
        if place.exists():
            _require_snapshot(place, folder)
        _replace(place, writeup, results)
    except OSError as error:
        raise UserError(f"cannot publish into {folder}: {error}") from None


def shown_images(page: Path) -> list[str]:
    """Return the images of its own that a page shows, as it links to them; none for a page not there."""
    links = IMAGE.findall(page.read_text(encoding="utf-8", errors="replace")) if page.is_file() else []
    return [link for link in dict.fromkeys(links) if "://" not in link]


def _require_snapshot(place: Path, folder: Path) -> None:
    """Raise UserError where a folder that messages call `folder` holds anything but a snapshot."""
    if not (place / ARCHIVE).is_file():
        raise UserError(f"{folder} exists and is not a snapshot: it has no {ARCHIVE}")
    if not os.access(place, os.W_OK):
        raise UserError(f"cannot publish into {folder}: it is read-only")
    for path in sorted(place.rglob("*")):
        name = path.relative_to(place).as_posix()
        if not (name.split("/")[0] in FOLDERS if path.is_dir() else any(fnmatch(name, known) for known in FILES)):
            raise UserError(f"{folder} holds {name}, which does not belong to a snapshot: move it elsewhere")


def _replace(place: Path, writeup: Path, results: Path) -> None:
    """Put a snapshot together beside its place, and only then exchange it for the old one."""
    fresh, old = _beside(place)
    for left_over in (fresh, old):  # of a run that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    try:
        _copy(writeup, results, fresh)
        if place.exists():
            place.rename(old)
        fresh.rename(place)
    finally:
        _put_back(place)
        shutil.rmtree(fresh, ignore_errors=True)
    if old.exists():
        shutil.rmtree(old)


def _put_back(place: Path) -> None:
    """Give the old snapshot its place again where no new one has taken it, as after a run that was killed."""
    _, old = _beside(place)
    if old.exists() and not place.exists():
        old.rename(place)


def _beside(place: Path) -> tuple[Path, Path]:
    """Return where a new snapshot is put together, and where the old one is while they are exchanged."""
    return place.parent / f".{place.name}.new", place.parent / f".{place.name}.old"


def _copy(writeup: Path, results: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    for page in (writeup.name, *PAGES):
        _copy_files(writeup.parent, writeup.parent.glob(page), folder)
        _name_tables(folder / page)
    _copy_files(writeup.parent / "figures", files_below(writeup.parent / "figures", ".svg"), folder / "figures")
    for shown in (writeup, writeup.with_name("course.md")):
        _require_images(shown, folder)
    _copy_files(results, results.glob("*/*.csv"), folder / "tables")
    with tarfile.open(
        folder / ARCHIVE, "w:xz", dereference=True
    ) as archive:  # a link would tell a path of this machine
        for path in record_paths(results):
            archive.add(path, arcname=path.relative_to(results), filter=_anonymous)


def _name_tables(page: Path) -> None:
    """Let a page of a snapshot name the tables beside it, not the folder of results."""
    if page.is_file():
        text = page.read_text(encoding="utf-8")
        for words, here in TABLES_HERE.items():
            text = text.replace(words, here)
        page.write_text(text, encoding="utf-8")


def _copy_files(source: Path, paths: Iterable[Path], target: Path) -> None:
    for path in sorted(paths):
        copied = target / path.relative_to(source)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copied)


def _require_images(page: Path, folder: Path) -> None:
    """Raise UserError where a page shows an image that the folder with its copy lacks."""
    dead = [link for link in shown_images(page) if not (folder / link).is_file()]
    if dead:
        others = f" and {len(dead) - 1} more" if dead[1:] else ""
        raise UserError(f"{page} shows {dead[0]}{others}, but there is no such figure: run snakemake again")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who owned the files and when they were written: the records tell what matters."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member
