import shutil
import tarfile

import pytest

from pipeline.errors import UserError
from pipeline.report.publish import ARCHIVE, publish

FILES = {
    "reports/writeup.md": "# Write-up",
    "reports/figures/timing/step.svg": "<svg/>",
    "reports/figures/timing/.snakemake_timestamp": "",
    "results/timing/bf16.csv": "a,b",
    "results/timing/cells/precision=bf16/size=xl.json": "{}",
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


def test_a_snapshot_holds_writeup_figures_tables_and_records(run):
    publish(run, run / "reports/h200")
    assert contents(run / "reports/h200") == [
        "figures/timing/step.svg",
        ARCHIVE,
        "tables/timing/bf16.csv",
        "writeup.md",
    ]
    with tarfile.open(run / "reports/h200" / ARCHIVE) as archive:
        assert archive.getnames() == ["timing/cells/precision=bf16/size=xl.json"]


def test_publishing_twice_gives_the_same_bytes(run):
    publish(run, run / "a")
    publish(run, run / "b")
    assert (run / "a" / ARCHIVE).read_bytes() == (run / "b" / ARCHIVE).read_bytes()


def test_a_new_snapshot_leaves_nothing_of_the_old(run):
    publish(run, run / "h200")
    (run / "results/timing/bf16.csv").rename(run / "results/timing/fp32.csv")
    publish(run, run / "h200")
    assert "tables/timing/bf16.csv" not in contents(run / "h200")


def test_a_folder_that_is_no_snapshot_is_left_alone(run):
    (run / "precious").mkdir()
    (run / "precious/notes.txt").write_text("mine")
    with pytest.raises(UserError, match="precious exists and is no snapshot"):
        publish(run, run / "precious")
    assert contents(run / "precious") == ["notes.txt"]
    assert not (run / ".precious.new").exists()


def test_without_a_writeup_there_is_nothing_to_publish(tmp_path):
    with pytest.raises(UserError, match="to publish: run snakemake first"):
        publish(tmp_path, tmp_path / "h200")


def test_a_writeup_without_its_figures_is_not_published_by_halves(run):
    shutil.rmtree(run / "reports/figures")
    with pytest.raises(UserError, match=r"no .*figures to publish: run snakemake first"):
        publish(run, run / "h200")
    assert not (run / "h200").exists()
