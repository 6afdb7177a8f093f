import math

import numpy as np
import pandas as pd
import pytest

from pipeline.registry import stages
from pipeline.report.frame import brief, build, card, having, in_order, shares_a_cpu, undisturbed

from ..records import CPU, record, timed_row
from .frames import failed, folded, repeated, timed


def test_a_row_has_the_median_number_and_spread_of_its_repeats():
    rows = [row | {"peak_bytes": size} for row, size in zip(repeated("a", [10.0, 10.3, 10.1]), (7, 9, 7), strict=True)]
    [row] = folded(*rows).to_dict("records")
    assert (row["median_ms"], row["repeats"], row["peak_bytes"]) == (10.1, 3, 9)  # bytes: the largest repeat
    assert (row["medians_ms"], row["spread_pct"], row["status"]) == ([10.0, 10.3, 10.1], pytest.approx(3.0), "ok")
    assert len(row["samples_of_repeats"]) == 3


def test_steps_slowed_by_profiling_lose_only_their_exposed_communication():
    profiled = zip(repeated("a", [100.0] * 3), (101.0, 140.0, 102.0), (3.0, 43.0, 4.0), strict=True)
    rows = [row | {"profiled_ms": ms, "exposed_communication_ms": exposed} for row, ms, exposed in profiled]
    found = undisturbed(pd.DataFrame(rows), ["name"])
    assert found["exposed_communication_ms"].fillna(-1).tolist() == [3, -1, 4]
    assert found["median_ms"].tolist() == [100.0] * 3


def test_the_shortest_of_several_captures_of_a_step_is_kept_whole():
    captured = zip(repeated("a", [1.0] * 3), (140.0, 100.0, 120.0), ([9, 9], [1, 2], [5, 5]), strict=True)
    rows = [row | {"span_ms": ms, "busy_pct": lane} for row, ms, lane in captured]
    frame = folded(*undisturbed(pd.DataFrame([*rows, timed("b", 2.0)]), ["name"]).to_dict("records"))
    assert frame.set_index("name").loc["a", ["span_ms", "busy_pct"]].tolist() == [100.0, [1, 2]]
    assert "b" in set(frame["name"])


def test_repeats_that_contradict_each_other_are_unstable_and_say_so():
    one = [row | {"status": "unstable"} if row["repeat"] == 2 else row for row in repeated("c", [10.0, 10.1])]
    frame = folded(*repeated("a", [324.0, 387.0, 324.0]), timed("b", 10.0), *one)
    assert list(frame["status"]) == ["unstable", "ok", "unstable"]
    assert "19%" in frame["reason"][0]


def test_repeats_of_a_phase_may_differ_if_the_whole_step_hardly_changes():
    phases = [timed("a", 100.0, phase="train_step"), *repeated("a", [0.01, 0.02], phase="waiting")]
    assert set(folded(*phases, keys=("name", "phase"))["status"]) == {"ok"}


def test_repeats_with_values_win_and_a_row_without_any_keeps_its_outcome():
    lost = [failed("a", repeat=number, error=0.5) for number in (1, 2)]
    frame = folded(*lost, timed("b", 1.0), failed("c", repeat=1), *repeated("c", [10.0, 10.1])).set_index("name")
    assert (frame["status"].to_list(), frame["repeats"].to_list()) == (["oom", "ok", "ok"], [0, 1, 2])
    assert frame.loc["a", ["reason", "error"]].to_list() == ["CUDA out of memory", 0.5]
    assert np.isnan(frame["median_ms"]["a"])


@pytest.mark.parametrize(("repeated_cells", "known_of"), [("ad", "abd"), ("a", "a")])
def test_an_unrepeated_row_has_the_spread_of_its_kind_if_two_cells_were_repeated(repeated_cells, known_of):
    medians_ms = [100.0, 130.0, 100.0]
    rows = [row for name in repeated_cells for row in repeated(name, medians_ms, precision="bf16")]
    rows += [timed("b", 50.0, precision="bf16"), timed("c", 50.0, precision="fp32")]
    spread = folded(*rows, keys=("name", "precision")).set_index("name")["spread_log_std"].dropna()
    assert "".join(sorted(spread.index)) == known_of
    assert list(spread) == pytest.approx([np.std(np.log(medians_ms), ddof=1)] * len(spread))


def test_the_spread_of_repeats_is_pooled_over_values_of_any_size():
    up, down = math.exp(0.01), math.exp(-0.01)
    rows = [*repeated("a", [5 * up, 5 * down]), *repeated("b", [700 * up, 700, 700 * down]), timed("c", 1.0)]
    [row] = folded(*rows)[["spread_log_std", "spread_degrees"]].dropna().drop_duplicates().to_numpy()
    assert list(row) == [pytest.approx(math.sqrt((2e-4 + 2e-4) / 3)), 3]


