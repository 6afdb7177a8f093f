import errno
import json
import re
import shutil
import tarfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from pipeline.errors import UserError
from pipeline.registry import stages
from pipeline.snapshots.publish import publish
from pipeline.snapshots.records import ARCHIVE

from ..records import record, timed_row

CELLS = "results/timing/cells"
FILES = {
    "reports/writeup.md": "# Write-up\n\n![A step](figures/timing/step.svg)\n[bf16](../results/timing/bf16.csv)\n",
    "reports/report.html": "<!doctype html><code>results/&lt;stage&gt;/cells.csv</code>",
    "reports/summary.json": "{}",
    "reports/figures/timing/step.svg": "<svg/>",
    "reports/figures/timing/.snakemake_timestamp": "",
    "results/timing/bf16.csv": "a,b",
    "results/timing/tf32.csv": "a,b",  # its records are gone
    f"{CELLS}/precision=bf16/size=xl.json": json.dumps(record(cell={"precision": "bf16", "size": "xl"})),
}
PUBLISHED = ["figures/timing/step.svg", ARCHIVE, "report.html", "summary.json", "tables/timing/bf16.csv", "writeup.md"]
FIGURES = ("reports/figures/timing", "reports/figures/timing/step.svg")


@pytest.fixture
def run(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def published(run, folder="h200"):
    publish(run, run / folder, stages())
    return run / folder


def contents(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def refused(run, complaint, folder="h200"):
    """Try to publish; assert that it is refused with this complaint and changes nothing."""
    before = contents(run)
    with pytest.raises(UserError, match=complaint):
        published(run, folder)
    assert contents(run) == before


full_disk = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))


def test_a_snapshot_is_complete_and_reproducible_and_links_to_its_own_tables(run):
    first, second = published(run, "reports/h200"), published(run, "b")
    assert contents(first) == PUBLISHED
    with tarfile.open(first / ARCHIVE) as archive:
        assert archive.getnames() == ["timing/cells/precision=bf16/size=xl.json"]
    assert (second / ARCHIVE).read_bytes() == (first / ARCHIVE).read_bytes()
    assert all("results/" not in (first / name).read_text() for name in ("writeup.md", "report.html"))
    (link,) = re.findall(r"\[bf16\]\((.*)\)", (first / "writeup.md").read_text())
    assert (first / link).is_file()


def test_a_new_snapshot_leaves_nothing_of_the_old(run):
    published(run)
    (run / "results/timing/bf16.csv").rename(run / "results/timing/fp32.csv")
    assert "tables/timing/bf16.csv" not in contents(published(run))
    assert not list(run.glob(".*"))


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({"rows": [timed_row(peak_bytes=-1)]}, "row 1: peak_bytes must be a whole number, at least 0, got -1"),
        ({"cell": {"precision": "fp32", "size": "xl"}}, "holds the record of another cell, timing precision=fp32"),
    ],
)
def test_a_record_that_is_invalid_or_in_the_wrong_place_is_named(run, parts, complaint):
    (path,) = run.glob("results/timing/cells/**/*.json")
    path.write_text(json.dumps(record(**parts)))
    refused(run, f"size=xl.json .*{complaint}")


@pytest.mark.parametrize("missing", ["writeup.md", "figures"])
def test_nothing_is_published_without_a_complete_writeup(run, missing):
    path = run / "reports" / missing
    path.unlink() if path.is_file() else shutil.rmtree(path)
    refused(run, f"no .*{missing} to publish: run snakemake first")


@pytest.mark.parametrize(("num_lost", "more"), [(1, ""), (3, " and 2 more")])
def test_a_writeup_with_missing_figures_is_not_published(run, num_lost, more):
    links = "".join(f"![A figure](figures/lost/{name}.svg)\n" for name in ("first", "mfu", "step")[:num_lost])
    (run / "reports/writeup.md").write_text(f"![Told elsewhere](https://example.org/a.svg)\n{links}")
    refused(run, rf"writeup.md shows figures/lost/first.svg{more}, but there is no such figure")


@pytest.mark.parametrize("name", ["NOTES.md", "figures/notes.txt", "tables/timing/notes.txt", "notes/mine.csv", ".git"])
def test_a_snapshot_with_other_files_in_it_is_left_alone(run, name):
    added = published(run) / name
    added.parent.mkdir(exist_ok=True)
    added.write_text("mine")
    refused(run, f"h200 holds {name.split('/mine')[0]}, which does not belong to a snapshot")
    assert added.read_text() == "mine"


@pytest.mark.parametrize("place", [".", "/", "results", "reports/writeup.md", "reports/writeup.md/h200"])
def test_a_place_that_cannot_hold_a_snapshot_is_left_alone(run, place):
    refused(run, r"exists and is not a snapshot|cannot publish into", place)


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("step", ["shutil.copyfile", "tarfile.TarFile.add", "pathlib.Path.mkdir", "snapshot"])
def test_a_full_disk_leaves_everything_as_it_was(run, monkeypatch, step, is_there):
    if is_there:
        published(run)
    rename = Path.rename
    # `snapshot`: the disk is full when the finished snapshot is moved to its place.
    monkeypatch.setattr(Path, "rename", lambda path, to: full_disk() if path.name == step else rename(path, to))
    if "." in step:
        monkeypatch.setattr(step, full_disk)
    refused(run, r"cannot publish into .*h200: .*No space left on device")
    assert not list(run.glob(".h200*"))


@pytest.mark.parametrize(
    "linked", [f"{CELLS}/precision=bf16/size=xl.json", f"{CELLS}/precision=bf16", CELLS, "results/timing", *FIGURES]
)
def test_links_are_published_as_the_files_that_they_point_to(run, linked):
    plain = published(run, "plain")
    (run / linked).rename(run / "elsewhere")
    (run / linked).symlink_to(run / "elsewhere")
    folder = published(run)
    assert contents(folder) == PUBLISHED
    assert all((folder / name).read_bytes() == (plain / name).read_bytes() for name in PUBLISHED)
    assert not any(path.is_symlink() for path in folder.rglob("*"))
