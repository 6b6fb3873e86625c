"""How much wall time a run may take, and how it is divided."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

CERTIFY_SHARE = 0.45
CERTIFY_AT_MOST_S = 300.0
CERTIFY_AT_LEAST_S = 45.0
CERTIFY_SHARE_OF_SHORT_RUNS = 0.6
TRIAL_SHARE = 0.25
TRIAL_AT_MOST_S = 45.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Wall time from now on. What certification needs is kept back from the search.

    `started` is on the clock of `time.monotonic`. A run that is resumed starts a budget of its own.
    """

    total_s: float
    started: float = field(default_factory=time.monotonic)

    def elapsed_s(self) -> float:
        """Seconds since the run started."""
        return time.monotonic() - self.started

    def left_s(self) -> float:
        """Seconds until the run has to end; never negative."""
        return max(0.0, self.total_s - self.elapsed_s())

    def search_left_s(self) -> float:
        """Seconds that the search may still take; never negative."""
        return max(0.0, self.left_s() - self.certify_s())

    def certify_s(self) -> float:
        """Seconds kept back for certification; short runs keep more, as one without a promise is worth nothing."""
        least = min(CERTIFY_AT_LEAST_S, CERTIFY_SHARE_OF_SHORT_RUNS * self.total_s)
        return min(max(CERTIFY_SHARE * self.total_s, least), CERTIFY_AT_MOST_S)

    def trial_s(self) -> float:
        """Seconds of load that one more trial may take."""
        return min(TRIAL_AT_MOST_S, TRIAL_SHARE * self.total_s, self.search_left_s())
