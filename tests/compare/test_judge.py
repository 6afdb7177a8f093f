import copy
import errno
import json
import re
import signal
import subprocess
import sys
import tarfile
from dataclasses import replace

import pytest

from pipeline import cli
from pipeline.cells.record import SCHEMA_VERSION
from pipeline.compare.judge import compare_runs
from pipeline.compare.runs import load_run
from pipeline.compare.text import summary, verdict_words, write_comparison
from pipeline.compare.times import UNJUDGED, WITHIN, WORDS
from pipeline.errors import UserError
from pipeline.report.intervals import FASTER, SLOWER, UNDECIDED
from pipeline.registry import stages
from pipeline.report.publish import publish

from ..records import as_read, timed_row

MACHINE = {
    "kind": "NVIDIA H200",
    "cpu": {"model": "a CPU", "logical_cores": 2, "physical_cores": 1},
    "os": "an OS",
    "software": {"torch": "2.11.0", "python": "3.12.3", "triton": "3.6.0", "cuda": "13.0", "driver": "580"},
    "memory_bytes": 2**30,
    "gpus": [{}],
    "threads": 2,
}
PHASES = {"forward": 10.0, "backward": 20.0}


def timed(name, median_ms, spread=0.02):
    quartiles = {"q1_ms": median_ms * (1 - spread / 2), "q3_ms": median_ms * (1 + spread / 2)}
    return as_read(timed_row(name, [median_ms])) | {"n": 10, **quartiles}


def record(size="small", **changes):
    return {
        "schema_version": SCHEMA_VERSION,
        "stage": "timing",
        "cell": {"precision": "bf16", "size": size},
        "settings": {"vocab_size": 4},
        "rows": [timed(name, median_ms) for name, median_ms in PHASES.items()],
        "machine": copy.deepcopy(MACHINE),
        "code": {"digest": "abc", "commit": "123"},
        "command": "python -m pipeline measure timing",
        "process": "ordinary",
        "started_at": "2026-01-01T10:00:00Z",
        "seconds": {"start_up": 1.0, "set_up": 1.0, "measuring": 1.0},
        **changes,
    }


def named(size):
    """Name the cell of a record, which lacks the axes of later versions."""
    return f"precision=bf16 size={size} context_length=256 batch_size=4 warmup_steps=5 mode=eager"


def run(*sizes, **changes):
    return [record(size, **changes) for size in sizes or ("small", "xl")]


def scaled(records, factor, spread=0.02):
    rows = [timed(name, factor * median_ms, spread) for name, median_ms in PHASES.items()]
    return [{**entry, "rows": copy.deepcopy(rows)} for entry in records]


def verdicts(a, b):
    return set(compare_runs(a, b, stages(), tolerance=0.05).timed["verdict"])


def test_the_same_records_are_the_same_in_everything():
    comparison = compare_runs(run(), run(), stages(), tolerance=0.05)
    assert set(comparison.timed["verdict"]) == {WITHIN}
    assert not comparison.is_worse
    assert all(
        part.empty for part in (comparison.differences, comparison.outcomes, comparison.only_in_a, comparison.only_in_b)
    )
    text = write_comparison(comparison, "one", "other")
    assert "Machine, software, code and settings are the same." in text
    assert "4 median times in both, 4 within 5%" in text.splitlines()[-1]


@pytest.mark.parametrize(("factor", "verdict"), [(1.5, "slower"), (1 / 1.5, "faster"), (1.04, WITHIN), (0.97, WITHIN)])
def test_scaled_times_get_their_verdict_and_ratio(factor, verdict):
    comparison = compare_runs(run(), scaled(run(), factor), stages(), tolerance=0.05)
    assert set(comparison.timed["verdict"]) == {verdict}
    assert list(comparison.timed["ratio"]) == [pytest.approx(factor)] * 4
    assert comparison.is_worse == (verdict == "slower")


