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
    """Try to publish, and see that it is refused in one line and nothing is changed."""
    before = contents(run)
    with pytest.raises(UserError, match=complaint):
        published(run, folder)
    assert contents(run) == before


full_disk = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))


def test_a_snapshot_holds_pages_figures_tables_and_records_the_same_bytes_again_and_names_its_own_tables(run):
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
def test_a_record_that_is_unsound_or_in_another_s_place_is_named(run, parts, complaint):
    (path,) = run.glob("results/timing/cells/**/*.json")
    path.write_text(json.dumps(record(**parts)))
    refused(run, f"size=xl.json .*{complaint}")


@pytest.mark.parametrize("missing", ["writeup.md", "figures"])
def test_without_a_whole_writeup_nothing_is_published(run, missing):
    path = run / "reports" / missing
    path.unlink() if path.is_file() else shutil.rmtree(path)
    refused(run, f"no .*{missing} to publish: run snakemake first")


@pytest.mark.parametrize(("lost", "more"), [(1, ""), (3, " and 2 more")])
def test_a_writeup_that_shows_what_is_not_there_is_not_published(run, lost, more):
    links = "".join(f"![A figure](figures/lost/{name}.svg)\n" for name in ("first", "mfu", "step")[:lost])
    (run / "reports/writeup.md").write_text(f"![Told elsewhere](https://example.org/a.svg)\n{links}")
    refused(run, rf"writeup.md shows figures/lost/first.svg{more}, but there is no such figure")


@pytest.mark.parametrize("name", ["NOTES.md", "figures/notes.txt", "tables/timing/notes.txt", "notes/mine.csv", ".git"])
def test_a_snapshot_with_anything_else_in_it_is_left_as_it_is(run, name):
    added = published(run) / name
    added.parent.mkdir(exist_ok=True)
    added.write_text("mine")
    refused(run, f"h200 holds {name.split('/mine')[0]}, which does not belong to a snapshot")
    assert added.read_text() == "mine"


@pytest.mark.parametrize("place", [".", "/", "results", "reports/writeup.md", "reports/writeup.md/h200"])
def test_a_place_that_can_hold_no_snapshot_is_left_alone(run, place):
    refused(run, r"exists and is not a snapshot|cannot publish into", place)


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("step", ["shutil.copyfile", "tarfile.TarFile.add", "pathlib.Path.mkdir", "snapshot"])
def test_a_full_disk_leaves_things_as_they_were(run, monkeypatch, step, is_there):
    if is_there:
        published(run)
    rename = Path.rename
    # Or it is full when what was put together takes its place.
    monkeypatch.setattr(Path, "rename", lambda path, to: full_disk() if path.name == step else rename(path, to))
    if "." in step:
        monkeypatch.setattr(step, full_disk)
    refused(run, r"cannot publish into .*h200: .*No space left on device")
    assert not list(run.glob(".h200*"))


@pytest.mark.parametrize(
    "linked", [f"{CELLS}/precision=bf16/size=xl.json", f"{CELLS}/precision=bf16", CELLS, "results/timing", *FIGURES]
)
def test_what_is_linked_is_published_as_what_it_links_to(run, linked):
    plain = published(run, "plain")
    (run / linked).rename(run / "elsewhere")
    (run / linked).symlink_to(run / "elsewhere")
    folder = published(run)
    assert contents(folder) == PUBLISHED
    assert all((folder / name).read_bytes() == (plain / name).read_bytes() for name in PUBLISHED)
    assert not any(path.is_symlink() for path in folder.rglob("*"))
