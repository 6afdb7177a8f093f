import pandas as pd
import pytest

from pipeline.errors import UserError
from pipeline.report import published


@pytest.mark.parametrize("name", sorted(path.stem for path in published.FOLDER.glob("*.csv")))
def test_every_file_loads_and_names_its_sources(name):
    rows = published.load(name)
    assert len(rows)
    assert rows["write_up"].str.fullmatch(r"write-up \d( \(.+\))?").all()


def test_a_source_is_named_with_its_device():
    names = set(published.load("timing")["write_up"])
    assert {"write-up 0 (H100)", "write-up 1 (device not named)"} <= names


def test_an_unknown_name_is_an_error():
    with pytest.raises(UserError, match=r"nothing\.csv"):
        published.load("nothing")


def test_a_doubt_is_listed_once_a_source():
    rows = pd.DataFrame(
        {
            "write_up": ["write-up 0", "write-up 0", "write-up 1", "write-up 1"],
            "note": ["no unit; near source 001", "no unit", None, "no unit"],
        }
    )
    assert published.doubts_list(rows) == "- write-up 0: no unit; near write-up 1.\n- write-up 1: no unit."
