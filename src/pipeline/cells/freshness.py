"""Decide whether a cell's record is what would be measured now, by what it holds: docs/architecture.md, Freshness."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.cells import sources
from pipeline.cells.library_environment import library_environment
from pipeline.cells.record import has_failed
from pipeline.loaded_modules import loaded_modules
from pipeline.peers import PEERS, versions
from pipeline.subjects.naming import Subject, facts

# What counts beside the stage's own modules: what is measured, and the instruments that read it. Not what runs a cell,
# nor what tables and pages derive from its record.
COUNTED = (
    "pipeline.attention",
    "pipeline.formulas.sizes",  # which model a name stands for
    "pipeline.instruments.machine.ceilings",
    "pipeline.instruments.machine.gpu_health",
    "pipeline.instruments.machine.gpu_state",
    "pipeline.instruments.machine.pinning",
    "pipeline.instruments.machine.power",
    "pipeline.instruments.memory",
    "pipeline.instruments.profilers",
    "pipeline.instruments.sampling",
    "pipeline.model",
    "pipeline.parallel",
    "pipeline.tf32",
    "pipeline.ways",
)
# Of the user's own: what checks and wraps them, but for what reads their names and files.
OF_SUBJECTS, NAMES_OF_SUBJECTS = "pipeline.subjects", ("naming", "files")
CHANGED_MEANWHILE = "changed while it was measured"


@dataclass(frozen=True)
class Present:
    """What a cell would be measured with now: software by name, how many GPUs at most, and the environment.

    allowed: what the host allows to a cell, as `identity.allowed` tells; empty where another host measures.
    """

    software: Mapping[str, str]
    gpus: int
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    allowed: Mapping[str, Any] = field(default_factory=dict)


def code_facts(package: str, issued_at: float, environment: Mapping[str, str], measured: bool = True) -> dict[str, Any]:
    """Return the part of a record that tells which code measured: `modules`, a digest each, and one `digest` of all.

    And `environment`: what the variables that these modules name said; `libraries`: those that libraries read when they
    are loaded; `peers`: the versions of those that the stage's `cell` names.

    package: the stage's, `pipeline.stages.timing`. issued_at: when the cell's command was issued, in seconds of the
    epoch; a module put there since has no digest. environment: what it was when the cell began, for a package may set
    variables as it is imported. measured: where nothing was, `needs`, which said so, counts too.
    """
    parts = ("cell", "measure") if measured else ("cell", "measure", "needs")
    reached = sources.reached_modules(*(f"{package}.{part}" for part in parts))
    names = sorted(name for name in loaded_modules() & reached if _counts(name, package))
    modules = {name: _digest_before(name, issued_at) for name in names}
    return {
        "digest": sources.digest(modules),
        "modules": modules,
        "environment": {name: environment.get(name, "") for name in sources.variables(modules)},
        "libraries": library_environment(environment),
        "peers": versions(getattr(sys.modules.get(f"{package}.cell"), "PACKAGES", ())),
    }


def subject_facts(subjects: Sequence[Subject], before: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Return what a record holds of the user's own implementations; one edited while it was measured has no digest."""
    after = facts(subjects)
    return [
        was if was == is_now else {**was, "digest": CHANGED_MEANWHILE}
        for was, is_now in zip(before, after, strict=True)
    ]


def why_stale(
    record: Mapping[str, Any], settings: Any, gpus: int, present: Present, subjects: Sequence[dict[str, str]] = ()
) -> str | None:
    """Say in a few words what has changed since a cell was measured; None where its values would be the same.

    gpus: how many GPUs the cell asks for; subjects: the facts of the user's own implementations that it is to measure.
    """
    if has_failed(record):
        return "failed before"
    if record["settings"] != asdict(settings):
        return "settings changed"
    if changed_subjects := _changed_subjects(record.get("subjects", []), subjects):
        return f"{', '.join(changed_subjects)} changed"
    measured_with = record["machine"]["software"]
    changed = [name for name, version in present.software.items() if measured_with.get(name) != version]
    if changed:
        return f"another version of {', '.join(changed)}"
    if min(gpus, present.gpus) > record["machine"].get("gpus_available", 0):
        return f"{min(gpus, present.gpus)} GPUs for it now"
    for name, value in present.allowed.items():
        if record["machine"].get(name, value) != value:  # older records do not tell
            return f"{name} is {'unlimited' if value is None else value} now"
    for name, value in record["code"].get("environment", {}).items():
        if present.environment.get(name, "") != value:
            return f"{name} changed"
    libraries, before = library_environment(present.environment), record["code"].get("libraries")
    if before is not None and before != libraries:
        return f"{', '.join(sorted(name for name, _ in before.items() ^ libraries.items()))} changed"
    peers = record["code"].get("peers", {})  # of which older records do not tell
    if changed := [name for name, found in versions(sorted(PEERS.keys() & peers)).items() if peers[name] != found]:
        return f"another version of {', '.join(PEERS[name] for name in changed)}"
    return _changed_code(record["code"].get("modules", {}))


def _changed_subjects(measured: Sequence[dict[str, str]], asked: Sequence[dict[str, str]]) -> list[str]:
    different = [subject for subject in (*asked, *measured) if not (subject in measured and subject in asked)]
    return list(dict.fromkeys(f"{subject['kind']}.{subject['name']}" for subject in different))


def has_changed_code(record: Mapping[str, Any]) -> bool:
    """Tell whether a cell was measured by other code than there is now; one that failed was measured by none."""
    return not has_failed(record) and _changed_code(record["code"].get("modules", {})) is not None


def deriving_modules(package: str) -> set[str]:
    """Return the modules by which the columns of a stage are declared and derived; not those that are measured."""
    reached = sources.reached_modules(f"{package}.cell", f"{package}.rows")
    return {name for name in reached if not any(_is_in(name, room) for room in COUNTED)}


def _counts(name: str, package: str) -> bool:
    """Tell whether a module that measured a cell of a stage counts."""
    if _is_in(name, OF_SUBJECTS):
        return name.removeprefix(f"{OF_SUBJECTS}.") not in NAMES_OF_SUBJECTS
    return any(_is_in(name, room) for room in (package, *COUNTED))


def _is_in(name: str, room: str) -> bool:
    return name == room or name.startswith(f"{room}.")


def _digest_before(name: str, moment: float) -> str:
    # By the time of its last change of any kind, ctime: the one of its content may be set to anything.
    path, digest = sources.source_path(name), sources.module_digest(name)
    return digest if path and digest and path.stat().st_ctime < moment else CHANGED_MEANWHILE


def _changed_code(modules: Mapping[str, str]) -> str | None:
    if not modules:
        return "its record does not tell the code"
    changed = [name for name, digest in modules.items() if sources.module_digest(name) != digest]
    if not changed:
        return None
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    return f"code changed: {changed[0]}{more}"
