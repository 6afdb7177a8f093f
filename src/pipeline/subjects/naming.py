"""Implementations of the user's own, by kind and name, as the configuration and commands give them: not imported."""

import json
import re
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.errors import UserError
from pipeline.subjects.files import check_location, defined_names, digest

# Each kind with the functions that may go with an implementation of it.
KINDS: dict[str, tuple[str, ...]] = {
    "attention": (),
    "ddp": ("before_batch", "after_backward"),
    "fsdp": ("after_backward", "gather"),
    "optimizer": (),
    "model": (),
    "op": (),
}
# What stands between the matrix products of a transformer: an implementation of the kind `op` is named after one.
OPERATIONS = ("rms_norm", "rotary", "swiglu", "linear_cross_entropy", "adamw")
# What a name may be: it becomes part of tables, figures and pages.
NAME = re.compile(r"[a-z0-9_]{1,32}")
ALLOWED_NAME = "text of at most 32 of a-z, 0-9 and _"
# The adapters by which assignment 2 of CS336 tests a student's work, in its editions of 2024 to 2026: tests/adapters.py
# of github.com/stanford-cs336/assignment2-systems. A file of adapters has a function for each part of the assignment;
# that of 2024 has others too, of RMSNorm, which are not read.
# Functions without arguments that return the autograd function.
ATTENTION_GETTERS = ("get_flashattention_autograd_function_pytorch", "get_flashattention_autograd_function_triton")
# By kind and name: the function that makes it, and those to call beside it.
ADAPTERS: dict[tuple[str, str], dict[str, str]] = {
    ("attention", "my_pytorch"): {"use": ATTENTION_GETTERS[0]},
    ("attention", "my_triton"): {"use": ATTENTION_GETTERS[1]},
    ("ddp", "my_ddp_individual"): {
        "use": "get_ddp_individual_parameters",
        "after_backward": "ddp_individual_parameters_on_after_backward",
    },
    ("ddp", "my_ddp_bucketed"): {
        "use": "get_ddp_bucketed",
        "before_batch": "ddp_bucketed_on_train_batch_start",
        "after_backward": "ddp_bucketed_on_after_backward",
    },
    ("ddp", "my_ddp"): {"use": "get_ddp", "after_backward": "ddp_on_after_backward"},
    ("fsdp", "my_fsdp"): {
        "use": "get_fsdp",
        "after_backward": "fsdp_on_after_backward",
        "gather": "fsdp_gather_full_params",
    },
    ("optimizer", "my_sharded_optimizer"): {"use": "get_sharded_optimizer"},
}


@dataclass(frozen=True)
class Subject:
    """An implementation of the user's own.

    use: its place, `package.module:attribute` or `file.py:attribute`. The rest, "" for none: functions of (wrapper,
    optimizer) to call before a batch and after backward, and of (wrapper) to gather all parameters by name.
    """

    kind: str
    name: str
    use: str
    before_batch: str = ""
    after_backward: str = ""
    gather: str = ""

    @property
    def locations(self) -> list[str]:
        """Every place that it names."""
        return [place for place in (self.use, self.before_batch, self.after_backward, self.gather) if place]


@dataclass(frozen=True)
class Measured:
    """How a stage measures the user's own implementations, declared in its cell.py as SUBJECTS.

    kind: which of them. whole: the values of columns in the rows by which they are ranked. apart: implementations that
    are not ranked with them. first: the values of axes of the problem that is told of first, and exercise: the
    assignment's name of it, if it has one. pipelines: where rows of the pipeline's own implementation have no `impl`,
    what it is called; the user's own then stand in the ranking alone. apart_by: columns of rows that are problems of
    their own.
    """

    kind: str
    whole: Mapping[str, Any]
    apart: tuple[str, ...] = ()
    first: Mapping[str, Any] = field(default_factory=dict)
    exercise: str = ""
    pipelines: str = ""
    apart_by: tuple[str, ...] = ()


def operation_of(name: str) -> str | None:
    """Return the operation that an implementation is of: `rms_norm`, `rms_norm_v2`; None where it names none."""
    return next((each for each in OPERATIONS if name == each or name.startswith(f"{each}_")), None)


