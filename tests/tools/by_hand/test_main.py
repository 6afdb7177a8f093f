import json
import subprocess
import sys

import pytest

from tools.by_hand import __main__ as main
from tools.by_hand.step import TIMED_STEPS

SMALL = ["--size", "tiny", "--context", "16", "--batch", "1"]


def test_a_change_that_fails_and_one_that_needs_a_gpu_do_not_stop_the_others(monkeypatch, capsys, tmp_path):
    run = subprocess.run

    def fail_one(words, **options):
        return run([sys.executable, "-c", "raise SystemExit(3)"] if "sdpa" in words else words, **options)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(main.subprocess, "run", fail_one)
    out = tmp_path / "found.json"
    asked = ["--changes", "fused", "sdpa", "flash", "eager", "--out", str(out)]
    main.main([*SMALL, *asked])
    found = json.loads(out.read_text())["turns"]
    assert [row["change"] for row in found] == ["eager", "fused", "sdpa", "flash", "eager"]
    assert [row["status"] for row in found] == ["ok", "ok", "failed", "skipped", "ok"]
    assert [len(row["samples_ms"]) for row in found if row["status"] == "ok"] == [TIMED_STEPS] * 3
    printed = capsys.readouterr().out
    assert "sdpa @16: failed: its process ended with exit code 3 and no record" in printed
    assert "flash @16: skipped: flash: needs a CUDA GPU" in printed


def test_eager_comes_first_and_last_and_by_default_two_changes_run_at_twice_the_context():
    asked = [("fused", None), ("sdpa", None), ("eager", None)]
    assert [change for change, _ in main.turns(asked, 1024)] == ["eager", "fused", "sdpa", "eager"]
    found = main.turns(None, 1024)
    assert found[0] == found[-1] == ("eager", 1024)
    assert found[-3:-1] == [("checkpointing", 2048), ("flash", 2048)]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--size", "huge"], "invalid choice: 'huge'"),
        ([*SMALL, "--changes", "faster"], "must be eager or, joined by +, some of fused, flash"),
        ([*SMALL, "--changes", "flash+sdpa"], "these exclude each other: 'flash+sdpa'"),
        ([*SMALL, "--batch", "0"], "must be a whole number from 1, got '0'"),
        ([*SMALL, "--beside", "nowhere"], "there is no nowhere/tables/levers/tiny.csv"),
    ],
)
def test_bad_input_is_refused_in_one_line(capsys, words, why):
    with pytest.raises(SystemExit) as ended:
        main.main(words)
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert why in error
    assert error.count("\n") == 1
