"""How much wall time a run may take, and how it is divided."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CERTIFY_SHARE = 0.45
CERTIFY_AT_MOST_S = 300.0
CERTIFY_AT_LEAST_S = 45.0
CERTIFY_SHARE_OF_SHORT_RUNS = 0.6
TRIAL_SHARE = 0.25
TRIAL_AT_MOST_S = 45.0
FIRST_TRIAL_SHARE = 0.5

MADE_UP_AT_MOST = 0.5
MADE_UP_AT_LEAST = 0.05
"""Of the budget, how far it is extended, and from how much lost time on: it is done once, so not for a moment."""


@dataclass(slots=True, kw_only=True)
class Budget:
    """Wall time from now on. What certification needs is kept back from the search.

    `clock` gives seconds, and `started` is on it: None for now. A run that is resumed starts a budget of its own.
    `prepared_s` is what was gone when the search began: search and certification divide the rest.
    """

    total_s: float
    clock: Callable[[], float] = time.monotonic
    started: float | None = None
    prepared_s: float = field(default=0.0, init=False)
    made_up_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if self.started is None:
            self.started = self.clock()

    def begin_search(self) -> None:
        """The preparation ends now."""
        self.prepared_s = min(self.elapsed_s(), self.total_s)

    def make_up(self, lost_s: float) -> float:
        """Extend it by what was lost, once and by half at most; returns the seconds, 0.0 where it was not."""
        if self.made_up_s or lost_s < MADE_UP_AT_LEAST * self.total_s:
            return 0.0
        self.made_up_s = min(lost_s, MADE_UP_AT_MOST * self.total_s)
        self.total_s += self.made_up_s
        return self.made_up_s

    def elapsed_s(self) -> float:
        """Seconds since the run started."""
        assert self.started is not None
        return self.clock() - self.started

    def left_s(self) -> float:
        """Seconds until the run has to end; never negative."""
        return max(0.0, self.total_s - self.elapsed_s())

    def search_left_s(self) -> float:
        """Seconds that the search may still take; never negative."""
        return max(0.0, self.left_s() - self.certify_s())

    def certify_s(self) -> float:
        """Seconds kept back for certification; short runs keep more, as one without a promise is worth nothing."""
        divided_s = self.total_s - self.prepared_s
        least = min(CERTIFY_AT_LEAST_S, CERTIFY_SHARE_OF_SHORT_RUNS * divided_s)
        return min(max(CERTIFY_SHARE * divided_s, least), CERTIFY_AT_MOST_S)

    def trial_s(self) -> float:
        """Seconds of load that one more trial may take."""
        return min(self._most_s(), self.search_left_s())

    def first_trial_s(self) -> float:
        """The same for a trial that is made whatever is left, and is not to use all of it."""
        return self.trial_s() or min(self._most_s(), FIRST_TRIAL_SHARE * self.left_s())

    def _most_s(self) -> float:
        return min(TRIAL_AT_MOST_S, TRIAL_SHARE * (self.total_s - self.prepared_s))
