"""Text is UTF-8 in files, and printed as far as the terminal can, whatever the locale."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
TEXT_MODE = re.compile("[rwax]t?")


def takes_the_locale_s_encoding(call):
    """Tell whether a call reads or writes text without saying in which encoding."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    given = {keyword.arg for keyword in call.keywords}
    if "encoding" in given:
        return False
    if name in ("read_text", "write_text"):
        return isinstance(call.func, ast.Attribute)
    if name == "open":
        modes = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        return any(map(TEXT_MODE.fullmatch, modes)) or (isinstance(call.func, ast.Name) and len(call.args) == 1)
    return any(keyword.arg == "text" and isinstance(keyword.value, ast.Constant) for keyword in call.keywords)


@pytest.mark.parametrize("folder", ["src", "tools", "workflow"])
def test_every_text_file_is_read_and_written_in_a_named_encoding(folder):
    without = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
        without += [f"{path}:{call.lineno}" for call in calls if takes_the_locale_s_encoding(call)]
    for path in sorted((ROOT / folder).rglob("*.smk")):  # no plain Python
        lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        without += [f"{path}:{n}" for n, line in lines if re.search(r"\.(read|write)_text\((?!.*encoding=)", line)]
    assert without == []


def test_a_command_prints_what_an_ascii_terminal_cannot_show():
    command = [sys.executable, "-m", "pipeline", "account"]
    done = subprocess.run(command, env={**os.environ, **ASCII}, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\xd7" in done.stdout
