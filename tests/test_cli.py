import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import cli
from pipeline.measure_command import _row_lines
from pipeline.worker import client

from . import records

CONTRACT = {*records.record(), "host"}
ADAPTERS = Path(__file__).parent / "subjects/outside/adapters.py"
# One thread, because other tests run at the same time.
MEASURE = ("measure", "timing", "size=tiny", "context_length=16")
MEASURE += ("--set=threads=1", "--set=max_steps=10", "--set=compiled=false")
CALCULATE = ("measure", "accounting", "question=fsdp")  # formulas only, for tests that work with any cell

pytestmark = pytest.mark.usefixtures("worker")


def pipeline(*words, before="", **options):
    start = f"{before}\nimport runpy; runpy.run_module('pipeline', run_name='__main__', alter_sys=True)"
    command = [sys.executable, "-c", start, *map(str, words)]
    return subprocess.run(command, **{"capture_output": True, "text": True, "timeout": 120, **options})


def with_streams(streams, *words):
    """Run a command with its standard streams redirected by a shell; return the exit code."""
    command = shlex.join([sys.executable, "-m", "pipeline", *map(str, words)])
    return subprocess.run(["sh", "-c", f"{command} {streams}"], timeout=120).returncode


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("measure timings", "unknown stage 'timings': must be one of ceilings, health, timing, "),
        ("measure timing", "--out must be given: the path of the record, as in --out cell.json"),
        ("measure timing sizes=xl --out cell.json", "timing cell: unknown key 'sizes'"),
        ("measure timing --set steps=-3 --out cell.json", "timing settings: steps must be at least 5, got -3"),
        ("measure timing --gpus -1 --out cell.json", "--gpus must be at least 0, got -1"),
        ("measure timing --out=", "--out must be a file that ends in .json, got ''"),
        ("measure timing --out /proc/x/y.json", "cannot write /proc/x/y.json: No such file or directory"),
        ("measure timing --out cell.json --files f", "--files must be left out, because timing keeps no files"),
        ("measure memory --out cell.json --files {tmp}", "--files must not be a folder that holds the record"),
        ("measure flash --subjects {{ --out cell.json", "--subjects: not valid YAML: line 1"),
        ("measure flash --subjects gone.py --out cell.json", "--subjects: there is no file"),
        (f"measure timing --subjects {ADAPTERS} --out cell.json", "--subjects must have kind model for timing, got "),
        ("measure accounting --out cell.json", "cannot lock /nowhere/locks: No such file or directory; "),
        ("tabulate rows nowhere.json --out table.csv", "cannot read nowhere.json: No such file or directory"),
        ("pages nowhere.json --out {tmp}", "cannot read nowhere.json"),
        ("publish {tmp}/snapshot", "to publish: run snakemake first"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, words, complaint):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIPELINE_WORKER", "off")
    monkeypatch.setenv("PIPELINE_LOCKS", "/nowhere/locks")
    with pytest.raises(SystemExit) as ended:
        cli.main(words.format(tmp=tmp_path).split())
    message = capsys.readouterr().err
    assert ended.value.code == 2
    assert complaint in message
    assert message.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_bad_cells_full_disks_and_deleted_folders_fail_before_the_worker(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "hand_over", lambda *_: pytest.fail("a worker was asked"))
    for words in ("measure timings", "measure timing --set steps=-3"):
        with pytest.raises(SystemExit, match="2"):
            cli.main([*words.split(), "--out", "cell.json"])
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))"
    ended = pipeline(*MEASURE, "--out", "cell.json", before=limited, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (3, "pipeline: cannot write cell.json: File too large\n")
    assert not list(tmp_path.iterdir())
    deleted = "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')"
    ended = pipeline(*MEASURE, "--out", tmp_path / "cell.json", before=deleted, cwd=tmp_path)
    message = "pipeline: the working directory has been deleted: change to one that exists\n"
    assert (ended.returncode, ended.stderr) == (2, message)


def test_a_record_is_kept_if_printing_fails_and_its_command_keeps_force(tmp_path):
    words = (*CALCULATE, "--force", "--out", tmp_path / "cell.json")
    for streams in (">/dev/full", "<&- >&- 2>&-"):
        assert with_streams(streams, *words) == 0
        assert "--force" in json.loads((tmp_path / "cell.json").read_text())["command"].split()
        (tmp_path / "cell.json").unlink()


def test_files_are_kept_beside_their_record_and_no_other_folder_is_touched(tmp_path):
    (tmp_path / "cell").mkdir()
    (tmp_path / "cell/thesis").write_text("the only copy")
    small = ("size=tiny", "context_length=16", "--set=vocab_size=100", "--set=threads=1", "--set=budget_s=1")
    for _ in range(2):  # the second run finds the files of the first
        ended = pipeline("measure", "memory", *small, "--out", tmp_path / "cell.json")
        assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "cell/thesis").exists()
    assert (tmp_path / "cell.files/snapshot.pickle").exists()
    words = shlex.split(json.loads((tmp_path / "cell.json").read_text())["command"])
    assert words[-2:] == ["--files", str(tmp_path / "cell.files")]


