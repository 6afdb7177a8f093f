import json
import tarfile
from pathlib import Path

import pytest

from pipeline.compare.runs import load_run
from pipeline.registry import stages
from pipeline.report.publish import ARCHIVE
from pipeline.results import load

ROOT = Path(__file__).parents[2]
VERSION_1 = ROOT / "docs/serial-h200"
PUBLISHED = sorted([*ROOT.glob(f"reports/*/{ARCHIVE}"), *ROOT.glob(f"docs/*/{ARCHIVE}")])


def archived(folder):
    """Return the records of a snapshot's archive as they were left."""
    with tarfile.open(folder / ARCHIVE) as archive:
        files = [archive.extractfile(member) for member in archive if member.name.endswith(".json")]
        return [json.load(file) for file in files]


@pytest.mark.parametrize("archive", PUBLISHED, ids=lambda archive: archive.parent.name)
def test_every_published_record_is_read_whatever_version_left_it(archive):
    left = archived(archive.parent)
    read = load_run(archive.parent, stages())
    assert [(record["stage"], record["cell"]) for record in read] == [(each["stage"], each["cell"]) for each in left]
    assert [len(record["rows"]) for record in read] == [len(each["rows"]) for each in left]


def test_rows_of_version_1_have_the_phases_of_today_and_the_defaults_of_later_axes():
    flash = [record for record in archived(VERSION_1) if record["stage"] == "flash"]
    assert {record["schema_version"] for record in flash} == {1}
    rows = load("flash", VERSION_1)
    assert list(rows["phase"]) == [row["pass"] for record in flash for row in record["rows"]]
    assert set(rows["query_heads_per_kv_head"]) == {1}
