"""Measure a health cell: each GPU alone, each pair's link, all GPUs at once, and NVML's readings meanwhile."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import torch

from pipeline.errors import Skipped
from pipeline.instruments.machine.gpu_health import HealthReader
from pipeline.instruments.machine.gpus import Gpu, describe_links, visible_gpus
from pipeline.instruments.memory.out_of_memory import free_memory, is_out_of_memory
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.stages.health.cell import LOADS, WORKS, Cell, Settings
from pipeline.stages.health.load import Copies, Products, Timed, keep_at_work, numbers

Row = dict[str, Any]
Made = Products | Copies

POLL_S = 0.25
# Long enough for the GPUs to leave their idle state.
LINK_WARM_S = 0.05
# NVML reports the load of up to the last second, which may be that of the previous cell.
IDLE_READINGS, IDLE_APART_S = 5, 0.4
# Errors counted from the start of this measurement on.
SINCE = ("nvlink_replays", "nvlink_recoveries", "nvlink_crc_errors")


@dataclass
class Card:
    """One GPU: its columns in rows, its device, its NVML reader, and what was read before anything ran."""

    key: Row
    gpu: Gpu
    device: torch.device
    reader: HealthReader
    before: Row = field(default_factory=dict)


def measure(_cell: Cell, settings: Settings, stopwatch: Stopwatch) -> list[Row]:
    """Return a row per GPU, one per GPU, work and load, and one per link and direction.

    Raises Skipped without an NVIDIA GPU, because NVML reports the state of no others.
    """
    gpus = [gpu for gpu in visible_gpus() if gpu.handle is not None]
    if not gpus:
        raise Skipped("needs an NVIDIA GPU, none present")
    cards = [_card(place, gpu) for place, gpu in enumerate(gpus)]
    with stopwatch.measuring():
        _read_before(cards)
        alone = [_rate(card, work, settings) for card in cards for work in WORKS]
        links = [_link(*pair, settings) for pair in permutations(cards, 2)]
        together = [row for work in WORKS for row in _at_once(cards, work, settings)]
        return [*map(_gpu_row, cards), *alone, *together, *links]


def _card(place: int, gpu: Gpu) -> Card:
    key = {"gpu_index": place if gpu.index is None else gpu.index, "uuid": gpu.id, "model": gpu.name}
    return Card(key, gpu, torch.device("cuda", place), HealthReader(gpu.handle))


def _read_before(cards: Sequence[Card]) -> None:
    """Read the counters, and the least load of two seconds: a GPU that is busy now is used by another process."""
    loads: list[list[int]] = [[] for _ in cards]
    for _ in range(IDLE_READINGS):
        time.sleep(IDLE_APART_S)
        for card, seen in zip(cards, loads, strict=True):
            load = card.reader.utilization_percent()
            seen.extend([] if load is None else [load])
    for card, seen in zip(cards, loads, strict=True):
        card.before = card.reader.counters() | {"utilization_before_pct": min(seen, default=None)}


def _rate(card: Card, work: str, settings: Settings) -> Row:
    """Measure one GPU by itself."""
    [row] = _rates([card], work, LOADS[0], settings, settings.alone_s, _polling([card]))
    return row


def _at_once(cards: Sequence[Card], work: str, settings: Settings) -> list[Row]:
    """Measure all GPUs at once; the works share the time equally."""
    return _rates(cards, work, LOADS[1], settings, settings.together_s / len(WORKS), _polling(cards))


def _polling(cards: Sequence[Card]) -> Callable[[], None]:
    """Return a function that reads these GPUs every POLL_S, but not at once: a GPU takes a while to leave idle."""
    polled_s = time.perf_counter()

    def poll() -> None:
        nonlocal polled_s
        if time.perf_counter() - polled_s >= POLL_S:
            for card in cards:
                card.reader.poll()
            polled_s = time.perf_counter()

    return poll


def _rates(
    cards: Sequence[Card], work: str, load: str, settings: Settings, seconds: float, poll: Callable[[], None]
) -> list[Row]:
    rows: list[Row] = [{"kind": "rate", **card.key, "work": work, "load": load} for card in cards]
    try:
        _work(list(zip(cards, rows, strict=True)), work, settings, seconds, poll)
    finally:
        free_memory()
    return rows


def _work(
    rows: Sequence[tuple[Card, Row]], work: str, settings: Settings, seconds: float, poll: Callable[[], None]
) -> None:
    """Run the work on these GPUs at the same time, and complete their rows."""
    at_work: list[tuple[Row, Made, Timed]] = []
    for card, row in rows:
        with _or_oom(row):
            made = _made(work, card.device, settings)
            at_work.append((row, made, Timed(card.device, made.call)))
    keep_at_work([timed for _, _, timed in at_work], seconds, poll)
    for row, made, timed in at_work:
        row |= _outcome(made, timed) | {"size": settings.side if work == "matmul" else settings.memory_bytes}


def _made(work: str, device: torch.device, settings: Settings) -> Made:
    if work == "matmul":
        return Products(device, settings.side)
    source = numbers(device, settings.memory_bytes)
    return Copies(source, torch.empty_like(source))


def _link(source: Card, target: Card, settings: Settings) -> Row:
    """Measure copies from one GPU to another, the other direction idle."""
    row: Row = {
        "kind": "link",
        **source.key,
        "peer_index": target.key["gpu_index"],
        "path": describe_links([source.gpu, target.gpu]),
        "is_direct": torch.cuda.can_device_access_peer(source.device, target.device),
    }
    with _or_oom(row):
        sent = numbers(source.device, settings.link_bytes)
        copies = Copies(sent, torch.empty_like(sent, device=target.device))
        timed = Timed(source.device, copies.call, warm_s=LINK_WARM_S)
        keep_at_work([timed], settings.link_s)
        row |= _outcome(copies, timed) | {"size": settings.link_bytes}
    free_memory()
    return row


def _outcome(made: Made, timed: Timed) -> Row:
    if made.is_wrong():
        return {"status": "wrong", "reason": "two runs on the same numbers differ"}
    return {"status": "ok", "calls": timed.calls, "samples_ms": timed.samples_ms}


@contextmanager
def _or_oom(row: Row) -> Iterator[None]:
    """Mark a row as out of memory if its tensors do not fit: another process may hold the memory of one GPU."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        row |= {"status": "oom", "reason": str(error).splitlines()[0]}


def _gpu_row(card: Card) -> Row:
    """Return NVML's readings of a GPU now; its link errors are counted since `before`."""
    after = card.reader.counters()
    grown = {
        name: None if after[name] is None or card.before[name] is None else after[name] - card.before[name]
        for name in SINCE
    }
    absent = [f"{name}: {reason}" for name, reason in sorted(card.reader.absent.items())]
    return {
        "kind": "gpu",
        **card.key,
        "status": "ok",
        **card.before,
        **after,
        **grown,
        **card.reader.under_load(),
        "absent": absent,
    }
