import pandas as pd
import pytest
from matplotlib.text import Text

from pipeline.report import figures


@pytest.mark.parametrize("words", ["$\\frac{$", "$x^2$", "US$ 5", "a $ b $ c", r"\$ $", r"$10^6$ $\frac{$"])
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
    written = [text.get_text() for text in figure.findobj(Text) if "$" in text.get_text()]
    assert len(written) >= 6  # title, label, tick, words beside a point, legend, foot
    assert all("$" not in text.replace("$10^6$", "").replace(r"\$", "") for text in written)


def test_a_power_of_a_number_is_written_as_one(tmp_path):
    figure, panels = figures.new_figure()
    figures.names_axis(panels[0, 0], ["$2^{-24}$"], "size (MB of $10^6$ bytes)")
    panels[0, 0].set_title("$5^2")
    figures.save(figure, tmp_path / "figure.svg")
    drawn = {text.get_text() for text in figure.findobj(Text)}
    assert {"$2^{-24}$", "size (MB of $10^6$ bytes)", r"\$5^2"} <= drawn
