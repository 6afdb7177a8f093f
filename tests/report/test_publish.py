import errno
import json
import re
import shutil
import tarfile
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.registry import stages
from pipeline.report.publish import ARCHIVE, publish

from ..records import record, timed_row

FILES = {
    "reports/writeup.md": "# Write-up\n\n![A step](figures/timing/step.svg)\n",
    "reports/report.html": "<!doctype html>",
    "reports/summary.json": "{}",
    "reports/figures/timing/step.svg": "<svg/>",
    "reports/figures/timing/.snakemake_timestamp": "",
    "results/timing/bf16.csv": "a,b",
    "results/timing/cells/precision=bf16/size=xl.json": json.dumps(record(cell={"precision": "bf16", "size": "xl"})),
}


@pytest.fixture
def run(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def contents(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def beside(folder):
    return [path.name for path in folder.parent.iterdir() if path.name.startswith(f".{folder.name}")]


def full_disk(*_words, **_named):
    raise OSError(errno.ENOSPC, "No space left on device")


def elsewhere(run, name):
    """Move a file or a folder elsewhere, and leave a link in its place."""
    path = run / name
    path.rename(run / "elsewhere")
    path.parent.joinpath(path.name).symlink_to(run / "elsewhere")


def test_a_snapshot_holds_writeup_figures_tables_and_records(run):
    publish(run, run / "reports/h200", stages())
    assert contents(run / "reports/h200") == [
        "figures/timing/step.svg",
        ARCHIVE,
        "report.html",
        "summary.json",
        "tables/timing/bf16.csv",
        "writeup.md",
    ]
    with tarfile.open(run / "reports/h200" / ARCHIVE) as archive:
        assert archive.getnames() == ["timing/cells/precision=bf16/size=xl.json"]


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({"rows": [timed_row(peak_bytes=-1)]}, "row 1: peak_bytes must be a whole number, at least 0, got -1"),
        (
            {"cell": {"precision": "fp32", "size": "xl"}},
            "holds the record of another cell, timing precision=fp32",
        ),
    ],
)
def test_a_record_that_is_unsound_or_in_another_s_place_is_named_and_nothing_published(run, parts, complaint):
    (path,) = run.glob("results/timing/cells/**/*.json")
    path.write_text(json.dumps(record(**parts)))
    with pytest.raises(UserError, match=f"size=xl.json .*{complaint}"):
        publish(run, run / "h200", stages())
    assert not (run / "h200").exists()


def test_the_page_links_to_the_tables_of_its_snapshot(run):
    page = run / "reports/writeup.md"
    page.write_text(page.read_text() + "\n[bf16](../results/timing/bf16.csv), `results/<stage>/cells.csv`\n")
    html = run / "reports/report.html"
    html.write_text(html.read_text() + "<code>results/&lt;stage&gt;/cells.csv</code>")
    publish(run, run / "h200", stages())
    assert all("results/" not in (run / "h200" / name).read_text() for name in ("writeup.md", "report.html"))
    (link,) = re.findall(r"\[bf16\]\((.*)\)", (run / "h200/writeup.md").read_text())
    assert (run / "h200" / link).is_file()


def test_publishing_twice_gives_the_same_bytes(run):
    publish(run, run / "a", stages())
    publish(run, run / "b", stages())
    assert (run / "a" / ARCHIVE).read_bytes() == (run / "b" / ARCHIVE).read_bytes()


def test_a_new_snapshot_leaves_nothing_of_the_old(run):
    publish(run, run / "h200", stages())
    (run / "results/timing/bf16.csv").rename(run / "results/timing/fp32.csv")
    publish(run, run / "h200", stages())
    assert "tables/timing/bf16.csv" not in contents(run / "h200")


def test_a_folder_that_is_no_snapshot_is_left_alone(run):
    (run / "precious").mkdir()
    (run / "precious/notes.txt").write_text("mine")
    with pytest.raises(UserError, match="precious exists and is not a snapshot"):
        publish(run, run / "precious", stages())
    assert contents(run / "precious") == ["notes.txt"]
    assert not (run / ".precious.new").exists()


def test_without_a_writeup_there_is_nothing_to_publish(tmp_path):
    with pytest.raises(UserError, match="to publish: run snakemake first"):
        publish(tmp_path, tmp_path / "h200", stages())


def test_a_writeup_without_its_figures_is_not_published_by_halves(run):
    shutil.rmtree(run / "reports/figures")
    with pytest.raises(UserError, match=r"no .*figures to publish: run snakemake first"):
        publish(run, run / "h200", stages())
    assert not (run / "h200").exists()


