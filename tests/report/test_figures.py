import itertools
import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from pipeline.report import figures


@pytest.fixture
def rows():
    return pd.DataFrame(
        {
            "seq_len": [128, 256, 512, 1024],
            "impl": "triton",
            "status": ["ok", "unstable", "oom", "ok"],
            "n": [10, 10, np.nan, 12],
            "median_ms": [1.0, 2.0, np.nan, 8.0],
            "q1_ms": [0.9, 1.5, np.nan, 7.9],
            "q3_ms": [1.1, 2.5, np.nan, 8.2],
            "machine": "NVIDIA H200",
            "torch": "2.11.0",
        }
    )


def draw(rows):
    figure, panels = figures.new_figure()
    axes = panels[0, 0]
    figures.quartile_line(axes, rows, "seq_len", "triton")
    figures.lengths_axis(axes, rows["seq_len"], "sequence length")
    figures.log_values_axis(axes, "time (ms)")
    figures.mark_outcomes(axes, rows, "seq_len", "impl")
    figures.shared_legend(figure)
    figures.stamp(figure, rows, "bf16")
    return figure, axes


def test_the_same_figure_drawn_twice_is_the_same_bytes(rows, tmp_path):
    for name in ("first", "second"):
        figures.save(draw(rows)[0], tmp_path / f"{name}.svg")
    first = (tmp_path / "first.svg").read_bytes()
    assert first == (tmp_path / "second.svg").read_bytes()
    assert b"<dc:date>" not in first


def test_a_quartile_that_equals_the_median_but_for_rounding_is_drawn(rows):
    rows["q1_ms"] = np.nextafter(rows["median_ms"], np.inf)
    _, axes = draw(rows)
    assert axes.containers or axes.collections


def test_the_columns_of_a_legend_are_of_one_height():
    figure, panels = figures.new_figure()
    for name in "abcdefg":
        panels[0, 0].plot([1, 2], label=10 * name)
    figures.shared_legend(figure)
    figure.canvas.draw()
    lefts = [round(text.get_window_extent().x0) for text in figure.legends[0].get_texts()]
    assert [lefts.count(left) for left in sorted(set(lefts))] == [2, 2, 2, 1]


def test_a_figure_in_which_nothing_has_a_name_is_drawn(tmp_path):
    figure, _ = figures.new_figure()
    figures.shared_legend(figure)
    figures.save(figure, tmp_path / "figure.svg")
    assert not figure.legends


@pytest.mark.parametrize("letters", [3, 10, 25, 200])
def test_a_legend_has_as_few_lines_as_fit_the_figure(letters):
    figure, panels = figures.new_figure()
    for name in "abcdefg":
        panels[0, 0].plot([1, 2], label=letters * name)
    figures.shared_legend(figure)
    figure.canvas.draw()
    [legend] = figure.legends
    lines = len({round(text.get_window_extent().y0) for text in legend.get_texts()})
    assert lines == {3: 1, 10: 2, 25: 4, 200: 7}[letters]
    assert letters == 200 or (legend.get_window_extent().x0 >= 0 and legend.get_window_extent().x1 <= figure.bbox.x1)


def test_the_background_is_opaque_white(rows, tmp_path):
    figures.save(draw(rows)[0], tmp_path / "figure.svg")
    assert "fill: #ffffff" in (tmp_path / "figure.svg").read_text()


def test_an_outcome_is_a_word_and_never_a_point(rows):
    _, axes = draw(rows)
    assert [text.get_text() for text in axes.texts] == ["×", "triton OOM"]
    heights = axes.lines[0].get_ydata()
    assert np.isnan(heights[2])
    assert 0 not in heights


def test_an_unstable_point_keeps_its_place_and_is_hollow(rows):
    figure, axes = draw(rows)
    hollow = [line for line in axes.lines if line.get_markerfacecolor() == "white" and len(line.get_xdata())]
    assert [tuple(line.get_xydata()[0]) for line in hollow] == [(256, 2.0)]
    assert "unstable" in [text.get_text() for text in figure.legends[0].texts]


