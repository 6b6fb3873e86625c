"""Simulate machines whose speed has slow phases, with the long-run capacity of every configuration.

A machine does `speed` seconds of work per second. Arrivals are mapped to the work done until then, a queue of a
steady machine serves them there, and completions are mapped back: a slow phase slows every execution in progress.
It also stretches what passes in work: the queue delay, and the pauses of closed loops; both are short.

All machines serve a model like the demo's on two cores, some 5,600 requests/s under 50 ms at full speed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numba
import numpy as np
from engines import plain_engine
from fast_queue import batched_queue
from numpy.typing import NDArray
from simulated_bench import SimulatedBench, default_service_s, service_table_s
from true_rates import SCREENED_WITH, true_rate

from model_repo.spec import ServingConfig
from search.space import MachineLimits, SearchSpace, search_space

LIMIT_MS = 50.0
RECORDINGS = Path(__file__).parents[1] / "data" / "machine_speed"
RECORDING = RECORDINGS / "two_cores.csv"
"""The mean speed of two cores next to light work, 300 s in windows of RECORDED_WINDOW_S."""

BUSY = RECORDINGS / "busy_two_cores.csv"
"""The speed of two cores in a busy hour, 365 s with nine pauses of 25 to 65 ms: for how many ms, and the speed."""

BUSY_WINDOW_S = 0.005

RECORDED_WINDOW_S = 0.1
WINDOW_S = 0.05
PERIOD_S = 900.0
"""Speeds that are not recorded are drawn for so long and then repeat."""

MEAN_SPEED, NOISE = 0.98, 0.03
"""The speed between slow phases: its mean, and its standard deviation between windows."""

EVERY_S, LASTS_S, SLOW = (6.0, 60.0), (0.5, 4.0), (0.4, 0.8)
"""Drawn phases are within these; seconds are drawn log-uniformly."""

APART_S = 37.0
"""Search n begins so many seconds after search n - 1, so that each meets other phases of the same machine."""

RESOLUTION = 0.005
_QUANTILE = 0.99
_WORTH = 0.9  # configurations of at least so much of the best steady capacity may have the best of this machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Slow phases begin at random, one per `every_s`, last `lasts_s` in the mean, and have the speed `slow`."""

    every_s: float
    lasts_s: float
    slow: float


def drawn_phases(number: int) -> Phases:
    """Return phases number `number`; the same number gives the same phases."""
    rng = np.random.default_rng((53, number))
    every_s, lasts_s = (math.exp(rng.uniform(*np.log(bounds))) for bounds in (EVERY_S, LASTS_S))
    return Phases(every_s=every_s, lasts_s=lasts_s, slow=rng.uniform(*SLOW))


@numba.njit(cache=True)
def _work_until(time_s: NDArray[Any], window_s: float, work_s: NDArray[Any]) -> NDArray[np.float64]:
    """Return the work until each time, from the work until the end of each window; a tenth of numpy's seconds."""
    windows, done_s = len(work_s) - 1, np.empty(len(time_s))
    for number in range(len(time_s)):
        window = int(time_s[number] / window_s)
        before_s, after_s = work_s[window % windows], work_s[window % windows + 1]
        share = time_s[number] / window_s - window
        done_s[number] = window // windows * work_s[-1] + before_s + share * (after_s - before_s)
    return done_s


class Speed:
    """The speeds of successive windows, repeated for ever."""

    def __init__(self, windows: NDArray[Any], window_s: float) -> None:
        self.period_s = len(windows) * window_s
        self._window_s = window_s
        self._until_s = window_s * np.arange(len(windows) + 1)
        self._work_s = np.concatenate([[0.0], np.cumsum(windows * window_s)])

    def to_work(self, time_s: NDArray[Any]) -> NDArray[Any]:
        """Return the seconds of work done from 0 until these times."""
        return _work_until(time_s, self._window_s, self._work_s)

    def to_time(self, work_s: NDArray[Any]) -> NDArray[Any]:
        """Return the times at which so much work is done."""
        periods, rest_s = np.divmod(work_s, self._work_s[-1])
        return periods * self.period_s + np.interp(rest_s, self._work_s, self._until_s)


def speed_with(phases: Phases | None, *, seed: int, period_s: float = PERIOD_S) -> Speed:
    """Draw a speed with these slow phases; None: noise alone."""
    rng = np.random.default_rng(seed)
    begins_s = np.arange(0, period_s, WINDOW_S)
    windows = np.clip(rng.normal(MEAN_SPEED, NOISE, len(begins_s)), 0.8, 1.1)
    time_s = period_s if phases is None else rng.exponential(phases.every_s)
    while phases is not None and time_s < period_s:
        windows[(begins_s >= time_s) & (begins_s < time_s + rng.exponential(phases.lasts_s))] = phases.slow
        time_s += rng.exponential(phases.every_s)
    return Speed(windows, WINDOW_S)


def service_s(config: ServingConfig, batch_size: int) -> float:
    """Return the seconds of work of a batch if one instance is busy."""
    return 0.17 * default_service_s(config, batch_size)


@cache
def steady_rate(config: ServingConfig) -> float:
    """Return the capacity of a configuration at speed 1, from a short run."""
    return true_rate(config, service_s, limit_ms=LIMIT_MS, requests=SCREENED_WITH)


@cache
def model_space() -> SearchSpace:
    """Return the search space of all machines; no search reads the model file."""
    engine = plain_engine(files=(("model.onnx", Path(__file__)),), precision="fp32", device="cpu")
    return search_space((engine,), MachineLimits(cores=2, memory_bytes=2**36), limit_ms=LIMIT_MS)


