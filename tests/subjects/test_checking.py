import pytest
import torch

from pipeline.parallel.processes.starting import RankFailed
from pipeline.subjects.attention_check import check_attention
from pipeline.subjects.checking import Processes, Verdict, measure_survivors, verdict
from pipeline.subjects.marks import note_last
from pipeline.subjects.naming import Subject

from .outside_files import ADAPTERS, attention

FIRST, SECOND, THIRD = (Subject("attention", name, f"mine:{name}") for name in ("first", "second", "third"))


def check(subject, timeout_s=60):
    return verdict(check_attention, subject, Processes(1, "gloo", "cpu", timeout_s), torch.float32, 16, True)


def test_a_crash_and_a_hang_are_verdicts():
    assert check(attention("crashes")) == Verdict("wrong", "its process died by SIGSEGV")
    hanging = check(attention("hangs"), timeout_s=3)
    assert hanging.status == "wrong"
    assert hanging.reason.startswith("its process sent no result within 3 s (attention.py:")


def test_what_is_not_written_yet_is_skipped():
    getter = Subject("attention", "mine", f"{ADAPTERS}:get_flashattention_autograd_function_triton")
    assert check(getter) == Verdict("skipped", "not implemented")


def test_a_measurement_is_repeated_without_the_one_that_ran_last():
    measured = []

    def measure(left, mark):
        measured.append(list(left))
        if SECOND in left:
            note_last(mark, left.index(SECOND))
            raise RankFailed(0, "rank 0 of 1 died by SIGSEGV")
        return [{"impl": "first"}]

    result, out = measure_survivors(measure, [FIRST, SECOND, THIRD])
    assert (result, measured) == ([{"impl": "first"}], [[FIRST, SECOND, THIRD], [FIRST, THIRD]])
    assert out == {SECOND: Verdict("wrong", "its process died by SIGSEGV")}


def test_a_rank_that_gloo_aborts_is_told_why():
    def measure(left, mark):
        if left:
            raise RankFailed(0, "rank 1 of 2 died by SIGABRT")
        return []

    _result, out = measure_survivors(measure, [FIRST])
    assert out[FIRST].reason.startswith("rank 1 of 2 died by SIGABRT: gloo aborts where ranks begin collectives in ")


def test_where_none_is_to_blame_all_are_left_out_and_then_it_is_our_own_failure():
    def measure(left, mark):
        raise RankFailed(0, f"rank 0 of 1 raised ValueError: with {len(left)}")

    with pytest.raises(RankFailed, match="with 0"):
        measure_survivors(measure, [FIRST, SECOND])
