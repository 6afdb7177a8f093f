import hashlib
import re

import pytest

from pipeline.report.html.vega import library

FOLDER = library.Path(library.__file__).parent
LISTED = re.findall(r"\| `([\w.-]+)` \| ([\w-]+) \| ([\d.]+) \| `(\w{64})` \|", (FOLDER / "README.md").read_text())


def test_every_script_is_listed():
    assert (
        [name for name, *_ in LISTED]
        == list(library.SCRIPTS)
        == sorted((path.name for path in FOLDER.glob("*.js")), key=library.SCRIPTS.index)
    )


@pytest.mark.parametrize(("name", "package", "version", "digest"), LISTED)
def test_a_script_is_the_one_that_is_listed_with_its_licence(name, package, version, digest):
    assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == digest
    assert "Redistribution and use" in (FOLDER / f"{package}.LICENSE").read_text()
