import json
import tarfile
from pathlib import Path

import pytest

from pipeline.registry import stages
from pipeline.results import load
from pipeline.snapshots.records import ARCHIVE, load_records

from ..complaints import complaint

ROOT = Path(__file__).parents[2]
PUBLISHED = sorted([*ROOT.glob(f"reports/*/{ARCHIVE}"), *ROOT.glob(f"docs/*/{ARCHIVE}")])


@pytest.mark.parametrize("archive", PUBLISHED, ids=lambda archive: archive.parent.name)
def test_every_published_record_is_read(archive):
    with tarfile.open(archive) as file:
        archived = [json.load(file.extractfile(member)) for member in file if member.name.endswith(".json")]
    loaded = load_records(archive.parent, stages())
    assert [(record["stage"], record["cell"]) for record in loaded] == [
        (each["stage"], each["cell"]) for each in archived
    ]
    of_measured = [
        (record, each) for record, each in zip(loaded, archived, strict=True) if each["stage"] != "accounting"
    ]
    assert all(len(record["rows"]) == len(each["rows"]) for record, each in of_measured)


def test_records_of_earlier_versions_have_the_defaults_of_later_axes():
    rows = load("flash", ROOT / "docs/serial-h200")
    assert set(rows["query_heads_per_kv_head"]) == {1}


def test_a_folder_without_records_is_an_error_that_names_the_right_one_if_known(tmp_path):
    assert "holds no records" in complaint(load_records, tmp_path, stages())
    assert complaint(load_records, tmp_path / "gone", stages()) == f"there is no {tmp_path}/gone"
    (tmp_path / "flash/cells").mkdir(parents=True)
    assert complaint(load_records, tmp_path / "flash", stages()).endswith("name its parent")
