import pandas as pd
import pytest

from pipeline.report.one_peak import with_one_peak


def rows(peaks, **more):
    rates = [1.0, 2.0, 3.0]
    mfu = [100 * rate / peak for rate, peak in zip(rates, peaks, strict=True)]
    return pd.DataFrame({"model_tflops_per_s": rates, "mfu_pct": mfu, **more})


def test_rates_are_held_against_the_highest_peak_of_their_precision():
    shown = with_one_peak(
        rows([4.0, 5.0, 10.0], peak_tflops_per_s=[4.0, 5.0, 10.0], precision=["fp32", "fp32", "bf16"])
    )
    assert list(shown["mfu_pct"]) == pytest.approx([20.0, 40.0, 30.0])
    assert list(shown["peak_tflops_per_s"]) == [5.0, 5.0, 10.0]


def test_the_faster_of_two_steps_never_has_the_lower_mfu():
    shown = with_one_peak(rows([4.0, 9.0, 20.0]))
    assert list(shown["mfu_pct"]) == pytest.approx([5.0, 10.0, 15.0])


def test_rows_without_rates_and_those_of_a_data_sheet_stay_as_they_are():
    plain = pd.DataFrame({"median_ms": [1.0]})
    assert with_one_peak(plain) is plain
    promised = rows([989.4] * 3)
    assert list(with_one_peak(promised)["mfu_pct"]) == pytest.approx(list(promised["mfu_pct"]))
    skipped = rows([4.0, 4.0, 4.0]).astype(float)
    skipped.loc[1] = float("nan")
    assert with_one_peak(skipped)["mfu_pct"].isna().tolist() == [False, True, False]