def read(asked: Any, where: str, taken: Mapping[str, Iterable[str]]) -> tuple[Subject, ...]:
    """Read subjects: a mapping of kinds to names to places, or the path of a file with the course's adapters.

    where: the source of the value; taken: by kind the names of the pipeline's own. Raises UserError, one line.
    """
    if isinstance(asked, str):
        asked = _adapters(asked, where)
    if not isinstance(asked, Mapping):
        raise UserError(
            f"{where} must be a mapping of kinds or the path of a file of adapters, got {reprlib.repr(asked)}"
        )
    subjects = [
        subject for kind, named in asked.items() for subject in _of_kind(kind, named, where, set(taken.get(kind, ())))
    ]
    for subject in subjects:
        for place in subject.locations:
            check_location(place, f"{where}: {subject.kind}.{subject.name}")
    return tuple(subjects)


def told(asked: Any, subjects: Iterable[Subject]) -> list[str]:
    """Return a line of which of the course's adapters a file has and which not, none where no file was asked for."""
    if not isinstance(asked, str):
        return []
    names = {(each.kind, each.name) for each in subjects}
    has, lacks = (
        ", ".join(functions["use"] for key, functions in ADAPTERS.items() if (key in names) == is_there)
        for is_there in (True, False)
    )
    return [f"{asked} has {has}" + (f"; it has no {lacks}" if lacks else "")]


def words(subjects: Iterable[Subject]) -> list[str]:
    """Return the option of a command that gives these subjects: none, or `--subjects` and what `read` reads."""
    asked: dict[str, dict[str, Any]] = {}
    for subject in subjects:
        given = {key: place for key, place in asdict(subject).items() if place and key not in ("kind", "name")}
        asked.setdefault(subject.kind, {})[subject.name] = given if len(given) > 1 else subject.use
    return ["--subjects", json.dumps(asked)] if asked else []


def facts(subjects: Iterable[Subject]) -> list[dict[str, str]]:
    """Return what a record holds of subjects, with digests of their source; raises UserError where one is gone."""
    return [{**asdict(subject), "digest": digest(subject.locations)} for subject in subjects]


def _adapters(file: str, where: str) -> dict[str, dict[str, dict[str, str]]]:
    """Return the subjects of a file of adapters as the configuration spells them; raises UserError if it has none."""
    defined = defined_names(file, where)
    found: dict[str, dict[str, dict[str, str]]] = {}
    for (kind, name), functions in ADAPTERS.items():
        if functions["use"] in defined:
            places = {key: f"{file}:{function}" for key, function in functions.items() if function in defined}
            found.setdefault(kind, {})[name] = places
    if not found:
        known = ", ".join(functions["use"] for functions in ADAPTERS.values())
        raise UserError(f"{where}: {file} has none of the course's adapters, which are {known}")
    return found


def _of_kind(kind: Any, named: Any, where: str, taken: set[str]) -> Iterable[Subject]:
    if kind not in KINDS:
        raise UserError(f"{where}: unknown kind {reprlib.repr(kind)}: must be one of {', '.join(KINDS)}")
    if not isinstance(named, Mapping):
        raise UserError(f"{where}: {kind} must be a mapping of names to places, got {reprlib.repr(named)}")
    for name, given in named.items():
        key = f"{where}: {kind}.{reprlib.repr(name).strip(chr(39))}"
        if not isinstance(name, str) or not NAME.fullmatch(name):
            hint = ""
            if isinstance(name, bool):
                hint = "; YAML reads on, off, yes and no as true and false: quote it"
            elif isinstance(name, str) and ":" in name:
                hint = "; is there no space after its colon?"
            raise UserError(f"{key}: a name must be {ALLOWED_NAME}{hint}")
        if kind == "op" and operation_of(name) is None:
            raise UserError(f"{key}: must be one of {', '.join(OPERATIONS)}, with more words behind a _ if need be")
        if name in taken:
            raise UserError(f"{key}: the pipeline's own has this name; taken are {', '.join(sorted(taken))}")
        yield Subject(kind, name, **_places(given, key, ("use", *KINDS[kind])))


def _places(given: Any, key: str, allowed: tuple[str, ...]) -> dict[str, str]:
    places = given if isinstance(given, Mapping) else {"use": given}
    for name, place in places.items():
        if name not in allowed:
            raise UserError(f"{key}: unknown key {reprlib.repr(name)}: must be one of {', '.join(allowed)}")
        if not isinstance(place, str):
            raise UserError(f"{key}.{name} must be module:attribute or file.py:attribute, got {reprlib.repr(place)}")
    if "use" not in places:
        raise UserError(f"{key} has no use: name the implementation as module:attribute or file.py:attribute")
    return dict(places)
