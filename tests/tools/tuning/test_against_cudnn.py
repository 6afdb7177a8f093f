"""The comparison with cuDNN, run in Triton's interpreter against torch's own kernel: its times mean nothing."""

import json
import sys
from itertools import product

import pytest
from torch.nn.functional import scaled_dot_product_attention

from pipeline.instruments.sampling.step_timing import StopRule
from tools.tuning import against_cudnn
from tools.tuning.against_cudnn import CASES, Case, chosen, compare


@pytest.mark.parametrize(("dtype", "peers"), [("fp32", ["peer"]), ("bf16", ["peer", "fa4"])])
def test_a_row_has_the_kernels_and_the_times_of_both_passes_also_of_fa4_if_installed(monkeypatch, dtype, peers):
    monkeypatch.setattr(against_cudnn, "RULE", StopRule(2, 2, 1.0, 0.0))
    monkeypatch.setattr(against_cudnn, "WARMUP_ROUNDS", 1)
    shapes = set()

    def attend(q, k, v, causal):
        shapes.update(x.shape for x in (q, k, v))
        return scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal).transpose(1, 2)

    if "fa4" in peers:
        monkeypatch.setattr(against_cudnn, "flash_attention_4", lambda: attend)
    row = compare(Case(dtype, (1, 2, 32, 16), True))
    assert (row["case"], row["kernels"]) == (f"{dtype} 1,2,32,16 causal", "plain, plain")
    assert shapes == ({(1, 32, 2, 16)} if "fa4" in peers else set())
    for part, whose in product(against_cudnn.PASSES, peers):
        ours, peer = (float(row[f"{part} {each}"].split(" ")[0]) for each in ("ours", whose))
        ratio = row[f"{part} ratio" if whose == "peer" else f"{part} fa4 ratio"]
        assert ratio == pytest.approx(ours / peer, rel=0.05)


def test_keys_may_have_fewer_heads_and_rows_are_written_to_the_given_file(monkeypatch, tmp_path):
    case = Case("bf16", (2, 32, 8192, 128), True, kv_heads=8)
    assert case.kv_shape == (2, 8, 8192, 128)
    assert case in CASES
    row = {"forward ratio": 1.0, "both ratio": 1.0}
    monkeypatch.setattr(against_cudnn, "compare", lambda case: {"case": str(case), **row})
    monkeypatch.setattr(sys, "argv", ["against_cudnn", "32:8,8192", "causal", "--out", str(tmp_path / "rows.jsonl")])
    against_cudnn.main()
    (line,) = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert json.loads(line)["case"] == str(case) == "bf16 2,32:8,8192,128 causal"


def test_words_choose_cases_and_unknown_words_are_refused_with_a_list_of_all_cases(monkeypatch, capsys):
    assert chosen([]) == CASES
    assert {(case.dtype, case.is_causal) for case in chosen(["fp16", "full"])} == {("fp16", False)}
    monkeypatch.setattr(sys, "argv", ["against_cudnn", "fp8"])
    with pytest.raises(SystemExit):
        against_cudnn.main()
    assert "no case holds all of ['fp8']; there are:\nbf16 4,16,4096,128 causal" in capsys.readouterr().err
