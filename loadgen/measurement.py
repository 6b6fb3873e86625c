"""What a load run saw: every request's times, and the figures drawn from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestLog:
    """The times of n requests, in ns since the run's start, in the order of their schedule.

    `scheduled_ns` is when the plan wanted the request to leave, `sent_ns` when its first byte was given to the
    kernel, `done_ns` when the whole answer was there or the request was given up. `outcome` is 0 for an answer
    and the number of the kind of failure otherwise. All of shape (n,).
    """

    scheduled_ns: NDArray[np.int64]
    sent_ns: NDArray[np.int64]
    done_ns: NDArray[np.int64]
    outcome: NDArray[np.uint8]

    @property
    def failed(self) -> NDArray[np.bool_]:
        """Which requests got no usable answer, shape (n,)."""
        return np.not_equal(self.outcome, 0)

    @property
    def latency_ns(self) -> NDArray[np.int64]:
        """Completion minus *scheduled* time, shape (n,): what a user who did not wait for others saw."""
        return self.done_ns - self.scheduled_ns

    @property
    def send_lag_ns(self) -> NDArray[np.int64]:
        """Actual minus scheduled send time, shape (n,): the client's own delay."""
        return self.sent_ns - self.scheduled_ns
