"""The rows of a cell with the user's implementations, independent of the stage."""

from types import SimpleNamespace

import pytest

from pipeline.parallel.processes.starting import RankFailed
from pipeline.subjects import measuring
from pipeline.subjects.checking import Processes, Verdict
from pipeline.subjects.measuring import measure_in_turns, measure_with
from pipeline.subjects.naming import Subject
from pipeline.subjects.turns import note_changes, note_last

SUBJECTS = {name: Subject("ddp", name, f"mine:{name}") for name in ("right", "noted", "wrong", "crashes")}
CHECKED = {"noted": Verdict("ok", "shards nothing", way="buckets"), "wrong": Verdict("wrong", "off by 1")}
KEYS = [{"phase": "forward"}, {"phase": "backward"}]


@pytest.fixture
def rows(monkeypatch):
    """The rows of a cell whose subjects do what their names say."""
    given = []

    def verdict(check, subject, _processes, *args):
        given.append((check, *args))
        return CHECKED.get(subject.name, Verdict("ok"))

    def measure(left, mark):
        names = [subject.name for subject in left]
        assert left[SUBJECTS["noted"]].way == "buckets"
        if "crashes" in names:
            note_last(mark, names.index("crashes"))
            raise RankFailed(0, "rank 0 of 1 died by SIGSEGV")
        note_changes(mark, names.index("noted"), ["a from 1 to 2"])
        return [{"impl": name, "status": "ok"} for name in ("ours", *names)] + [{"status": "ok"}]

    monkeypatch.setattr(measuring, "verdict", verdict)
    processes = Processes(1, "gloo", "cpu", 10)
    rows = measure_with(list(SUBJECTS.values()), ("check", "bf16"), processes, measure, KEYS)
    assert given == [("check", "bf16")] * len(SUBJECTS)
    return rows


def test_a_failing_subject_loses_only_its_own_rows_and_notes_become_reasons(rows):
    reasons = {"wrong": "off by 1", "crashes": "its process died by SIGSEGV"}
    failed = [{"impl": name, "status": "wrong", "reason": reasons[name]} | key for name in reasons for key in KEYS]
    assert [row for row in rows if row["status"] == "wrong"] == failed
    noted = "it set a from 1 to 2, which was undone: all run alike; shards nothing"
    told = [(row.get("impl"), row.get("reason")) for row in rows if row["status"] == "ok"]
    assert told == [("ours", None), ("right", None), ("noted", noted), (None, None)]


def test_a_check_and_a_measurement_each_have_their_own_time_limit(monkeypatch):
    given = []
    answers = {"check": Verdict("ok"), measuring._with_turns: []}
    monkeypatch.setattr(Processes, "run", lambda self, do, *_: given.append(self.timeout_s) or answers[do])
    settings = SimpleNamespace(check_timeout_s=1, timeout_s=2)
    measure_in_turns([SUBJECTS["right"]], ("check",), None, (), settings, KEYS)
    assert given == [1, 2]
