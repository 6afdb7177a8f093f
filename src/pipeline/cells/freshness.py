"""Decide from a cell's record whether it is up to date; see Freshness in docs/architecture.md."""

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

# Modules that count besides the stage's own: the measured code and the instruments. Not the code that runs a cell, or
# that derives tables and pages from its record.
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
# For the user's implementations, the modules that check and wrap them count, but not those that read names and files.
SUBJECTS_PACKAGE, UNCOUNTED_SUBJECT_MODULES = "pipeline.subjects", ("naming", "files")
CHANGED_MEANWHILE = "changed while it was measured"
# What `code_facts` adds to a record's digest and commit.
CODE_FACTS = {"modules", "environment", "libraries", "peers"}


@dataclass(frozen=True)
class CurrentSetup:
    """What a cell would be measured with now: software versions by name, the most GPUs, and the environment.

    allowed: the host's limits from `identity.allowed`; empty if another host measures.
    """

    software: Mapping[str, str]
    gpus: int
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    allowed: Mapping[str, Any] = field(default_factory=dict)


def code_facts(package: str, issued_at: float, environment: Mapping[str, str], measured: bool = True) -> dict[str, Any]:
    """Return the part of a record that identifies the measuring code: `modules`, a digest each, and `digest` of all.

    Also `environment`: the values of variables that these modules name; `libraries`: the variables that libraries read
    when they load; `peers`: the versions of the packages that the stage's `cell` lists.

    package: the stage's, such as `pipeline.stages.timing`. issued_at: when the cell's command was issued, in seconds
    since the epoch; a module changed since then gets no digest. environment: as it was when the cell began, because a
    package may set variables on import. measured: False if the cell was skipped; then `needs` counts too.
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
    """Return a record's facts about the user's implementations; one edited while it was measured gets no digest."""
    after = facts(subjects)
    return [
        was if was == is_now else {**was, "digest": CHANGED_MEANWHILE}
        for was, is_now in zip(before, after, strict=True)
    ]


def why_stale(
    record: Mapping[str, Any], settings: Any, gpus: int, present: CurrentSetup, subjects: Sequence[dict[str, str]] = ()
) -> str | None:
    """Return in a few words what has changed since a cell was measured; None if its values would be the same.

    gpus: how many GPUs the cell asks for; subjects: facts about the user's implementations that it would measure.
    """
    if has_failed(record):
        return "failed before"
    if not (record["code"].keys() >= CODE_FACTS and record["machine"].keys() >= {"gpus_available", *present.allowed}):
        return "measured by an earlier version"
    if record["settings"] != asdict(settings):
        return "settings changed"
    if changed_subjects := _changed_subjects(record.get("subjects", []), subjects):
        return f"{', '.join(changed_subjects)} changed"
    measured_with = record["machine"]["software"]
    changed_software = [name for name, version in present.software.items() if measured_with.get(name) != version]
    if changed_software:
        return f"another version of {', '.join(changed_software)}"
    if min(gpus, present.gpus) > record["machine"]["gpus_available"]:
        return f"{min(gpus, present.gpus)} GPUs available now"
    for name, value in present.allowed.items():
        if record["machine"][name] != value:
            return f"{name} is {'unlimited' if value is None else value} now"
    for name, value in record["code"]["environment"].items():
        if present.environment.get(name, "") != value:
            return f"{name} changed"
    differences = record["code"]["libraries"].items() ^ library_environment(present.environment).items()
    if differences:
        return f"{', '.join(sorted({name for name, _ in differences}))} changed"
    peers = record["code"]["peers"]
    peers_now = versions(sorted(PEERS.keys() & peers))
    changed_peers = [PEERS[name] for name, version in peers_now.items() if peers[name] != version]
    if changed_peers:
        return f"another version of {', '.join(changed_peers)}"
    return _changed_code(record["code"]["modules"])


def _changed_subjects(measured: Sequence[dict[str, str]], requested: Sequence[dict[str, str]]) -> list[str]:
    different = [subject for subject in (*requested, *measured) if not (subject in measured and subject in requested)]
    return list(dict.fromkeys(f"{subject['kind']}.{subject['name']}" for subject in different))


def has_changed_code(record: Mapping[str, Any]) -> bool:
    """Tell whether a cell was measured by code other than the current; False for a failed cell, which has no values."""
    return not has_failed(record) and _changed_code(record["code"].get("modules", {})) is not None


def deriving_modules(package: str) -> set[str]:
    """Return the modules that declare and derive a stage's columns, without the measured ones."""
    reached = sources.reached_modules(f"{package}.cell", f"{package}.rows")
    return {name for name in reached if not any(_is_in(name, package_name) for package_name in COUNTED)}


def _counts(name: str, package: str) -> bool:
    """Tell whether a module imported to measure a cell of a stage counts."""
    if _is_in(name, SUBJECTS_PACKAGE):
        return name.removeprefix(f"{SUBJECTS_PACKAGE}.") not in UNCOUNTED_SUBJECT_MODULES
    return any(_is_in(name, package_name) for package_name in (package, *COUNTED))


def _is_in(name: str, package_name: str) -> bool:
    return name == package_name or name.startswith(f"{package_name}.")


def _digest_before(name: str, moment: float) -> str:
    # By ctime, the time of its last change of any kind, because mtime can be set to anything.
    path, digest = sources.source_path(name), sources.module_digest(name)
    return digest if path and digest and path.stat().st_ctime < moment else CHANGED_MEANWHILE


def _changed_code(modules: Mapping[str, str]) -> str | None:
    if not modules:
        return "its record does not name the code"
    changed = [name for name, digest in modules.items() if sources.module_digest(name) != digest]
    if not changed:
        return None
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    return f"code changed: {changed[0]}{more}"