def test_outcomes_side_by_side_do_not_run_into_each_other(rows):
    figure, panels = figures.new_figure(1, 3)
    axes = panels[0, 0]
    failed = pd.concat([rows.assign(impl=name, status=["ok", "ok", "oom", "oom"]) for name in ("triton", "tiled")])
    figures.lengths_axis(axes, rows["seq_len"], "sequence length")
    figures.mark_outcomes(axes, failed, "seq_len", "impl")
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])


def test_words_at_the_edge_stand_above_all_data(rows):
    figure, axes = draw(rows)
    figure.draw_without_rendering()
    to_pixels = axes.transData.transform
    highest_px = to_pixels((1024, 8.2))[1]
    assert all(text.get_window_extent().y0 > highest_px for text in axes.texts)


def test_error_bars_reach_from_quartile_to_quartile(rows):
    _, axes = draw(rows.iloc[[0, 3]])
    segments = axes.collections[0].get_segments()
    assert [list(segment[:, 1]) for segment in segments] == [pytest.approx([0.9, 1.1]), pytest.approx([7.9, 8.2])]


def test_lengths_stand_as_plain_numbers_at_their_ticks(rows):
    _, axes = draw(rows)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["128", "256", "512", "1024"]


def test_the_foot_names_device_software_and_samples(rows):
    figure, _ = draw(rows)
    assert figure.texts[0].get_text() == "NVIDIA H200 · torch 2.11.0 · bf16 · n=10 to 12, median and quartiles"


def test_no_writing_is_smaller_than_eleven_points(rows):
    figure, axes = draw(rows)
    writing = [*figure.texts, *axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels(), axes.xaxis.label]
    assert min(text.get_fontsize() for text in writing) >= 11


def test_a_name_has_one_style_and_known_names_differ():
    assert figures.style_for("some kernel") == figures.style_for("some kernel")
    sizes = [tuple(figures.style_for(size).values()) for size in ("small", "medium", "large", "xl", "2.35B", "2.7B")]
    assert len(set(sizes)) == len(sizes)


def test_a_single_value_from_zero_lies_below_the_upper_edge():
    _, panels = figures.new_figure()
    axes = panels[0, 0]
    axes.plot([0], [40.0], marker="o")
    figures.values_from_zero(axes)
    low, high = axes.get_ylim()
    assert low == 0
    assert high > 42


def test_an_svg_has_its_words_as_text_short_coordinates_and_a_dark_mode(rows, tmp_path):
    figure, axes = draw(rows)
    axes.annotate("10.00013351", (256, 2))
    figures.save(figure, tmp_path / "figure.svg")
    svg = (tmp_path / "figure.svg").read_text()
    assert ">sequence length</text>" in svg
    assert ">10.00013351</text>" in svg
    assert re.findall(r"\d\.\d{2,}", re.sub(r">[^<]*<", "><", svg)) == []
    assert "prefers-color-scheme: dark" in svg
    ElementTree.fromstring(svg)


def test_what_means_different_things_has_colours_that_differ():
    colours = [to_rgb(colour) for colour in figures.MEANINGS]
    apart = min(np.abs(np.subtract(a, b)).sum() for a, b in itertools.combinations(colours, 2))
    assert apart > 0.15


def test_a_name_has_one_style():
    names = [name for named in figures.MEANINGS.values() for name in named]
    assert len(names) == len(set(names))
    looks = [tuple(figures.style_for(name).values()) for name in names]
    assert len(looks) == len(set(looks))


@pytest.mark.parametrize("words", ["$\\frac{$", "$x^2$", "US$ 5", "a $ b $ c", r"\$ $"])
def test_dollars_are_no_formulas_wherever_they_stand(tmp_path, words):
    figure, panels = figures.new_figure()
    axes = panels[0, 0]
    axes.plot([0, 1], [1, 2], label=words)
    axes.set_title(words)
    axes.annotate(words, (0, 1))
    figures.names_axis(axes, [words, "b"], words)
    figures.shared_legend(figure)
    figures.stamp(figure, pd.DataFrame({"machine": [words], "torch": "2.13.0", "n": 10}))
    figures.save(figure, tmp_path / "figure.svg")
    drawn = ElementTree.parse(tmp_path / "figure.svg").iter("{http://www.w3.org/2000/svg}text")
    # title, label, tick, words beside a point, legend, foot
    assert sum(words in "".join(text.itertext()) for text in drawn) == 6