@pytest.mark.parametrize("name", ["NOTES.md", "figures/notes.txt", "tables/timing/notes.txt", "notes/mine.csv", ".git"])
def test_a_snapshot_with_anything_else_in_it_is_left_as_it_is(run, name):
    publish(run, run / "h200", stages())
    added = run / "h200" / name
    added.parent.mkdir(exist_ok=True)
    added.write_text("mine")
    before = contents(run / "h200")
    with pytest.raises(UserError, match=f"h200 holds {name.split('/mine')[0]}, which does not belong to a snapshot"):
        publish(run, run / "h200", stages())
    assert contents(run / "h200") == before
    assert added.read_text() == "mine"
    assert beside(run / "h200") == []


@pytest.mark.parametrize("lost", [[], ["mfu.svg", "step.svg"]])
def test_a_writeup_that_shows_what_is_not_there_is_not_published(run, lost):
    publish(run, run / "h200", stages())
    before = contents(run / "h200")
    links = "".join(f"![A figure](figures/lost/{name})\n" for name in ["first.svg", *lost])
    (run / "reports/writeup.md").write_text(f"![Told elsewhere](https://example.org/a.svg)\n{links}")
    more = f" and {len(lost)} more" if lost else ""
    with pytest.raises(UserError, match=rf"writeup.md shows figures/lost/first.svg{more}, but there is no such figure"):
        publish(run, run / "h200", stages())
    assert contents(run / "h200") == before
    assert beside(run / "h200") == []


@pytest.mark.parametrize("place", [".", "/", "", "reports/writeup.md", "reports/writeup.md/h200"])
def test_a_place_that_can_hold_no_snapshot_is_told_in_one_line(run, monkeypatch, place):
    monkeypatch.chdir(run)
    before = contents(run)
    with pytest.raises(UserError, match=r"exists and is not a snapshot|cannot publish into") as raised:
        publish(Path("."), Path(place), stages())
    assert "\n" not in str(raised.value)
    assert contents(run) == before


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("step", ["shutil.copyfile", "tarfile.TarFile.add", "pathlib.Path.mkdir"])
def test_a_full_disk_leaves_things_as_they_were(run, monkeypatch, step, is_there):
    if is_there:
        publish(run, run / "h200", stages())
    before = contents(run)
    monkeypatch.setattr(step, full_disk)
    with pytest.raises(UserError, match=r"cannot publish into .*h200: .*No space left on device"):
        publish(run, run / "h200", stages())
    assert contents(run) == before
    assert beside(run / "h200") == []


def test_a_snapshot_that_cannot_take_its_place_leaves_the_old_one_there(run, monkeypatch):
    publish(run, run / "h200", stages())
    rename = Path.rename

    def rename_all_but_the_new(path, target):
        if path.name == ".h200.new":
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", rename_all_but_the_new)
    with pytest.raises(UserError, match="Input/output error"):
        publish(run, run / "h200", stages())
    assert ARCHIVE in contents(run / "h200")
    assert beside(run / "h200") == []


@pytest.mark.parametrize("then", ["succeeds", "fails"])
def test_a_run_killed_between_its_renames_costs_no_snapshot(run, monkeypatch, then):
    publish(run, run / "h200", stages())
    before = contents(run / "h200")
    (run / "h200").rename(run / ".h200.old")  # as the run that was killed left it
    if then == "fails":
        monkeypatch.setattr("shutil.copyfile", full_disk)
        with pytest.raises(UserError, match="No space left"):
            publish(run, run / "h200", stages())
    else:
        publish(run, run / "h200", stages())
    assert contents(run / "h200") == before
    assert beside(run / "h200") == []


@pytest.mark.parametrize("linked", ["cells/precision=bf16/size=xl.json", "cells/precision=bf16", "cells", ""])
def test_a_linked_record_is_published_as_what_it_links_to(run, linked):
    publish(run, run / "plain", stages())
    elsewhere(run, f"results/timing/{linked}")
    publish(run, run / "h200", stages())
    assert (run / "h200" / ARCHIVE).read_bytes() == (run / "plain" / ARCHIVE).read_bytes()


@pytest.mark.parametrize("linked", ["step.svg", ""])
def test_a_linked_drawing_is_published_as_a_file(run, linked):
    elsewhere(run, f"reports/figures/timing/{linked}")
    publish(run, run / "h200", stages())
    copied = run / "h200/figures/timing/step.svg"
    assert copied.read_text() == "<svg/>"
    assert not any(path.is_symlink() for path in (copied, *copied.parents))
