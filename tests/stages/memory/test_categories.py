from pipeline.instruments.memory.recording import Identity, Recording
from pipeline.instruments.memory.replay import replay
from pipeline.instruments.memory.snapshot import Frame, MemoryEvent
from pipeline.stages.memory.categories import FORWARD_CODE, classify

OURS = Frame(str(FORWARD_CODE), 60, "forward")


def alloc(address, *frames):
    return MemoryEvent(True, address, 100 * address, frames)


def free(address):
    return MemoryEvent(False, address, 100 * address)


# One parameter, two steps; addresses name what they hold.
PARAMETER, GRADIENT, MOMENT, SAVED, PASSING, WORKSPACE, BATCH, RECOMPUTED, ROOT = range(1, 10)
STEPS = {
    "build": [alloc(PARAMETER), alloc(BATCH)],
    "forward": [alloc(PASSING, OURS), alloc(SAVED, OURS), free(PASSING), alloc(WORKSPACE, OURS)],
    "backward": [
        *(alloc(PASSING), alloc(RECOMPUTED, OURS), free(PASSING)),
        *(alloc(GRADIENT), free(SAVED), free(RECOMPUTED)),
    ],
    "optimizer": [alloc(MOMENT), alloc(ROOT), free(ROOT), free(GRADIENT)],
    "forward again": [alloc(PASSING, OURS), alloc(SAVED, OURS), free(PASSING)],
}
EXPECTED = {
    PARAMETER: ["parameters"],
    GRADIENT: ["gradients"],
    MOMENT: ["optimizer_state"],
    SAVED: ["activations", "activations"],  # what a forward pass leaves behind
    PASSING: ["temporaries"] * 3,  # gone when its phase ends, each time its address is used
    ROOT: ["temporaries"],
    RECOMPUTED: ["activations"],  # made in the backward pass by the code of the forward pass
    WORKSPACE: ["other"],  # stays from step to step
    BATCH: ["other"],
}


def test_allocations_are_classified_by_tensor_or_by_phase_and_lifetime():
    events, phases, identified_at = [], [], {}
    for name, part in STEPS.items():
        phases.append((name.split()[0], len(events)))
        events += part
        identified_at[name] = len(events)
    owners = [
        Identity("parameters", identified_at["build"], frozenset([PARAMETER])),
        # Before the optimizer drops them.
        Identity("gradients", identified_at["backward"], frozenset([GRADIENT])),
        Identity("optimizer_state", identified_at["optimizer"], frozenset([MOMENT])),
    ]
    allocations = replay(events)
    categories = classify(allocations, Recording(events, [*phases, ("end", len(events))], owners))
    by_address = {}
    for made in allocations:
        by_address.setdefault(made.address, []).append(categories[made])
    assert by_address == EXPECTED


def test_an_owner_has_its_address_only_while_it_lives_and_earlier_memory_has_no_phase():
    for events, phases, identities, expected in (
        ([alloc(1), free(1), alloc(1), free(1)], [("build", 0)], [1], ["temporaries", "parameters"]),
        ([free(7), alloc(1)], [("forward", 0), ("end", 2)], [], ["temporaries", "activations"]),
    ):
        allocations = replay(events)
        owners = [Identity("parameters", 3, frozenset([address])) for address in identities]
        categories = classify(allocations, Recording(events, phases, owners))
        assert [categories[made] for made in allocations] == expected