@pytest.mark.parametrize(("idle_pct", "limit"), [([0, 30, 35], "host"), ([30, 0, 5], "gpu")])
def test_what_limits_a_folded_step_follows_from_its_median_idle_time(idle_pct, limit):
    of_each = [{"gpu_idle_pct": idle, "limited_by": "host" if idle >= 20 else "gpu"} for idle in idle_pct]
    rows = [row | own for row, own in zip(repeated("a", [10.0] * 3), of_each, strict=True)]
    assert list(folded(*rows)["limited_by"]) == [limit]


def test_cards_name_each_machine_and_gpu_that_repeats_ran_on():
    rows = [timed("a", 10.0, repeat=1), timed("a", 10.0, repeat=2, cards="another GPU")]
    assert folded(*rows)["cards"][0] == "a GPU, another GPU"
    machine = {**CPU, "kind": "NVIDIA X", "gpus_taken": ["GPU-1234567890", "GPU-abcdef0123"]}
    assert [card(record(machine=machine)), card(record())] == ["NVIDIA X 12345678 abcdef01", "a CPU"]
    machines = [CPU, CPU | {"gpus": [{"name": "NVIDIA X"}]}]
    assert [build(stages()["timing"], [record(machine=each)])["on_cpu"][0] for each in machines] == [True, False]


def of_timing(axis, *rows):
    """Return the frame of timing from records of one row each, whose cells have 1, 2 and so on for an axis."""
    cells = [record()["cell"] | {axis: place} for place in range(1, len(rows) + 1)]
    return build(stages()["timing"], [record(cell=cell, rows=[row]) for cell, row in zip(cells, rows, strict=True)])


def test_a_frame_has_all_declared_columns_one_row_per_cell_and_one_line_texts():
    odd = timed_row(median_ms=2.0) | {"reason": "one\ntwo\x1b[2J", "slowdowns": ["a\nb"]}
    frame = of_timing("repeat", odd, timed_row(median_ms=2.0))
    [row] = frame.to_dict("records")
    assert (row["repeats"], row["reason"], row["slowdowns"]) == (2, "one two\\x1b[2J", ["a b"])
    assert set(stages()["timing"].row_types.column_names()) <= {*frame, "repeat"}


def test_mfu_is_relative_to_the_highest_peak_that_any_process_measured():
    rates = ((1.0, 50.0), (1.5, 25.0))
    rows = [timed_row("train_step", model_tflops_per_s=rate, mfu_pct=mfu, median_ms=1.0) for rate, mfu in rates]
    assert list(of_timing("context_length", *rows)["mfu_pct"]) == pytest.approx([100 / 6, 25.0])


def test_having_keeps_complete_rows_and_in_order_puts_unknown_names_last():
    rows = pd.DataFrame({"size": ["mine", "xl", "small"], "a": [1, None, 1], "b": [1, 2, 3]})
    assert list(having(rows, "a", "b").index) == [0, 2]
    assert having(rows, "c").empty
    assert list(in_order(rows, ["size"], {"size": ["small", "xl"]})["size"]) == ["small", "xl", "mine"]


# As torch 2.11 writes it.
FULL = "CUDA out of memory. Tried to allocate 100.00 MiB. GPU 0 has a total capacity of 139.80 GiB. {}{}See docs"
OWN = "Including non-PyTorch memory, this process has 56.20 GiB memory in use. "
OTHERS = "Process 538 has 512.00 MiB memory in use. Process 579 has 70.67 GiB memory in use. "


@pytest.mark.parametrize(
    ("reason", "shortened"),
    [
        (FULL.format(OTHERS, OWN), "CUDA out of memory; other processes held 71 GiB of the GPU"),
        # Others held little or nothing, or one of them may be this process.
        (FULL.format("", OWN), "CUDA out of memory"),
        (FULL.format("Process 538 has 512.00 MiB memory in use. ", OWN), "CUDA out of memory"),
        (FULL.format(OTHERS, ""), "CUDA out of memory"),
        ("the compiler: CUDA out of memory", "the compiler: CUDA out of memory"),
    ],
)
def test_an_out_of_memory_reason_says_how_much_other_processes_held(reason, shortened):
    assert brief(reason) == shortened


@pytest.mark.parametrize(("on_cpu", "ranks", "shares"), [(True, 2, True), (True, 1, False), (False, 2, False)])
def test_only_several_ranks_on_a_machine_without_gpus_share_a_cpu(on_cpu, ranks, shares):
    assert shares_a_cpu(pd.DataFrame({"on_cpu": [on_cpu] * 2, "world_size": [1, ranks]})) is shares
    assert not shares_a_cpu(pd.DataFrame({"on_cpu": [True]}))


def test_text_is_stored_as_python_strings_even_with_pyarrow_installed():
    assert pd.get_option("mode.string_storage") == "python"
    assert folded(timed("a", 1.0))["name"].dtype.storage == "python"
