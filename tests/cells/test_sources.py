import subprocess
import sys

import pytest

from pipeline.cells import sources

PACKAGE = {
    "__init__.py": "",
    "measure.py": "import os\nfrom pipeline.subject import model\n\ndef measure():\n    return model.f(1)\n",
    "subject/__init__.py": "",
    "subject/model.py": '"""About it."""\n\ndef f(x):\n    """Add."""\n    return x + 1\n\nclass C:\n    """Hold."""\n',
    "section.py": "TITLE = 'a'\n",
}


MODEL = "subject/model.py"


@pytest.fixture(autouse=True)
def package(write):
    write(PACKAGE)


def digest_of_measure():
    return sources.code_digest(sources.reached_modules("pipeline.measure"))


@pytest.mark.parametrize(
    ("path", "old", "new", "counts"),
    [
        *((MODEL, "x + 1", other, True) for other in ("x + 2", "x * 1", "x < 1")),
        (MODEL, "return x + 1", "return x + 1  # one", False),
        *((MODEL, f'"""{old}."""', f'"""{old} one."""', False) for old in ("Add", "About it", "Hold")),
        (MODEL, "return x + 1", "return (x\n            + 1)", False),
        ("section.py", "'a'", "'b'", False),  # not reached
    ],
)
def test_the_digest_ignores_comments_docstrings_layout_and_unreached_code(write, path, old, new, counts):
    before = digest_of_measure()
    assert old in PACKAGE[path]
    write({path: PACKAGE[path].replace(old, new)})
    assert (digest_of_measure() != before) == counts


@pytest.mark.parametrize("around", ["__init__.py", "subject/__init__.py"])
@pytest.mark.parametrize("how", ["import pipeline.subject.model as model", "from pipeline.subject import model"])
def test_parent_packages_of_a_reached_module_count(write, how, around):
    write({"measure.py": f"{how}\n"})
    before = digest_of_measure()
    write({around: "import torch\n"})
    assert digest_of_measure() != before


def test_circular_and_late_imports_are_reached_and_missing_modules_lack_a_digest(
    write,
):
    section = "from pipeline import measure\n\ndef late():\n    from pipeline import other\n"
    write({"section.py": section, "other.py": "from pipeline import section\n"})
    reached = (f"pipeline.{name}" for name in ("section", "other", "measure", "subject", "subject.model"))
    assert sources.reached_modules("pipeline.section") == {"pipeline", *reached}
    assert sources.module_digest("pipeline")
    assert sources.module_digest("pipeline.gone") is sources.module_digest("pipeline.subject.model.f") is None


def test_data_files_are_those_that_a_module_names_or_that_share_its_name(write):
    write(dict.fromkeys(("page.css", "section.md", "sections.md"), ""))
    write({"section.py": "STYLE, NONE, TEXT = 'page.css', 'missing.css', 'words'\n"})
    assert [path.name for path in sources.data_files(["pipeline.section"])] == ["page.css", "section.md"]


def test_taking_a_digest_imports_nothing():
    code = "import sys; from pipeline.cells import sources; sources.module_digest('pipeline.stages.timing.measure')"
    assert subprocess.run([sys.executable, "-c", f"{code}; sys.exit('torch' in sys.modules)"]).returncode == 0
