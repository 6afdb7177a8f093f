"""Gather units alternately into two buffers, one unit ahead of use."""

from collections.abc import Iterable, Sequence

import torch

from pipeline.formulas.fsdp import BUFFERS_GATHERED
from pipeline.parallel.fsdp_units import Unit
from pipeline.parallel.lanes import Lane, Pending


class Turns:
    """Predict which unit is used next: the one that came next in the last pass of the same kind.

    A pass begins with a forward pass and includes all backward passes until the next one; its kind is with or without
    gradients. Before the first, units are expected in definition order and, with gradients, then in reverse.
    """

    def __init__(self, units: Sequence[Unit]):
        self._expected: dict[bool, list[Unit]] = {True: [*units, *reversed(units)], False: list(units)}
        self._seen: list[Unit] = []
        self._kind, self._position = True, 0

    def begin(self, with_gradients: bool) -> None:
        """Begin a pass."""
        if self._seen:
            self._expected[self._kind] = self._seen
        self._kind, self._seen, self._position = with_gradients, [], 0

    def after(self, unit: Unit) -> Unit | None:
        """Note that a unit is used; return the one expected next, or None if none is or this use was unexpected."""
        self._seen.append(unit)
        expected = self._expected[self._kind]
        try:
            self._position = expected.index(unit, self._position) + 1
        except ValueError:
            return None
        return expected[self._position] if self._position < len(expected) else None


class Slot:
    """A buffer in which units take turns; it has memory from `allocate()` to `free()`."""

    def __init__(self, units: Sequence[Unit], device: torch.device):
        nbytes = max((unit.nbytes for unit in units), default=0)
        self.buffer = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self._storage = self.buffer.untyped_storage()
        self.holder: Unit | None = None
        self._pending: list[Pending] = []
        for unit in units:
            unit.place_fulls(self.buffer[: unit.nbytes])
        self.free()

    def allocate(self) -> None:
        """Give the buffer memory, if it has none."""
        if self._storage.nbytes() < len(self.buffer):
            self._storage.resize_(len(self.buffer))

    def free(self) -> None:
        """Free the memory once nothing writes to it any more."""
        self.wait()
        self.holder = None
        self._storage.resize_(0)

    def hold(self, unit: Unit, pending: Iterable[Pending]) -> None:
        """Note that a unit is being gathered into the buffer."""
        self.holder, self._pending = unit, list(pending)

    def wait(self) -> None:
        """Let the computation wait for the gathering in progress."""
        for pending in self._pending:
            pending.wait()
        self._pending = []


class Gathering:
    """Gather each unit's full parameters into its buffer before it is used, and prefetch the next one's.

    Units alternate between two buffers, in definition order. A unit is gathered when the one before it is about to
    compute, after everything launched until then: so the unit two before it is done with the buffer.
    Autograd runs the operations of a backward pass in the reverse order of the forward pass, so this holds in both
    directions: once a unit is used, only that unit and forward passes in progress need its buffer.
    """

    def __init__(self, units: Sequence[Unit], lane: Lane, device: torch.device):
        self._lane, self._turns = lane, Turns(units)
        self._slots = [Slot(units[turn::BUFFERS_GATHERED], device) for turn in range(BUFFERS_GATHERED)]
        self._slot_of = {unit: self._slots[position % BUFFERS_GATHERED] for position, unit in enumerate(units)}
        self._current: Unit | None = None

    def begin(self) -> None:
        """Begin a forward pass: weights may have changed since the last one."""
        self._turns.begin(torch.is_grad_enabled())
        self._leave_current()
        for slot in self._slots:
            slot.wait()
            slot.holder = None
            slot.allocate()

    def end(self) -> None:
        """Free the buffers."""
        self._leave_current()
        for slot in self._slots:
            slot.free()

    def use(self, unit: Unit) -> None:
        """Give the unit's modules and the computation that follows the full parameters, and gather the next unit's.

        Raises RuntimeError if the buffer holds a unit whose forward pass is in progress.
        """
        unit.show(full=True)
        if unit is self._current:
            return
        self._leave_current()
        slot = self._slot_of[unit]
        if slot.holder is not unit:
            if slot.holder is not None and slot.holder.forwards:
                raise RuntimeError(
                    f"the unit of {unit.name} is used during the forward pass of that of {slot.holder.name}, but is no "
                    "part of it: let shard be true for a module that contains both"
                )
            self._gather(unit, slot)
        slot.wait()
        self._current = unit
        ahead = self._turns.after(unit)
        if ahead is not None and self._is_free_for(ahead, slot):
            self._gather(ahead, self._slot_of[ahead])

    def _leave_current(self) -> None:
        # In a backward pass it stays full until now, because parts of it may be recomputed.
        if self._current is not None and not self._current.forwards:
            self._current.show(full=False)
        self._current = None

    def _is_free_for(self, ahead: Unit, used: Slot) -> bool:
        """Tell whether a unit may be gathered now, while another one is used."""
        slot = self._slot_of[ahead]
        return slot is not used and slot.holder is not ahead and (slot.holder is None or not slot.holder.forwards)

    def _gather(self, unit: Unit, slot: Slot) -> None:
        slot.wait()  # for a unit that was prefetched but never used
        slot.allocate()
        slot.hold(unit, [self._lane.start(flat.gather, flat.fill, None) for flat in unit.flats])
