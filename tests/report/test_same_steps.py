from types import SimpleNamespace

import pandas as pd
import pytest

from pipeline.report.same_steps import eager_steps, how_far_apart


def step(median_ms, size="small", busy_ms=None, **changes):
    same = {"precision": "bf16", "batch_size": 4, "context_length": 1024, "vocab_size": 10_000}
    return {"size": size, **same, "median_ms": median_ms, "gpu_busy_ms": busy_ms, **changes}


def apart(**steps):
    return how_far_apart([SimpleNamespace(stage=stage, eager_steps=found) for stage, found in steps.items()])


def test_the_step_that_differs_most_is_named_with_its_times():
    timing, levers = [step(33.5), step(300.0, "xl")], [step(44.0), step(310.0, "xl")]
    assert apart(timing=timing, levers=levers) == (
        "Its stable times lie furthest apart for small in bf16 at context 1024: 33.5 ms in timing, 44.0 ms in levers "
        "(1.31×)."
    )


def test_the_host_limits_what_leaves_the_gpu_idle_in_the_slowest_section_whichever_profiled_it():
    timing, levers = [step(33.5, busy_ms=30.0), step(300.0, "xl", 297.0)], [step(44.0), step(309.0, "xl")]
    assert apart(timing=timing, levers=levers) == (
        "Its stable times lie furthest apart for small in bf16 at context 1024, which the host limits: 33.5 ms in "
        "timing, 44.0 ms in levers (1.31×)."
    )
    busy = apart(timing=[step(33.5, busy_ms=30.0)], levers=[step(37.0, busy_ms=30.0)])
    assert "limit" not in busy


@pytest.mark.parametrize(
    "other", [{"precision": "fp32"}, {"batch_size": 8}, {"context_length": 512}, {"vocab_size": 9}]
)
def test_only_the_same_step_is_compared(other):
    assert apart(timing=[step(33.5)], levers=[step(44.0, **other)]) == ""
    assert apart() == ""


def test_stable_steps_alone_are_handed_over_with_settings_in_place_of_axes():
    rows = pd.DataFrame(
        {
            **{"size": ["small", "xl"], "precision": "bf16", "context_length": 1024, "status": ["ok", "unstable"]},
            **{"setting_batch_size": 4, "setting_vocab_size": 10_000, "median_ms": [33.5, 300.0]},
        }
    )
    assert eager_steps(rows) == [step(33.5)]