def test_a_difference_within_the_spread_is_not_judged_unless_it_is_large():
    assert verdicts(run(), scaled(run(), 1.2, spread=0.5)) == {UNDECIDED}
    assert verdicts(scaled(run(), 1, spread=0.5), scaled(run(), 1.2)) == {UNDECIDED}


def test_a_difference_of_unstable_or_single_figures_is_not_judged_unless_it_is_large():
    for change, factor, word in (
        ({"status": "unstable"}, 1.2, UNJUDGED),
        ({"status": "unstable"}, 1.5, SLOWER),
        ({"status": "unstable"}, 0.5, FASTER),
        ({"n": 1}, 1.5, UNJUDGED),
    ):
        other = scaled(run("small"), factor)
        for row in other[0]["rows"]:
            row.update(change)
        assert verdicts(run("small"), other) == {word}
        assert verdicts(other, other) == {WITHIN}


def test_a_wider_tolerance_makes_more_the_same():
    slow = scaled(run(), 1.15)
    assert set(compare_runs(run(), slow, stages(), tolerance=0.2).timed["verdict"]) == {WITHIN}
    assert set(compare_runs(run(), slow, stages(), tolerance=0.1).timed["verdict"]) == {"slower"}


def test_what_differs_in_machine_software_code_and_settings_is_named_first():
    other = run(settings={"vocab_size": 8, "seed": 1}, code={"digest": "def", "commit": "456"})
    for entry in other:
        entry["machine"] |= {"kind": "NVIDIA A100", "software": MACHINE["software"] | {"torch": "2.13.0"}}
    comparison = compare_runs(run(), other, stages(), tolerance=0.05)
    assert comparison.differences.to_dict("split")["data"] == [
        ["", "machine", "NVIDIA H200", "NVIDIA A100"],
        ["", "torch", "2.11.0", "2.13.0"],
        ["", "commit", "123", "456"],
        ["timing", "code", "abc", "def"],
        ["timing", "vocab_size", "4", "8"],
        ["timing", "seed", "–", "1"],
    ]
    text = write_comparison(comparison, "one", "other")
    assert text.index("NVIDIA A100") < 200
    assert "\nThe code differs of timing.\n" in text
    assert re.search(r"\| timing +\| vocab_size=4 seed=– \| vocab_size=8 seed=1 \|", text)


def test_an_implementation_of_ones_own_that_was_edited_is_named():
    a, b = (run(subjects=[{"kind": "attention", "name": "mine", "digest": digest}]) for digest in ("abc", "def"))
    comparison = compare_runs(a, b, stages(), tolerance=0.05)
    assert comparison.differences.to_numpy().tolist() == [["timing", "code of mine", "abc", "def"]]
    assert "\nThe code differs of timing of mine.\n" in write_comparison(comparison, "one", "other")
    assert compare_runs(a, a, stages(), tolerance=0.05).differences.empty


def test_code_of_a_stage_that_only_one_run_has_is_no_difference():
    more = [*run(), record(stage="flash", settings={"vocab_size": 1}, code={"digest": "xyz", "commit": "123"})]
    assert compare_runs(run(), more, stages(), tolerance=0.05).differences.empty


def test_cells_of_one_run_only_are_listed():
    comparison = compare_runs(run("small", "xl"), run("xl", "2.7B", "large"), stages(), tolerance=0.05)
    assert list(comparison.only_in_a["cell"]) == [named("small")]
    assert list(comparison.only_in_b["cell"]) == [named("2.7B"), named("large")]
    assert "1 cell only in A; 2 cells only in B" in summary(comparison)


