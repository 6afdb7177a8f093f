import importlib
from dataclasses import replace

import pytest
import torch

from pipeline.instruments.profilers.collective_traffic import Collective
from pipeline.instruments.sampling.weight_differences import Differences
from pipeline.registry import stage
from pipeline.stages.ddp.measure import EXPERIMENT
from pipeline.ways.cell import RanksCell
from pipeline.ways.measure import among, rows_of, traffic_rows
from pipeline.ways.way import Result, Way

TOGETHER, APART = Way("naive", lambda step: step), Way("none", lambda step: step, communicates=False)
OFF = Result(differences=Differences(between_ranks=1.0, parameter="head.weight"))
CELL = RanksCell()


def rows(way, result, cell=CELL):
    fake = replace(EXPERIMENT, rows=lambda _way, _result, _cell, backend: [{"status": "ok", "backend": backend}])
    return rows_of(fake, way, result, cell, "gloo")


def test_a_way_with_an_outcome_or_diverging_weights_has_no_values():
    whole = {"impl": "naive", "phase": "train_step", "clock": "host"}
    oom = {"status": "oom", "reason": "CUDA out of memory"}
    assert rows(TOGETHER, oom) == [whole | oom]
    reason = OFF.differences.complaint("fp32")
    assert rows(TOGETHER, OFF) == [whole | {"status": "wrong", "reason": reason}]
    assert "head.weight differs between ranks" in reason
    for way, result in ((TOGETHER, Result()), (APART, OFF)):
        assert rows(way, result) == [{"impl": way.name, "status": "ok", "backend": "gloo"}]


def test_weights_must_agree_with_the_reference_only_if_all_ways_average_alike():
    off = Result(differences=Differences(0.0, "", from_reference=1.0, share=0.5, off="head.weight"))
    statuses = {ranks: rows(TOGETHER, off, RanksCell("bf16", world_size=ranks))[0]["status"] for ranks in (2, 3)}
    assert statuses == {2: "wrong", 3: "ok"}


def test_own_ways_come_last_but_before_a_last_one_without_communication():
    own = Way("own", lambda step: step)
    assert among([TOGETHER, APART], [own]) == [TOGETHER, own, APART]
    assert among([APART, TOGETHER], [own]) == [APART, TOGETHER, own]


def test_payloads_are_summed_by_collective():
    sent = (("allreduce", 8), ("broadcast", 4), ("allreduce", 2))
    rows = traffic_rows([Collective(*each, torch.float32) for each in sent], ("allreduce", "gather"))
    found = {row["collective"]: (row["calls"], row["measured_bytes"]) for row in rows}
    assert found == {"allreduce": (2, 10), "gather": (0, 0)}


@pytest.mark.parametrize("name", ["ddp", "sharding", "fsdp"])
def test_rows_of_a_cell_that_could_not_be_measured_name_every_way(name):
    experiment = importlib.import_module(f"{stage(name).package}.measure").EXPERIMENT
    keys = [{**way.key, **experiment.whole_step} for way in experiment.ways]
    assert stage(name).cell_type().row_keys() == keys
