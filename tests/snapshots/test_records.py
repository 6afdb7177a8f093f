import json
import tarfile
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.registry import stages
from pipeline.results import load
from pipeline.snapshots.records import ARCHIVE, load_records

ROOT = Path(__file__).parents[2]
PUBLISHED = sorted([*ROOT.glob(f"reports/*/{ARCHIVE}"), *ROOT.glob(f"docs/*/{ARCHIVE}")])


def archived(folder):
    """Return the records of a snapshot's archive as they were left."""
    with tarfile.open(folder / ARCHIVE) as archive:
        files = [archive.extractfile(member) for member in archive if member.name.endswith(".json")]
        return [json.load(file) for file in files]


@pytest.mark.parametrize("archive", PUBLISHED, ids=lambda archive: archive.parent.name)
def test_every_published_record_is_read(archive):
    left = archived(archive.parent)
    read = load_records(archive.parent, stages())
    assert [(record["stage"], record["cell"]) for record in read] == [(each["stage"], each["cell"]) for each in left]
    of_measured = [(record, each) for record, each in zip(read, left, strict=True) if each["stage"] != "accounting"]
    assert all(len(record["rows"]) == len(each["rows"]) for record, each in of_measured)


def test_records_of_earlier_versions_have_the_defaults_of_later_axes():
    rows = load("flash", ROOT / "docs/serial-h200")
    assert set(rows["query_heads_per_kv_head"]) == {1}


def test_a_folder_without_records_says_what_it_lacks_and_one_stage_s_folder_where_to_point(tmp_path):
    for place, words in (
        (tmp_path, "holds no records"),
        (tmp_path / "gone", "there is no"),
        (tmp_path / "flash", "one above"),
    ):
        if place.name == "flash":
            (place / "cells").mkdir(parents=True)
        with pytest.raises(UserError, match=words):
            load_records(place, stages())