def test_a_figure_lost_is_worse_and_one_won_is_not():
    rows = [{"phase": name, "clock": "host", "status": "oom", "reason": "out of memory"} for name in PHASES]
    lost = compare_runs(run(), run(rows=rows), stages(), tolerance=0.05)
    assert lost.is_worse
    assert lost.timed.empty
    assert "OOM: out of memory" in write_comparison(lost, "one", "other")
    assert "; 4 figures lost; 4 outcomes changed, 4 for the worse" in summary(lost)
    won = compare_runs(run(rows=rows), run(), stages(), tolerance=0.05)
    assert not won.is_worse
    assert "4 outcomes changed, 0 for the worse" in summary(won)


def test_a_skipped_row_is_compared_with_nothing():
    rows = [{"phase": name, "clock": "host", "status": "skipped", "reason": "no GPU"} for name in PHASES]
    comparison = compare_runs(run(rows=rows), run(rows=rows), stages(), tolerance=0.05)
    assert comparison.timed.empty
    assert not comparison.is_worse


def sized(size_bytes, median_ms, clock="host"):
    key = {"timing": "burst", "impl": "torch", "placement": "in_place", "clock": clock, "size_bytes": size_bytes}
    return {**timed("", median_ms), **key}


def of_sizes(*rows):
    return [record(stage="allreduce", rows=list(rows))]


def test_rows_are_paired_by_what_they_are_of_in_whichever_order_they_stand():
    rows = [sized(10**power, float(power), clock) for power in (6, 7, 8) for clock in ("host", "cuda_events")]
    comparison = compare_runs(of_sizes(*rows), of_sizes(*reversed(rows)), stages(), tolerance=0.05)
    assert list(comparison.timed["ratio"]) == [1] * 6
    assert comparison.timed["row"].iloc[0] == "burst torch host in_place size_bytes=1000000"


def test_a_row_that_is_missing_is_named_leaves_the_others_paired_and_is_a_figure_lost():
    a, b = of_sizes(sized(10, 1.0), sized(20, 2.0), sized(30, 3.0)), of_sizes(sized(10, 1.0), sized(30, 3.0))
    comparison = compare_runs(a, b, stages(), tolerance=0.05)
    assert list(comparison.timed["ratio"]) == [1, 1]
    assert list(comparison.rows_only_in_a["row"]) == ["burst torch host in_place size_bytes=20"]
    assert comparison.rows_only_in_b.empty
    assert comparison.is_worse
    assert "size_bytes=20 | ok" in write_comparison(comparison, "one", "other")
    assert "; 1 figure lost; 1 row only in A." in summary(comparison)


def test_a_row_that_was_added_is_named_leaves_the_others_paired_and_is_not_worse():
    a, b = of_sizes(sized(10, 1.0), sized(30, 3.0)), of_sizes(sized(20, 2.0), sized(10, 1.0), sized(30, 3.0))
    comparison = compare_runs(a, b, stages(), tolerance=0.05)
    assert list(comparison.timed["ratio"]) == [1, 1]
    assert list(comparison.rows_only_in_b["row"]) == ["burst torch host in_place size_bytes=20"]
    assert comparison.rows_only_in_a.empty
    assert not comparison.is_worse
    assert "lost" not in summary(comparison)


def test_a_row_without_a_time_that_is_missing_is_named_but_no_figure_lost():
    kernel = {"kind": "kernel", "range": "inference", "kernel": "gemm", "status": "ok", "time_ms": 1.0}
    a, b = ([record(stage="profile", rows=rows)] for rows in ([kernel, {**kernel, "kernel": "copy"}], [kernel]))
    comparison = compare_runs(a, b, stages(), tolerance=0.05)
    assert list(comparison.rows_only_in_a["row"]) == ["kernel inference copy"]
    assert not comparison.is_worse


def test_rows_of_a_cell_that_one_run_lacks_are_not_listed_beside_it():
    comparison = compare_runs(run("small", "xl"), run("xl"), stages(), tolerance=0.05)
    assert len(comparison.only_in_a) == 1
    assert comparison.rows_only_in_a.empty


