"""Parameter groups of an optimizer: their hyperparameters, and a description that ranks compare."""

from typing import Any

from torch import Tensor

from pipeline.parallel.replicas import describe

Group = dict[str, Any]

# Keys of a parameter group that are not hyperparameters.
MEMBERS = ("params", "param_names")


def hyperparameters(group: Group) -> Group:
    """Return a group's hyperparameters."""
    return {name: value for name, value in group.items() if name not in MEMBERS}


def copy_hyperparameters(sources: list[Group], targets: list[Group]) -> None:
    """Copy the hyperparameters of each source group to the target group at the same position."""
    for source, target in zip(sources, targets, strict=True):
        target.update(hyperparameters(source))


def describe_group(position: int, group: Group) -> list[str]:
    """Describe what the ranks must agree on: one line for the size, one per hyperparameter, one per parameter."""
    name, parameters = f"group {position}", group["params"]
    values = sorted(hyperparameters(group).items())
    return [
        f"{name}: {len(parameters)} parameters",
        *(f"{name}: {key} = {_in_words(value)}" for key, value in values),
        *describe((f"{name}, parameter {index}", parameter) for index, parameter in enumerate(parameters)),
    ]


def _in_words(value: Any) -> str:
    """Describe a value in words that are the same on every rank: no addresses, no devices."""
    if isinstance(value, Tensor):
        return str(value.tolist())
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_in_words, value))})"
    if value is None or isinstance(value, bool | int | float | complex | str):
        return repr(value)
    return f"a {type(value).__name__}"
