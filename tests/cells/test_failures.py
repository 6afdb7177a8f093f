from pathlib import Path

import pytest

from pipeline.cells.failures import (
    LONGEST,
    Failure,
    Failures,
    how_it_ended,
    read_failures,
    told_by_scheduler,
    write_failures,
)
from pipeline.errors import UserError

CELL = Failure(
    "timing size=xl", "timing", ("results/timing/cells/size=xl.json",), "logs/timing/size=xl.log", "KeyError"
)
SECTION = Failure("section flash", "", ("reports/sections/flash.md", "reports/figures/flash"), "logs/flash.log", "no")
FAILURES = Failures((CELL, SECTION), ("results/timing/bf16.csv", "reports/writeup.md"))


def test_what_failed_is_read_back_as_written(tmp_path):
    write_failures(tmp_path / "failures.json", FAILURES)
    assert read_failures(tmp_path / "failures.json") == FAILURES


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, r"^cannot read \S+/failures\.json: No such file or directory$"),
        ("{", "is no list of failures"),
        ("[]", "is no list of failures"),
        ('{"failed": [{}], "unmade": []}', "is no list of failures"),
        ('{"failed": [{"what": "a cell"}], "unmade": []}', "is no list of failures"),
    ],
)
def test_another_file_is_no_list_of_failures(tmp_path, content, complaint):
    path = tmp_path / "failures.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=complaint):
        read_failures(path)


def test_nothing_that_failed_is_counted_on():
    paths = ["reports/figures/flash", "reports/figures/timing"]
    assert FAILURES.without(paths) == ["reports/figures/timing"]
    assert FAILURES.without({Path("results/timing/cells/size=xl.json"): "the cell"}) == []
    assert Failures().without(paths) == paths


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (b"Traceback (most recent call last):\n  File\nKeyError: 'a bug'\n\n", "KeyError: 'a bug'"),
        (b"torch.AcceleratorError: CUDA error\nmore of it\n[W] destroyed late\n", "torch.AcceleratorError: CUDA error"),
        (b"pipeline: cannot write cell.json: File too large\n", "pipeline: cannot write cell.json: File too large"),
        (b"", "nothing in its log"),
        (b"\x1b[31mred\xff\n", "\\x1b[31mred\ufffd"),
        (b"x" * 100_000 + b"\n", "x" * (LONGEST - 1) + "\u2026"),
    ],
)
def test_a_failure_is_told_by_how_its_log_ends(tmp_path, log, said):
    (tmp_path / "cell.log").write_bytes(log)
    assert how_it_ended(tmp_path / "cell.log") == said


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            "SLURM-job '7' failed, SLURM status is: 'TIMEOUT'. Detailed failure reason unavailable.",
            "Slurm job 7 ended as TIMEOUT",
        ),
        (
            "SLURM-job '8' failed due to a node failure, SLURM status is: 'NODE_FAIL'. Failed nodes will be excluded.",
            "Slurm job 8 ended as NODE_FAIL",
        ),
        (
            "SLURM sbatch failed. The error message was 'no such partition'.\n    sbatch call:\n",
            "SLURM sbatch failed. The error message was 'no such partition'.",
        ),
    ],
)
def test_of_a_scheduler_s_message_what_happened_is_kept(message, told):
    assert told_by_scheduler(message) == told


def test_what_a_scheduler_says_comes_before_the_log(tmp_path):
    log = tmp_path / "cell.log"
    assert how_it_ended(log, "Slurm job 7 ended as FAILED").startswith("Slurm job 7 ended as FAILED: cannot read")
    log.write_text("ended by SIGKILL\n")
    assert how_it_ended(log, "Slurm job 7 ended as FAILED") == "Slurm job 7 ended as FAILED: ended by SIGKILL"
    log.write_text("")
    assert how_it_ended(log, "Slurm job 7 ended as TIMEOUT") == "Slurm job 7 ended as TIMEOUT"


def test_a_log_that_is_not_there_is_told(tmp_path):
    assert how_it_ended(tmp_path / "cell.log") == "cannot read its log: No such file or directory"
