import pytest

from pipeline.instruments.profilers import nsys
from pipeline.instruments.profilers.nsys import CaptureFailed

# Does what nsys does: runs the program, if it is to profile one, and leaves a file where it was told to.
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
    """Make an empty folder all of PATH but for the shell's own, and return a function that puts programs there."""
    folder = tmp_path / "root" / "bin"
    folder.mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")

    def put(name, script, folder=folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)

    return put


def test_a_capture_runs_the_program_from_its_start_of_the_profiler_to_its_stop_and_leaves_its_report(install, tmp_path):
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
def test_a_capture_that_fails_says_why_in_one_line_and_a_report_of_an_earlier_one_does_not_pass_for_it(
    install, tmp_path, programs, complaint
):
    for name, script in programs.items():
        install(name, script)
    (tmp_path / "x.nsys-rep").touch()
    with pytest.raises(CaptureFailed, match=complaint):
        nsys.capture(["fails"], tmp_path / "x.nsys-rep")


def test_the_library_that_the_importer_lacks_is_named(install, tmp_path):
    assert nsys.obstacle() == "nsys not found"
    said = "Importer error status: The importer binary and its dependencies were not found."
    install("nsys", f"#!/bin/sh\necho '{said}'\n")
    install("ldd", "#!/bin/sh\nprintf '\\tlibdw.so.1 => not found\\n\\tlibm.so.6 => /lib/libm.so.6 (0x7f)\\n'\n")
    install("QdstrmImporter", "", folder=tmp_path / "root" / "host-linux-x64")
    with pytest.raises(CaptureFailed, match=r"^nsys cannot import its captures without libdw.so.1$"):
        nsys.check()
    assert nsys.obstacle() == "nsys cannot import its captures without libdw.so.1"


@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_damaged_report_that_nsys_cannot_export_gives_its_complaint(install, tmp_path, exit_code):
    install("nsys", f"#!/bin/sh\necho 'Processing...'\necho 'Error: file is truncated'\nexit {exit_code}\n")
    with pytest.raises(CaptureFailed, match=r"^nsys cannot export x.nsys-rep: Error: file is truncated$"):
        nsys.export(tmp_path / "x.nsys-rep", tmp_path / "x.sqlite")
