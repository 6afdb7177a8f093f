import jinja2
import numpy as np
import pandas as pd
import pytest

from pipeline.report import section
from pipeline.report.markup import Markdown


@pytest.fixture
def render(tmp_path):
    def render(template, **facts):
        path = tmp_path / "section.md.j2"
        path.write_text(template)
        return section.render(path, facts)

    return render


def test_filters_write_numbers_with_their_units(render):
    text = render(
        "{{ a | ms }} {{ b | ms }} {{ c | ratio }} {{ d | percent }} {{ e | count }} "
        "{{ f | bytes }} {{ g | bytes }} {{ h | mib }} {{ i | ms }}",
        a=12.345,
        b=3456.7,
        c=1.4142,
        d=0.1234,
        e=12345.0,
        f=999e6,
        g=68.17e9,
        h=5 * 2**20,
        i=0.0456,
    )
    assert text == "12.3 ms 3.46 s 1.41× 12% 12,345 999 MB 68.2 GB 5.00 MiB 45.6 µs\n"


def test_a_missing_fact_stops_the_section(render):
    with pytest.raises(jinja2.UndefinedError):
        render("{{ nowhere }}")


@pytest.mark.parametrize("form", ["ms", "ratio", "percent", "count", "number", "bytes", "mib"])
def test_a_figure_that_is_not_a_number_stops_the_section(render, form):
    with pytest.raises(ValueError, match="no place in a sentence"):
        render(f"{{{{ value | {form} }}}}", value=np.nan)


def test_sentences_left_out_leave_no_gap(render):
    assert render("one\n\n{% if no %}\ntwo\n{% endif %}\n\nthree", no=False) == "one\n\nthree\n"


def test_a_span_names_its_lowest_and_highest():
    values = pd.Series({"small": 12.3, "large": 4.0, "xl": 456.0})
    assert section.span(values, "ms") == "4.00 ms (large) to 456 ms (xl)"
    assert section.span(values[:1], "ms") == "12.3 ms (small)"
    assert section.span(pd.Series({"small": 1.0001, "xl": 1.0002}), "ratio") == "1.00×"


@pytest.mark.parametrize(("names", "text"), [(["a"], "a"), (["a", "b"], "a and b"), ([1, 2, 3], "1, 2 and 3")])
def test_a_listing_ends_in_and(names, text):
    assert section.listing(names) == text


@pytest.mark.parametrize(
    ("time", "other", "word"), [(1, 2, "faster than"), (2, 1, "slower than"), (1, 1.04, "as fast as")]
)
def test_a_comparison_flips_with_its_figures(time, other, word):
    opposite = {"faster than": "slower than", "slower than": "faster than", "as fast as": "as fast as"}
    assert section.compare(time, other) == word
    assert section.compare(other, time) == opposite[word]


@pytest.mark.parametrize(
    ("median", "low", "high", "word"),
    [
        (2, 1.8, 2.2, "faster than"),
        (0.5, 0.4, 0.6, "slower than"),
        (1.01, 0.9, 1.1, "as fast as"),
        (2, 0.9, 3, "not told apart from"),
    ],
)
def test_a_comparison_within_the_noise_is_none(median, low, high, word):
    assert section.compare_ratio(median, low, high) == word


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ([1, 2, 3], "rises"),
        ([3, 2, 1], "falls"),
        ([1, 1.01, 0.99], "stays level"),
        ([1, 3, 1], "goes up and down"),
        ([1, 0.99, 3], "rises"),
    ],
)
def test_a_trend_follows_its_values(values, word):
    assert section.trend(values) == word


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_is_found(exponent):
    x = np.array([128, 256, 512, 1024])
    assert section.growth_exponent(x, 3 * x**exponent) == pytest.approx(exponent)


@pytest.mark.parametrize(
    ("exponent", "word"),
    [
        (-1, "falls"),
        (0.05, "hardly changes"),
        (0.5, "grows less than linearly"),
        (1, "grows about linearly"),
        (2, "grows about quadratically"),
        (3, "grows more than quadratically"),
    ],
)
def test_growth_is_named_by_its_exponent(exponent, word):
    assert section.growth_word(exponent) == word


def test_one_thing_is_written_without_the_plural(render):
    text = render('{{ 1 | counted("row") }}, {{ 0 | counted("row") }}, {{ 1200 | counted("warm-up step") }}')
    assert text == "1 row, 0 rows, 1,200 warm-up steps\n"


@pytest.mark.parametrize(
    ("exponents", "words"),
    [
        ({"a": 1.0, "b": 1.05}, "grows about linearly with length"),
        ({"a": 1, "b": 2, "c": 1}, "grows about linearly with length at a and c, and grows about quadratically at b"),
        (
            {"a": 1.0, "b": 2.0, "c": 0.0},
            "grows about linearly with length at a, grows about quadratically at b, and hardly changes at c",
        ),
    ],
)
def test_growth_is_said_in_one_word_only_where_all_have_it(exponents, words):
    assert section.growth(pd.Series(exponents)) == words


def test_facts_are_escaped_and_what_is_markdown_is_not(render):
    bold = "{% macro bold(name) %}**{{ name }}**{% endmacro %}"
    text = render(
        bold + "{{ bold(a) }}, {{ a }}, {{ [a, a] | listing }}, {{ a | code }}, {{ b }}", a="|", b=Markdown("*z*")
    )
    assert text == "**&#124;**, &#124;, &#124; and &#124;, &#124;, *z*\n"


def test_a_list_of_markdown_stays_markdown(render):
    assert render('{{ names | map("code") | listing }}', names=["a", "b<c>", "d"]) == "`a`, `b<c>` and `d`\n"
