"""Measure energy, clock and throttling of the GPUs over a stretch of timed steps.

NVML is read between steps by the timing thread: a second thread would take the GIL from the one that launches.
Throttling that ends before the last step is still seen.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean
from time import perf_counter

import pynvml

from pipeline.instruments.machine.gpu_state import slowdowns_among, throttle_reasons
from pipeline.instruments.machine.gpus import ask, visible_gpus

POLL_S = 0.02
# The energy counter updates every 100 ms on an H200, so the energy of 1 s is known to 4%, that of 4 s to 1%.
LEAST_ENERGY_S = 1.0
POWER_CAP, CAPPED_TIME = "sw_power_cap", pynvml.NVML_FI_DEV_PERF_POLICY_POWER
# A stretch counts as capped if the power limit held the clock down for at least this share of it.
CAPPED_SHARE = 0.01


@dataclass(frozen=True)
class Power:
    """Readings over a stretch of steps; None for what NVML does not report.

    energy_j: per step, all GPUs together, idle moments between steps included; None for less than a second of steps.
    sm_clock_mhz: the mean over the stretch, of the slowest GPU. power_capped: whether the power limit held a clock down
    for 1% of the stretch or more. slowdowns: the throttle reasons seen that make values untrustworthy.
    """

    energy_j: float | None = None
    sm_clock_mhz: float | None = None
    power_capped: bool | None = None
    slowdowns: tuple[str, ...] = ()


class PowerWatch:
    """Watch the visible GPUs, or the one with this index among them, from now on."""

    def __init__(self, index: int | None = None) -> None:
        gpus = [gpu for gpu in visible_gpus() if gpu.handle is not None]
        self._gpus = gpus if index is None else gpus[index : index + 1]
        self._clocks_mhz: list[list[float]] = [[] for _ in self._gpus]
        self._reasons: set[str] | None = None
        self._energy_before_j, self._capped_before_s = self._energy_j(), self._capped_s()
        self._began_s = self._polled_s = perf_counter()

    def poll(self) -> None:
        """Read clocks and throttle reasons, fifty times a second at most; call it after each step."""
        if self._gpus and perf_counter() - self._polled_s >= POLL_S:
            self._read()

    def over(self, steps: int) -> Power:
        """Return what was seen since the start, over this many steps."""
        if not self._gpus:
            return Power()
        seconds, energy_after_j = perf_counter() - self._began_s, self._energy_j()
        self._read()
        energy_j = None
        if seconds >= LEAST_ENERGY_S and self._energy_before_j is not None and energy_after_j is not None:
            energy_j = (energy_after_j - self._energy_before_j) / steps
        return Power(
            energy_j=energy_j,
            sm_clock_mhz=min((fmean(clocks) for clocks in self._clocks_mhz if clocks), default=None),
            power_capped=self._is_capped(seconds),
            slowdowns=tuple(slowdowns_among(self._reasons or ())),
        )

    def _is_capped(self, seconds: float) -> bool | None:
        """Decide by the driver's own count of capped time, or without one by what was seen between steps."""
        capped_s = [
            after - before
            for before, after in zip(self._capped_before_s, self._capped_s(), strict=True)
            if before is not None and after is not None
        ]
        if capped_s:
            return max(capped_s) >= CAPPED_SHARE * seconds
        return None if self._reasons is None else POWER_CAP in self._reasons

    def _read(self) -> None:
        for gpu, clocks_mhz in zip(self._gpus, self._clocks_mhz, strict=True):
            clock_mhz = ask(pynvml.nvmlDeviceGetClockInfo, gpu.handle, pynvml.NVML_CLOCK_SM)
            if clock_mhz is not None:
                clocks_mhz.append(clock_mhz)
            reasons = throttle_reasons(gpu)
            if reasons is not None:
                self._reasons = (self._reasons or set()) | set(reasons)
        self._polled_s = perf_counter()

    def _energy_j(self) -> float | None:
        energies_mj = [ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, gpu.handle) for gpu in self._gpus]
        return None if None in energies_mj else sum(energies_mj) / 1e3

    def _capped_s(self) -> list[float | None]:
        """Return the seconds for which the power limit has held each GPU's clock down since the driver started."""
        answers = [ask(pynvml.nvmlDeviceGetFieldValues, gpu.handle, [CAPPED_TIME]) for gpu in self._gpus]
        values = [answer[0] if answer else None for answer in answers]
        return [value.value.ullVal / 1e9 if value and value.nvmlReturn == 0 else None for value in values]


def pooled_power(stretches: Iterable[Power]) -> Power:
    """Combine stretches of equally many steps: means of energy and clock (None if one lacks it), and all slowdowns."""
    found = list(stretches)
    energies_j, clocks_mhz = [each.energy_j for each in found], [each.sm_clock_mhz for each in found]
    return _joined(found, _of_all(fmean, energies_j), _of_all(fmean, clocks_mhz))


def power_of_ranks(ranks: Iterable[Power]) -> Power:
    """Combine the GPUs of ranks that ran the same steps: total energy, slowest clock, capped if any was."""
    found = list(ranks)
    slowest_mhz = min((each.sm_clock_mhz for each in found if each.sm_clock_mhz is not None), default=None)
    return _joined(found, _of_all(sum, [each.energy_j for each in found]), slowest_mhz)


def _joined(found: list[Power], energy_j: float | None, sm_clock_mhz: float | None) -> Power:
    capped = [each.power_capped for each in found if each.power_capped is not None]
    slowdowns = slowdowns_among({reason for each in found for reason in each.slowdowns})
    return Power(energy_j, sm_clock_mhz, any(capped) if capped else None, tuple(slowdowns))


def _of_all(join: Callable[[list[float]], float], values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return join(known) if known and len(known) == len(values) else None