def test_peaks_are_paired_by_what_they_are_of():
    phases = [{"kind": "peak", "step": 1, "phase": name, "status": "ok", "peak_bytes": 1e9} for name in PHASES]
    phases[1]["peak_bytes"] = 2e9
    a, b = ([record(stage="memory", rows=rows)] for rows in (phases, phases[::-1]))
    assert compare_runs(a, b, stages(), tolerance=0.05).memory.empty


def test_each_of_a_rows_times_is_compared():
    several = {"median_latency_ms": 3.0, "q1_latency_ms": 2.9, "q3_latency_ms": 3.1}
    rows = [{**timed("forward", 1.0), **several}]
    comparison = compare_runs(run("xl", rows=rows), run("xl", rows=rows), stages(), tolerance=0.05)
    assert list(comparison.timed["quantity"]) == ["ms", "latency_ms"]


def test_the_quantities_of_a_stage_are_summed_up_apart():
    def rows(latency_ms):
        quartiles = {"q1_latency_ms": 0.99 * latency_ms, "q3_latency_ms": 1.01 * latency_ms}
        return [{**timed("forward", 1.0), "median_latency_ms": latency_ms, **quartiles}]

    comparison = compare_runs(run(rows=rows(3.0)), run(rows=rows(6.0)), stages(), tolerance=0.05)
    text = write_comparison(comparison, "one", "other")
    table = text.split("### Times by stage")[1].split("###")[0]
    lines = [line.split() for line in table.splitlines() if "timing" in line]
    assert [line[1:3] for line in lines] == [["timing,", "ms"], ["timing,", "latency_ms"]]
    assert [line[-2] for line in lines] == ["1.00", "2.00"]


def test_a_stage_is_summed_up_whatever_the_verdicts():
    comparison = compare_runs(run(rows=[timed("forward", 1.0)]), run(rows=[timed("forward", 1.0)]), stages(), 0.05)
    every = comparison.timed.iloc[[0] * len(WORDS)].assign(verdict=WORDS)
    text = write_comparison(replace(comparison, timed=every), "one", "other")
    header = text.split("### Times by stage")[1].strip().splitlines()[0]
    assert all(f" {word} |" in header for word in verdict_words(0.05).values())


def test_a_time_that_a_row_no_longer_has_is_named_and_is_a_figure_lost():
    several = {"median_latency_ms": 3.0, "q1_latency_ms": 2.9, "q3_latency_ms": 3.1}
    a, b = (run("xl", rows=[{**timed("forward", 1.0), **more}]) for more in (several, {}))
    comparison = compare_runs(a, b, stages(), tolerance=0.05)
    assert (list(comparison.timed["quantity"]), comparison.is_worse) == (["ms"], True)
    assert "1 figure lost" in summary(comparison)
    assert "forward host latency |" in write_comparison(comparison, "one", "other").split("### Times only in A")[1]
    assert not compare_runs(b, a, stages(), tolerance=0.05).is_worse


def test_the_worst_comes_first_and_the_same_is_left_out():
    slow = [*scaled([record("small")], 1.5), *scaled([record("xl")], 2.0), *scaled([record("large")], 1.0)]
    text = write_comparison(compare_runs(run("small", "xl", "large"), slow, stages(), tolerance=0.05), "one", "other")
    times = text.split("### Times that differ")[1].split("### By stage")[0]
    assert "size=large" not in times
    assert 0 < times.index("size=xl") < times.index("size=small")
    assert "precision" not in times  # the same in all of them


def test_a_single_slow_cell_is_told_from_those_that_are_the_same():
    slow = [record("small"), *scaled([record("xl")], 2.0)]
    text = write_comparison(compare_runs(run(), slow, stages(), tolerance=0.05), "one", "other")
    assert text.split("### Times that differ")[1].count("size=xl") == 2


def as_recorded(entry):
    """Return a record with what its file holds of the rows."""
    rows = [timed_row(row["phase"], [row["median_ms"] * share for share in (0.99, 1.0, 1.01)]) for row in entry["rows"]]
    return entry | {"settings": entry["settings"] | {"unstable_rel_error": 0.05}, "rows": rows}