@dataclass(kw_only=True)
class UnsteadyMachine:
    """A machine with its speed and, if they are known, its phases."""

    speed: Speed
    phases: Phases | None = None
    _capacity_per_s: dict[ServingConfig, float] = field(default_factory=dict)

    def bench(self, number: int = 0) -> UnsteadyBench:
        """Return the bench of search `number`."""
        return UnsteadyBench(service_s=service_s, limit_ms=LIMIT_MS, speed=self.speed, begins_s=APART_S * number)

    def capacity(self, config: ServingConfig) -> float:
        """Return the highest rate at which 99 % of all requests of a whole period are within the limit."""
        if config not in self._capacity_per_s:
            low = high = 1.1 * steady_rate(config)  # a short run's error, and a speed above 1, included
            while not self._meets(config, low):
                low, high = 0.7 * low, low
            while math.log(high / low) > RESOLUTION:
                middle = math.sqrt(low * high)
                low, high = (middle, high) if self._meets(config, middle) else (low, middle)
            self._capacity_per_s[config] = low
        return self._capacity_per_s[config]

    @cached_property
    def best_capacity(self) -> float:
        """The highest capacity; a configuration that cannot beat the best so far costs one simulated run."""
        configs = [model_space().config(knobs) for knobs in model_space().points()]
        configs.sort(key=steady_rate, reverse=True)
        best = 0.0
        for config in configs:
            worth = steady_rate(config) >= _WORTH * steady_rate(configs[0])
            if worth and self._meets(config, max(best, 1.0) * (1 + RESOLUTION)):
                best = self.capacity(config)
        return best

    def _meets(self, config: ServingConfig, rate_per_s: float) -> bool:
        arrivals_s = _unit(self.speed.period_s)[: int(rate_per_s * self.speed.period_s)] / rate_per_s
        delay_s, table_s = config.max_queue_delay_us / 1e6, service_table_s(config, service_s)
        work_s = batched_queue(self.speed.to_work(arrivals_s), service_s=table_s, delay_s=delay_s)
        due_s = self.speed.to_work(arrivals_s + LIMIT_MS / 1e3)
        return bool(np.mean(work_s > due_s) <= 1 - _QUANTILE)


@cache
def _unit(period_s: float) -> NDArray[Any]:
    """Return arrivals at 1/s, enough for 6,500/s over a period."""
    return np.cumsum(np.random.default_rng(5).exponential(1.0, int(6_500 * period_s)))


def unsteady_machine(name: str, number: int = 0) -> UnsteadyMachine:
    """Return the machine of a name: EVERY:LASTS:SLOW in seconds, seconds and a fraction of the speed; `recorded`;
    `busy`; `none` for noise alone; `drawn` for a machine of its own per number."""
    if name == "drawn":
        phases = drawn_phases(number)
        return UnsteadyMachine(speed=speed_with(phases, seed=number), phases=phases)
    return _machine_of(name)


@cache
def _machine_of(name: str) -> UnsteadyMachine:
    if name == "recorded":
        return UnsteadyMachine(speed=Speed(np.loadtxt(RECORDING, skiprows=1), RECORDED_WINDOW_S))
    if name == "busy":
        lasts_ms, speeds = np.loadtxt(BUSY, skiprows=1, unpack=True)
        windows = np.repeat(speeds, np.rint(lasts_ms / 1e3 / BUSY_WINDOW_S).astype(np.int64))
        return UnsteadyMachine(speed=Speed(windows, BUSY_WINDOW_S))
    phases = None
    if name != "none":
        every_s, lasts_s, slow = map(float, name.split(":"))
        phases = Phases(every_s=every_s, lasts_s=lasts_s, slow=slow)
    return UnsteadyMachine(speed=speed_with(phases, seed=1), phases=phases)


@dataclass
class UnsteadyBench(SimulatedBench):
    """A simulated bench at a speed; its load and its loading pass on the machine's clock from `begins_s` on."""

    speed: Speed = field(default_factory=lambda: Speed(np.ones(1), 1.0))
    begins_s: float = 0.0

    @property
    def _now_s(self) -> float:
        return self.begins_s + self.spent.load_s + self.spent.loading_s

    def _done(self, config: ServingConfig, arrivals: NDArray[Any], noise: NDArray[Any]) -> NDArray[Any]:
        now_s = self._now_s
        begins_s = self.speed.to_work(np.array([now_s]))
        work_s = super()._done(config, self.speed.to_work(now_s + arrivals) - begins_s, noise)
        return self.speed.to_time(begins_s + work_s) - now_s

    def _loop(
        self, config: ServingConfig, users: int, duration_s: float, noise: NDArray[Any], pauses_s: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any], list[tuple[int, float]]]:
        now_s = self._now_s
        begins_s, ends_s = self.speed.to_work(np.array([now_s, now_s + duration_s]))
        sent, done, executions = super()._loop(config, users, ends_s - begins_s, noise, pauses_s)
        sizes, taken_s = (np.array(column) for column in zip(*executions, strict=True))
        finish_s = done[np.cumsum(sizes) - 1]  # executions take requests in the order in which they were sent
        took_s = self.speed.to_time(begins_s + finish_s) - self.speed.to_time(begins_s + finish_s - taken_s)
        real = [self.speed.to_time(begins_s + work_s) - now_s for work_s in (sent, done)]
        return real[0], real[1], list(zip(sizes.tolist(), took_s.tolist(), strict=True))
