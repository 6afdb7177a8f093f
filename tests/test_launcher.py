import pytest

from pipeline.launcher import key_value_options, with_targets_last

OPTIONS = {"--resources", "--res", "--config", "-C"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--cores 1 --resources gpu=8 reports/writeup.md", "--cores 1 --resources gpu=8 -- reports/writeup.md"),
        ("--resources gpu=8 a.csv b.csv --cores 1", "--resources gpu=8 --cores 1 -- a.csv b.csv"),
        ("--resources gpu=8 mem_mb=5 -n", "--resources gpu=8 mem_mb=5 -n"),
        ("results/timing/bf16.csv", "results/timing/bf16.csv"),
        ("--config scale=smoke -- a.csv", "--config scale=smoke -- a.csv"),
        (
            "--config scale=smoke results/timing/cells/precision=bf16/size=xl.json",
            "--config scale=smoke -- results/timing/cells/precision=bf16/size=xl.json",
        ),
    ],
)
def test_targets_behind_key_value_options_come_last(words, expected):
    assert with_targets_last(words.split(), OPTIONS) == expected.split()


def test_snakemakes_own_parser_names_the_options():
    assert key_value_options() >= OPTIONS