def write(folder, records):
    for entry in map(as_recorded, records):
        path = folder / "timing/cells/precision=bf16" / f"size={entry['cell']['size']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(entry))
    return folder


def test_a_results_folder_its_parent_and_a_snapshot_hold_the_same_records(tmp_path):
    write(tmp_path / "results", run())
    (tmp_path / "reports/figures").mkdir(parents=True)
    (tmp_path / "reports/writeup.md").write_text("# Write-up")
    publish(tmp_path, tmp_path / "snapshot", stages())
    places = ("results", ".", "snapshot", "snapshot/records.tar.xz")
    (first, *others) = [load_run(tmp_path / place, stages()) for place in places]
    assert all(other == first for other in others)
    assert [[row["median_ms"] for row in entry["rows"]] for entry in first] == [list(PHASES.values())] * 2


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"schema_version": 3, "sta', "size=xl.json is no record: "),
        ('{"schema_version": 3, "stage": "timing", "cell": {}, "settings": {}}', "it has no rows, machine, code, "),
        ('{"schema_version": 99}', "has schema_version 99"),
    ],
)
def test_a_corrupt_record_is_named_in_one_line(tmp_path, content, complaint):
    write(tmp_path / "results", run())
    (tmp_path / "results/timing/cells/precision=bf16/size=xl.json").write_text(content)
    with pytest.raises(UserError, match=complaint) as raised:
        load_run(tmp_path / "results", stages())
    assert "\n" not in str(raised.value)


def test_a_record_in_the_place_of_another_cell_is_named_in_one_line(tmp_path):
    write(tmp_path, run("small"))
    folder = tmp_path / "timing/cells/precision=bf16"
    (folder / "size=small.json").rename(folder / "size=xl.json")
    with pytest.raises(UserError, match=r"size=xl.json holds the record of another cell, .*size=small") as raised:
        load_run(tmp_path, stages())
    assert "\n" not in str(raised.value)


def test_two_records_of_one_cell_are_refused(tmp_path):
    write(tmp_path / "a/results", run("xl"))
    write(tmp_path / "a", run("xl"))
    with pytest.raises(UserError, match=r"size=xl.json cannot be compared: .*a holds two records of this cell"):
        load_run(tmp_path / "a", stages())


def damaged_archive(path):
    """Write an archive of which a part in the middle has been overwritten."""
    write(path.parent / "results", run())
    with tarfile.open(path, "w:xz") as archive:
        archive.add(path.parent / "results", "results")
    content = bytearray(path.read_bytes())
    content[200:220] = bytes(20)
    path.write_bytes(content)


def test_what_is_no_run_is_said_in_one_line(tmp_path):
    (tmp_path / "records.tar.xz").write_text("not an archive")
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    damaged_archive(tmp_path / "damaged/records.tar.xz")
    complaints = {
        "empty": "holds no records",
        "nowhere": "holds no records",
        ".": "cannot read",
        "damaged": "cannot read",
    }
    for place, complaint in complaints.items():
        with pytest.raises(UserError, match=complaint) as raised:
            load_run(tmp_path / place, stages())
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("step", ["os.listdir", "pathlib.Path.is_file"])
def test_a_folder_that_cannot_be_read_is_said_in_one_line(tmp_path, monkeypatch, step):
    def refuse(*_words):
        raise PermissionError(errno.EACCES, "Permission denied")

    place = write(tmp_path / "results", run())
    monkeypatch.setattr(step, refuse)
    with pytest.raises(UserError, match=r"cannot read .*results: Permission denied"):
        load_run(place, stages())


