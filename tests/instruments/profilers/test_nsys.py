import pytest

from pipeline.instruments.profilers import nsys
from pipeline.instruments.profilers.nsys import CaptureFailed

# A stand-in for nsys: runs the program, if any, and writes the output file.
GOOD = """#!/bin/sh
for word; do case "$word" in --output=*) output="${word#--output=}" ;; esac; done
if [ "$1" = profile ]; then
    output="$output.nsys-rep"
    shift
    echo "$@" > "$output.words"
    while [ "${1#--}" != "$1" ]; do shift; done
    echo "$@" > "$output.command"
    "$@" || exit $?
fi
: > "$output"
"""
FAILS = "#!/bin/sh\necho first >&2\necho CUDA out of memory >&2\nexit 3\n"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put an empty folder before the system's own in PATH, and return a function that puts programs there."""
    folder = tmp_path / "root" / "bin"
    folder.mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")

    def put(name, script, folder=folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)

    return put


def test_a_capture_records_between_profiler_start_and_stop_and_writes_a_report(install, tmp_path):
    install("nsys", GOOD)
    assert nsys.obstacle() == ""
    nsys.capture(["true", "--option=7"], tmp_path / "x.nsys-rep")
    assert (tmp_path / "x.nsys-rep").exists()
    assert (tmp_path / "x.nsys-rep.command").read_text() == "true --option=7\n"
    words = (tmp_path / "x.nsys-rep.words").read_text().split()
    assert {"--capture-range=cudaProfilerApi", "--capture-range-end=stop"} <= set(words)
    nsys.export(tmp_path / "x.nsys-rep", tmp_path / "x.sqlite")
    assert (tmp_path / "x.sqlite").exists()


@pytest.mark.parametrize(
    ("programs", "complaint"),
    [
        ({}, "^nsys not found$"),
        ({"nsys": "#!/bin/sh\necho collected\n"}, "left no report: collected"),
        ({"nsys": GOOD, "fails": FAILS}, "^the program under nsys ended with exit code 3: CUDA out of memory$"),
    ],
)
def test_a_failed_capture_says_why_in_one_line_and_ignores_an_earlier_report(install, tmp_path, programs, complaint):
    for name, script in programs.items():
        install(name, script)
    (tmp_path / "x.nsys-rep").touch()
    with pytest.raises(CaptureFailed, match=complaint):
        nsys.capture(["fails"], tmp_path / "x.nsys-rep")


def test_a_library_missing_for_the_importer_is_named(install, tmp_path):
    assert nsys.obstacle() == "nsys not found"
    said = "Importer error status: The importer binary and its dependencies were not found."
    install("nsys", f"#!/bin/sh\necho '{said}'\n")
    install("ldd", "#!/bin/sh\nprintf '\\tlibdw.so.1 => not found\\n\\tlibm.so.6 => /lib/libm.so.6 (0x7f)\\n'\n")
    install("QdstrmImporter", "", folder=tmp_path / "root" / "host-linux-x64")
    with pytest.raises(CaptureFailed, match=r"^nsys cannot import its captures without libdw.so.1$"):
        nsys.check()
    assert nsys.obstacle() == "nsys cannot import its captures without libdw.so.1"


@pytest.mark.parametrize("exit_code", [0, 1])
def test_an_export_of_a_damaged_report_fails_with_the_error_of_nsys(install, tmp_path, exit_code):
    install("nsys", f"#!/bin/sh\necho 'Processing...'\necho 'Error: file is truncated'\nexit {exit_code}\n")
    with pytest.raises(CaptureFailed, match=r"^nsys cannot export x.nsys-rep: Error: file is truncated$"):
        nsys.export(tmp_path / "x.nsys-rep", tmp_path / "x.sqlite")
