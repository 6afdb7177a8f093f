from contextlib import contextmanager

import pytest
import torch

from pipeline.ranges import listening, span


class Recorder:
    def __init__(self):
        self.events = []

    @contextmanager
    def __call__(self, name):
        self.events.append(f"open {name}")
        yield
        self.events.append(f"close {name}")


def scaled_sum(x):
    with span("outer"):
        y = x * 2
        with span("inner"):
            return y.sum()


def test_a_listener_sees_nested_ranges_and_the_previous_one_returns_after_errors():
    recorder, outer, inner = Recorder(), Recorder(), Recorder()
    with listening(recorder):
        scaled_sum(torch.ones(2))
    assert recorder.events == ["open outer", "open inner", "close inner", "close outer"]
    with listening(outer):
        with pytest.raises(KeyError), listening(inner):
            raise KeyError
        with span("after"):
            pass
    assert outer.events == ["open after", "close after"]
    assert inner.events == []
    assert span("a") is span("b")


def test_ranges_vanish_in_compiled_code_and_listeners_do_not_recompile():
    compilations = []

    def count_compilations(graph_module, example_inputs):
        compilations.append(graph_module)
        return graph_module.forward

    compiled = torch.compile(scaled_sum, fullgraph=True, backend=count_compilations)
    x = torch.ones(3)
    recorder = Recorder()
    assert compiled(x) == 6
    with listening(recorder):
        assert compiled(x) == 6
    assert len(compilations) == 1
    assert recorder.events == []
