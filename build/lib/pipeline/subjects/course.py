"""The adapters by which assignment 2 of CS336 tests a student's work, in its editions of 2024 to 2026.

A file of adapters has a function for each part of the assignment; that of 2024 has others too, of RMSNorm, which are
not read. Source: tests/adapters.py of github.com/stanford-cs336/assignment2-systems.
"""

from collections.abc import Collection

from pipeline.errors import UserError

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


def adapters(file: str, defined: Collection[str], where: str) -> dict[str, dict[str, dict[str, str]]]:
    """Return the subjects of a file of adapters that defines these names, as the configuration would spell them.

    Raises UserError where the file has none of the course's adapters.
    """
    found: dict[str, dict[str, dict[str, str]]] = {}
    for (kind, name), functions in ADAPTERS.items():
        if functions["use"] in defined:
            places = {key: f"{file}:{function}" for key, function in functions.items() if function in defined}
            found.setdefault(kind, {})[name] = places
    if not found:
        known = ", ".join(functions["use"] for functions in ADAPTERS.values())
        raise UserError(f"{where}: {file} has none of the course's adapters, which are {known}")
    return found


def told(file: str, names: Collection[tuple[str, str]]) -> str:
    """Say which of the course's adapters a file has, by the kinds and names of its subjects, and which it has not."""
    has, lacks = (
        ", ".join(functions["use"] for key, functions in ADAPTERS.items() if (key in names) == is_there)
        for is_there in (True, False)
    )
    return f"{file} has {has}" + (f"; it has no {lacks}" if lacks else "")
