import json

import pytest

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

MOST_LINES = 250


def test_the_page_of_a_whole_run_without_a_gpu_can_be_read(project, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    process = project.start("--cores", "all", "reports/writeup.md", "--config", "scale=laptop")
    output, _ = process.communicate(timeout=3600)
    assert process.returncode == 0, output
    page = (project.root / "reports/writeup.md").read_text()
    assert json.loads((project.root / "reports/summary.json").read_text())["scale"] == "laptop"
    assert len(page.splitlines()) <= MOST_LINES
