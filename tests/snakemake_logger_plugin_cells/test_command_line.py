import sys

import pytest
from snakemake.cli import get_argument_parser

from snakemake_logger_plugin_cells.command_line import OPTIONS, check_configfiles, put_targets_last, with_targets_last

THE_COMMAND = "--cores 1 --resources gpu=8 reports/writeup.md"
RECORD = "results/timing/cells/precision=bf16/size=xl.json"


UNDERSTOOD = (  # by Snakemake itself
    *("", "results/timing/bf16.csv", "--resources gpu=8 mem_mb=5 -n", "--config=scale=smoke a.csv"),
    *("reports/writeup.md --cores 1 --resources gpu=8", "--cores 1 --resources gpu=8 -- reports/writeup.md"),
    "--mode remote --set-threads base64//cnVsZT0x --target-jobs measure_timing:size=xl",
)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (THE_COMMAND, "--cores 1 --resources gpu=8 -- reports/writeup.md"),
        (f"{THE_COMMAND} --config a=b", "--cores 1 --resources gpu=8 --config a=b -- reports/writeup.md"),
        ("--res gpu=8 a.csv b.csv --cores 1", "--res gpu=8 --cores 1 -- a.csv b.csv"),
        ("--resources gpu=8 a.csv -- b.csv", "--resources gpu=8 -- a.csv b.csv"),
        (f"-C scale=smoke {RECORD}", f"-C scale=smoke -- {RECORD}"),
        *((words, words) for words in UNDERSTOOD),
    ],
)
def test_targets_after_name_value_options_move_to_the_end(words, expected):
    assert with_targets_last(words.split()) == expected.split()


def test_the_options_take_name_value_words_in_snakemakes_own_parser():
    found = {name: action for action in get_argument_parser()._actions for name in action.option_strings}
    for name in OPTIONS:
        assert found[name].nargs in ("+", "*")
        assert "=" in found[name].metavar


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("scale: [auto\n", "{}: not valid YAML: line 2, column 1: "),
        ("smoke\n", "{}: must have the keys scale, "),
        (None, "cannot read {}: No such file"),
        ("scale: a\nscale: b\n", None),  # Snakemake accepts it, another workflow may
        ("scale: smoke\n", None),
    ],
)
@pytest.mark.parametrize("words", ["--configfile {good} {bad} -n", "--configfiles={bad}"])
def test_a_configuration_file_that_cannot_be_read_is_named_in_one_line(tmp_path, capsys, text, complaint, words):
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("measure: false\n")
    if text is not None:
        bad.write_text(text)
    given = words.format(good=good, bad=bad).split()
    if complaint is None:
        check_configfiles(given)
    else:
        with pytest.raises(SystemExit):
            check_configfiles(given)
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"snakemake: {complaint.format(bad)}")


@pytest.mark.parametrize(
    ("program", "is_snakemakes"),
    [
        ("/usr/local/bin/snakemake", True),
        ("/usr/lib/python3.12/site-packages/snakemake/__main__.py", True),
        *((other, False) for other in ("/home/someone/snakemake/train.py", "/usr/local/bin/pytest", "-c", "")),
    ],
)
def test_only_snakemakes_own_command_line_is_changed(monkeypatch, program, is_snakemakes):
    monkeypatch.setattr(sys, "argv", [program, *THE_COMMAND.split()])
    put_targets_last()
    assert sys.argv[1:] == (with_targets_last if is_snakemakes else list)(THE_COMMAND.split())
