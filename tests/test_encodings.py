"""Text is printed as far as the terminal can, whatever the locale; that files are UTF-8 is seen by ruff."""

import os
import subprocess
import sys

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_a_command_prints_what_an_ascii_terminal_cannot_show():
    command = [sys.executable, "-m", "pipeline", "account"]
    done = subprocess.run(command, env={**os.environ, **ASCII}, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\xd7" in done.stdout
