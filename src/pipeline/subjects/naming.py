"""Read the user's implementations, by kind and name, from the configuration and commands, without importing them."""

import json
import re
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.errors import UserError
from pipeline.subjects.files import check_location, defined_names, digest

# Each kind, with the further functions that an implementation of it may have.
KINDS: dict[str, tuple[str, ...]] = {
    "attention": (),
    "ddp": ("before_batch", "after_backward"),
    "fsdp": ("after_backward", "gather"),
    "optimizer": (),
    "model": (),
    "op": (),
}
# The operations between a transformer's matrix products. An implementation of kind `op` is named after one of them.
OPERATIONS = ("rms_norm", "rotary", "swiglu", "linear_cross_entropy", "adamw")
# Allowed names: they become part of tables, figures and pages.
NAME = re.compile(r"[a-z0-9_]{1,32}")
ALLOWED_NAME = "text of at most 32 of a-z, 0-9 and _"
# The adapters through which assignment 2 of CS336, editions 2024 to 2026, tests a student's work: tests/adapters.py of
# github.com/stanford-cs336/assignment2-systems, with a function for each part of the assignment. Those for RMSNorm, in
# the edition of 2024, are not read.
# Functions without arguments that return the autograd function.
ATTENTION_GETTERS = ("get_flashattention_autograd_function_pytorch", "get_flashattention_autograd_function_triton")
# By kind and name: the function that makes the implementation, and the further functions to call.
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
    """A user's implementation.

    use: its place, `package.module:attribute` or `file.py:attribute`. The rest are places of functions, "" for none:
    before_batch and after_backward take (wrapper, optimizer); gather takes (wrapper) and returns parameters by name.
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
    """How a stage measures the user's implementations, declared in its cell.py as SUBJECTS.

    kind: the kind that it measures. whole: column values of the rows that are ranked. apart: implementations that are
    not ranked. first: axis values of the problem that is reported first; exercise: the assignment's name for that
    problem, if it has one. pipelines: the name to rank the pipeline's own implementation by, if its rows have no
    `impl`; the user's then appear only in the ranking. apart_by: columns whose values make separate problems.
    """

    kind: str
    whole: Mapping[str, Any]
    apart: tuple[str, ...] = ()
    first: Mapping[str, Any] = field(default_factory=dict)
    exercise: str = ""
    pipelines: str = ""
    apart_by: tuple[str, ...] = ()


def operation_of(name: str) -> str | None:
    """Return the operation that a name begins with: `rms_norm` for `rms_norm_v2`; None if there is none."""
    return next((each for each in OPERATIONS if name == each or name.startswith(f"{each}_")), None)


def read(asked: Any, where: str, taken: Mapping[str, Iterable[str]]) -> tuple[Subject, ...]:
    """Read subjects: a mapping of kinds to names to places, or the path of a file with the course's adapters.

    where: the source of the value; taken: the pipeline's own names, by kind. Raises UserError, one line.
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
    """Return a line that says which of the course's adapters a file has and lacks; nothing if `asked` is not a file."""
    if not isinstance(asked, str):
        return []
    names = {(each.kind, each.name) for each in subjects}
    has, lacks = (
        ", ".join(functions["use"] for key, functions in ADAPTERS.items() if (key in names) == is_there)
        for is_there in (True, False)
    )
    return [f"{asked} has {has}" + (f"; it has no {lacks}" if lacks else "")]


def words(subjects: Iterable[Subject]) -> list[str]:
    """Return the command-line option for these subjects: `--subjects` and a value for `read`, or nothing."""
    asked: dict[str, dict[str, Any]] = {}
    for subject in subjects:
        given = {key: place for key, place in asdict(subject).items() if place and key not in ("kind", "name")}
        asked.setdefault(subject.kind, {})[subject.name] = given if len(given) > 1 else subject.use
    return ["--subjects", json.dumps(asked)] if asked else []


def facts(subjects: Iterable[Subject]) -> list[dict[str, str]]:
    """Return what a record stores about subjects, with digests of their source; raises UserError if one is gone."""
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
        example = f"such as {{mine: {named if isinstance(named, str) else 'my_file.py:name'}}}"
        raise UserError(f"{where}: {kind} must be a mapping of names to places, {example}, got {reprlib.repr(named)}")
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
