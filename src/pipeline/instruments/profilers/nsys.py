"""Capture a program with Nsight Systems, and export the report for `nsys_export` to read."""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

# No sampling of CPU stacks and no context switches: both cost time and need privileges that containers lack.
_OPTIONS = ("--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true")
# Record only between the program's calls of cudaProfilerStart and cudaProfilerStop.
_BETWEEN_START_AND_STOP = ("--capture-range=cudaProfilerApi", "--capture-range-end=stop")


class CaptureFailed(Exception):
    """A capture that could not be made or read; its message is one line that says why."""


def capture(command: Sequence[str], report: Path) -> None:
    """Run a program under nsys; write an .nsys-rep report of what it does between cudaProfilerStart and Stop.

    Raises CaptureFailed if nsys is not installed, the program fails, or nsys writes no report. In the last case the
    message names the libraries that nsys's importer lacks, if that is the cause.
    """
    _profile([*_OPTIONS, *_BETWEEN_START_AND_STOP], command, report)


def obstacle() -> str:
    """Say in one line why nsys cannot capture here; "" if nothing is found without trying a capture.

    Either nsys is not installed, or its importer lacks libraries.
    """
    nsys = shutil.which("nsys")
    if nsys is None:
        return "nsys not found"
    missing = libraries_lacking_to_import(Path(nsys))
    return f"nsys cannot import its captures without {', '.join(missing)}" if missing else ""


def check() -> str:
    """Capture a trivial program, which is the only proof that captures work here; return nsys's version.

    Raises CaptureFailed with the reason.
    """
    with tempfile.TemporaryDirectory() as folder:
        _profile(_OPTIONS, ["true"], Path(folder) / "nothing.nsys-rep")
    return _run(["--version"]).stdout.strip()


def export(report: Path, database: Path) -> None:
    """Export a report's events to an SQLite database; raises CaptureFailed if nsys cannot, as with a damaged report."""
    done = _run(["export", "--type=sqlite", "--force-overwrite=true", f"--output={database}", str(report)])
    if done.returncode != 0 or not database.exists():
        raise CaptureFailed(f"nsys cannot export {report.name}: {_last_line(done)}")


def libraries_lacking_to_import(nsys: Path) -> list[str]:
    """List the shared libraries that nsys's importer cannot find; it is installed in a folder next to nsys's own.

    Without them a capture ends as a .qdstrm file that nothing can read. If nsys is a wrapper script, there is no
    importer next to it and the list is empty; the wrapper may well set the library path.
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
    if not report.exists():  # nsys exits with 0 even if its importer failed
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