def test_a_cell_too_large_for_this_machine_is_refused_in_one_line_at_once(tmp_path):
    # On a CPU every rank has its own buffer; on a machine with GPUs, gloo's buffers are on the host too.
    words = ("measure", "collectives", "backend=gloo", "world_size=9999", "--set=max_bytes=1000000000000")
    ended = pipeline(*words, "--out", tmp_path / "cell.json")
    assert ended.returncode == 0, ended.stderr
    (line,) = ended.stdout.splitlines()
    assert line.startswith("status=skipped reason=needs at least 9999.0 GB of memory, this machine has ")
    record = json.loads((tmp_path / "cell.json").read_text())
    assert {row["status"] for row in record["rows"]} == {"skipped"}
    assert "--force" not in record["command"]


def test_a_command_escapes_what_an_ascii_terminal_cannot_show():
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = pipeline("account", env={**os.environ, **ascii_only}, text=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert b"\\xd7" in ended.stdout


@pytest.mark.parametrize("during", ["import", "run"])
def test_an_interrupt_ends_a_command_by_that_signal_without_a_traceback(during):
    raising = "def interrupted(*_): raise KeyboardInterrupt\n"
    if during == "run":
        raising += "from pipeline import cli\ncli.run = interrupted"
    else:
        raising += "import importlib.abc, sys\nfinder = importlib.abc.MetaPathFinder()\n"
        raising += "finder.find_spec = lambda name, *_: interrupted() if name == 'pipeline.cli' else None\n"
        raising += "sys.meta_path.insert(0, finder)"
    ended = pipeline("doctor", before=raising)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


def test_a_records_command_repeats_its_cell_with_and_without_the_worker(tmp_path, monkeypatch):
    ended = pipeline(*MEASURE, "--out", tmp_path / "cell.json")
    assert ended.returncode == 0, ended.stderr
    first = json.loads((tmp_path / "cell.json").read_text())
    assert set(first) == CONTRACT
    assert all(len(row["samples_ms"]) >= 10 for row in first["rows"])
    assert ended.stdout.startswith("mode=eager phase=forward clock=host status=")
    assert f"median_ms={statistics.median(first['rows'][0]['samples_ms']):.4g}\n" in ended.stdout

    monkeypatch.setenv("PIPELINE_WORKER", "off")
    assert with_streams("<&- >/dev/full 2>&-", *shlex.split(first["command"])[3:]) == 0
    again = json.loads((tmp_path / "cell.json").read_text())
    assert (first["process"], again["process"]) == ("worker", "ordinary")
    for part in ("cell", "settings", "machine", "code", "command"):
        assert again[part] == first[part]
    assert [row["phase"] for row in again["rows"]] == [row["phase"] for row in first["rows"]]


TIMED = {"impl": "eager", "phase": "forward", "status": "ok", "median_ms": 1.23456}
SKIPPED = {"impl": "triton", "phase": "forward", "status": "skipped", "reason": "needs a CUDA GPU"}
FLEX = SKIPPED | {"impl": "flex"}
OFF = SKIPPED | {"impl": "mine", "status": "wrong", "reason": "output is off"}
MEASURED = "impl=eager phase=forward status=ok median_ms=1.235"
NO_GPU = "status=skipped reason=needs a CUDA GPU"
WRONG = "status=wrong reason=output is off"


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        ([SKIPPED, TIMED, FLEX, OFF], [MEASURED, f"rows=2 phase=forward {NO_GPU}", f"impl=mine phase=forward {WRONG}"]),
        ([TIMED, OFF, OFF | {"phase": "backward"}], [MEASURED, f"rows=2 impl=mine {WRONG}"]),
        ([SKIPPED, FLEX], [NO_GPU]),
        ([SKIPPED], [NO_GPU]),
    ],
)
def test_a_cell_prints_a_line_per_row_with_values_and_one_per_reason(rows, lines):
    assert list(_row_lines("flash", rows)) == lines
