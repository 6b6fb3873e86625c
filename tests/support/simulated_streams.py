"""An endpoint of tokens in virtual time: `slots` replies at once, first come first served, with constant times."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from simulated_generator import SimulatedGenerator

from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.streams import STREAM_DTYPE
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan
from loadgen.status import CUT_OFF, OK
from loadgen.traffic.arrivals import schedule


@dataclass
class SimulatedStreams(SimulatedGenerator):
    """A reply holds a slot for `ttft_ms` and `tokens - 1` times `tpot_ms`. `cut_off` is the share without end.

    The first event brings `first_tokens` when the last of these is made.
    """

    slots: int = 16
    ttft_ms: float = 100.0
    tpot_ms: float = 10.0
    tokens: int = 41
    first_tokens: int = 1
    cut_off: float = 0.0
    cached: int = 0
    prompt: int = 10

    @property
    def reply_ms(self) -> float:
        return self.ttft_ms + (self.tokens - 1) * self.tpot_ms

    @property
    def capacity_per_s(self) -> float:
        """At more, the queue grows without end."""
        return self.slots / (self.reply_ms / 1e3)

    def _log(self, plan: LoadPlan | ClosedLoopPlan) -> RequestLog:
        assert isinstance(plan, LoadPlan)
        due = schedule(plan)  # with the tail, which keeps those before it under load
        start = self._starts(due)
        first = start + round((self.ttft_ms + (self.first_tokens - 1) * self.tpot_ms) * 1e6)
        done = start + round(self.reply_ms * 1e6)
        streams = np.zeros(len(due), STREAM_DTYPE)
        for name, value in {
            "first_ns": first,
            "last_ns": done,
            "longest_gap_ns": round(self.tpot_ms * 1e6),
            "tokens_in": self.prompt,
            "tokens_out": self.tokens,
            "cached_tokens": self.cached,
            "chunks": self.tokens,
            "tokens_first": self.first_tokens,
            "tokens_later": self.tokens - self.first_tokens,
            "finish": b"length",
        }.items():
            streams[name] = value
        cut = np.random.default_rng(plan.seed).random(len(due)) < self.cut_off
        log = RequestLog(
            scheduled_ns=due,
            sent_ns=due + 1000,
            done_ns=done,
            outcome=np.where(cut, CUT_OFF, OK).astype(np.uint8),
            streams=streams,
        )
        return log.between(0.0, plan.duration_s)

    def _starts(self, due: NDArray[np.int64]) -> NDArray[np.int64]:
        """With constant times, each slot gets every `slots`-th request."""
        reply_ns, start = round(self.reply_ms * 1e6), due.copy()
        for slot in range(self.slots):
            steps = np.arange(len(due[slot :: self.slots])) * reply_ns
            start[slot :: self.slots] = np.maximum.accumulate(due[slot :: self.slots] - steps) + steps
        return start