def compare(*words):
    command = [sys.executable, "-m", "pipeline", "compare", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_slower_has_an_exit_code_of_its_own_on_request_only(tmp_path):
    a, b = write(tmp_path / "a", run()), write(tmp_path / "b", scaled(run(), 1.5))
    assert compare(a, b).returncode == 0
    slower = compare(a, b, "--fail-if-slower")
    assert slower.returncode == cli.SLOWER
    assert re.fullmatch(r"compare: --fail-if-slower fails: \d+ times? slower by more than 5%\n", slower.stderr)
    assert compare(b, a, "--fail-if-slower").returncode == 0
    assert compare(a, tmp_path / "nowhere", "--fail-if-slower").returncode == 2
    ended = compare(a, b, "--tolerance-pct", "-3")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("words", [["compare", "a", "b", "--fail-if-slower"], ["describe"]])
def test_a_reader_that_goes_ends_a_command_as_it_ends_others(tmp_path, words):
    write(tmp_path / "a", run()), write(tmp_path / "b", scaled(run(), 1.5))
    command = subprocess.Popen(
        [sys.executable, "-m", "pipeline", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    command.stdout.close()
    assert command.stderr.read() == ""
    assert command.wait() == -signal.SIGPIPE


def test_a_run_of_which_nothing_can_be_compared_fails_and_says_so(tmp_path):
    a, b = write(tmp_path / "a", run("small")), write(tmp_path / "b", run("xl"))
    ended = compare(a, b, "--fail-if-slower")
    assert ended.returncode == cli.SLOWER
    assert "no time is in both; 1 cell only in A; 1 cell only in B" in ended.stdout
    assert ended.stderr == "compare: --fail-if-slower fails: no time is in both\n"
    assert compare(a, b).returncode == 0


def test_rows_that_do_not_say_how_many_samples_they_have_are_compared():
    rows = [{name: value for name, value in timed("forward", 1.0).items() if name != "n"}]
    slow = [{name: value for name, value in timed("forward", 2.0).items() if name != "n"}]
    assert verdicts(run("xl", rows=rows), run("xl", rows=slow)) == {"slower"}


@pytest.mark.parametrize("ratio", [1.5, 0.5])
def test_peaks_of_memory_that_differ_are_listed_once_a_cell(ratio):
    def with_peak(size, peak_bytes):
        rows = [{**timed(name, median_ms), "peak_bytes": peak_bytes} for name, median_ms in PHASES.items()]
        return record(size, rows=rows)

    a = [with_peak("small", 1e9), with_peak("xl", 8e9)]
    b = [with_peak("small", 1.01e9), with_peak("xl", ratio * 8e9)]
    comparison = compare_runs(a, b, stages(), tolerance=0.05)
    (line,) = comparison.memory[["cell", "a", "b", "ratio"]].to_numpy().tolist()
    assert line == [named("xl"), 8e9, ratio * 8e9, ratio]
    assert "Peak memory that differs" in write_comparison(comparison, "one", "other")
    assert "peak memory differs in 1 cell" in summary(comparison)
    assert not comparison.is_worse


def test_peaks_of_a_cell_that_are_not_all_the_same_are_named():
    def with_peaks(factor):
        peaks = dict(zip(PHASES, (1e9, 2e9), strict=True))
        return record(rows=[{**timed(name, 1.0), "peak_bytes": factor * peak} for name, peak in peaks.items()])

    comparison = compare_runs([with_peaks(1)], [with_peaks(1.5)], stages(), tolerance=0.05)
    assert [name.split()[0] for name in comparison.memory["row"]] == list(PHASES)
    assert "peak memory differs in 1 cell" in summary(comparison)


def test_a_figure_that_became_unstable_is_a_change_but_not_lost():
    rows = [{**timed(name, median_ms), "status": "unstable", "reason": "noise"} for name, median_ms in PHASES.items()]
    comparison = compare_runs(run(), run(rows=rows), stages(), tolerance=0.05)
    assert len(comparison.outcomes) == 4
    assert not comparison.is_worse
    assert "unstable: noise" in write_comparison(comparison, "one", "other")
