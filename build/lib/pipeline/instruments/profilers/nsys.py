"""Nsight Systems: capture a program, and export it for `nsys_export` to read."""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

# No sampling of the host's stacks and no context switches: they cost time, and need rights that containers lack.
_OPTIONS = ("--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true")
# The program says when: what lies before cudaProfilerStart and after cudaProfilerStop is not recorded.
_BETWEEN_START_AND_STOP = ("--capture-range=cudaProfilerApi", "--capture-range-end=stop")


class CaptureFailed(Exception):
    """A capture that could not be made or read; its message is one line that says why."""


def capture(command: Sequence[str], report: Path) -> None:
    """Run a program under nsys and leave its report, an .nsys-rep, of what it does between cudaProfilerStart and Stop.

    Raises CaptureFailed where nsys is not there, the program fails, or nsys leaves no report: then with the libraries
    that its importer lacks, where that is why.
    """
    _profile([*_OPTIONS, *_BETWEEN_START_AND_STOP], command, report)


def obstacle() -> str:
    """Say in one line what keeps nsys from making captures here, as far as that shows without making one; else "".

    It is not there, or its importer lacks libraries.
    """
    nsys = shutil.which("nsys")
    if nsys is None:
        return "nsys not found"
    missing = libraries_lacking_to_import(Path(nsys))
    return f"nsys cannot import its captures without {', '.join(missing)}" if missing else ""


def check() -> str:
    """Make a capture of nothing, as the only proof that captures work here; return nsys's version.

    Raises CaptureFailed with the reason.
    """
    with tempfile.TemporaryDirectory() as folder:
        _profile(_OPTIONS, ["true"], Path(folder) / "nothing.nsys-rep")
    return _run(["--version"]).stdout.strip()


def export(report: Path, database: Path) -> None:
    """Write a report's events into an SQLite database; raises CaptureFailed where it is damaged."""
    done = _run(["export", "--type=sqlite", "--force-overwrite=true", f"--output={database}", str(report)])
    if done.returncode != 0 or not database.exists():
        raise CaptureFailed(f"nsys cannot export {report.name}: {_last_line(done)}")


def libraries_lacking_to_import(nsys: Path) -> list[str]:
    """List the shared libraries that nsys's importer does not find; it is installed in a folder beside nsys's own.

    Without them a capture ends as a .qdstrm file that nothing can read. A wrapper script has no importer beside it, and
    may well set the libraries' path, so that nothing is missed there.
    """
    importers = nsys.resolve().parent.parent.glob("*/QdstrmImporter")
    listings = [
        subprocess.run(["ldd", str(path)], capture_output=True, encoding="utf-8", check=False) for path in importers
    ]
    lines = [line for listing in listings for line in listing.stdout.splitlines()]
    return sorted({line.split()[0] for line in lines if line.endswith("=> not found")})


def _profile(options: Sequence[str], command: Sequence[str], report: Path) -> None:
    report.unlink(missing_ok=True)
    # nsys adds the suffix itself.
    done = _run(["profile", *options, f"--output={report.with_suffix('')}", *command])
    if done.returncode != 0:
        raise CaptureFailed(f"the program under nsys ended with exit code {done.returncode}: {_last_line(done)}")
    if not report.exists():  # nsys ends well also when only its importer failed
        raise CaptureFailed(obstacle() or f"nsys left no report: {_importer_line(done)}")


def _run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    if shutil.which("nsys") is None:
        raise CaptureFailed("nsys not found")
    return subprocess.run(["nsys", *arguments], capture_output=True, encoding="utf-8", check=False)


def _importer_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stdout + done.stderr).splitlines()
    return next((line.strip() for line in lines if "Importer error" in line), _last_line(done))


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return lines[-1] if lines else "it says nothing"
