"""A snapshot of a run, small enough to commit: write-up, figures, tables, and the records in one file."""

import shutil
import tarfile
from pathlib import Path

from pipeline.cells.record import record_paths
from pipeline.errors import UserError

ARCHIVE = "records.tar.xz"


def publish(root: Path, folder: Path) -> None:
    """Copy reports/ and results/ of `root` into `folder`, in place of what an earlier snapshot left there.

    Raises UserError where there is no whole write-up, or where the folder holds anything but a snapshot.
    """
    writeup, results = root / "reports/writeup.md", root / "results"
    for part in (writeup, writeup.parent / "figures"):
        if not part.exists():
            raise UserError(f"there is no {part} to publish: run snakemake first")
    fresh = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    _copy(writeup, results, fresh)
    if folder.exists():
        if not (folder / ARCHIVE).is_file():
            shutil.rmtree(fresh)
            raise UserError(f"{folder} exists and is no snapshot: it has no {ARCHIVE}")
        shutil.rmtree(folder)
    fresh.rename(folder)


def _copy(writeup: Path, results: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    shutil.copyfile(writeup, folder / writeup.name)
    shutil.copytree(writeup.parent / "figures", folder / "figures", ignore=_hidden)
    for table in sorted(results.glob("*/*.csv")):
        target = folder / "tables" / table.relative_to(results)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(table, target)
    with tarfile.open(folder / ARCHIVE, "w:xz") as archive:
        for path in record_paths(results):
            archive.add(path, arcname=path.relative_to(results), filter=_anonymous)


def _hidden(_folder: str, names: list[str]) -> set[str]:
    """Name what is Snakemake's own: its time stamp beside a folder that a rule made."""
    return {name for name in names if name.startswith(".")}


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who owned the files and when they were written: the records tell what matters."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member
