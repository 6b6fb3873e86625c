"""The wall time of a run, and how it is divided."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

CERTIFY_SHARE = 0.45
CERTIFY_MAX_S = 300.0
CERTIFY_MIN_S = 45.0
CERTIFY_SHARE_OF_SHORT_RUNS = 0.6
"""Certification keeps 45 % of the time that it shares with the search: at most 300 s, and at least 45 s or, in a
short run, 60 % of that time."""

MAX_CERTIFY_SHARE = 0.7
"""At low rates certification takes longer. It then keeps what it is likely to need, but at most 70 %."""

TRIAL_SHARE = 0.25
TRIAL_MAX_S = 45.0
FIRST_TRIAL_SHARE = 0.5
"""A trial takes at most 25 % of the time of search and certification, and at most 45 s. A trial that is made in
any case takes at most half of the time that is left."""


@dataclass(slots=True, kw_only=True)
class Budget:
    """Wall time from now on, of which a part is kept for certification.

    `clock` returns seconds; `started` is a time of this clock, None for now. A resumed run starts a budget of its
    own. `certify_needs_s` is the time that certification is likely to take at the rates found so far.
    `prepared_s` is the time that had passed when the search began: search and certification divide the rest.
    `searched_s` is the time that the search took until certification began.
    """

    total_s: float
    clock: Callable[[], float] = time.monotonic
    started: float | None = None
    certify_needs_s: float = 0.0
    prepared_s: float = field(default=0.0, init=False)
    searched_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if self.started is None:
            self.started = self.clock()

    def begin_search(self) -> None:
        """Record that the preparation ends now."""
        self.prepared_s = min(self.elapsed_s(), self.total_s)

    def begin_certification(self) -> None:
        """Record that the search ends now."""
        self.searched_s = self.elapsed_s() - self.prepared_s

    def elapsed_s(self) -> float:
        """Return the seconds since the run started."""
        assert self.started is not None
        return self.clock() - self.started

    def left_s(self) -> float:
        """Return the seconds until the run has to end; never negative."""
        return max(0.0, self.total_s - self.elapsed_s())

    def search_left_s(self) -> float:
        """Return the seconds that the search may still take; never negative."""
        return max(0.0, self.left_s() - self.certify_s())

    def certify_s(self) -> float:
        """Return the seconds kept for certification; short runs and those at low rates keep a larger share."""
        divided_s = self.total_s - self.prepared_s
        least = min(CERTIFY_MIN_S, CERTIFY_SHARE_OF_SHORT_RUNS * divided_s)
        usual_s = min(max(CERTIFY_SHARE * divided_s, least), CERTIFY_MAX_S)
        return max(usual_s, min(self.certify_needs_s, MAX_CERTIFY_SHARE * divided_s))

    def trial_s(self) -> float:
        """Return the seconds of load that one more trial may take."""
        return min(self._most_s(), self.search_left_s())

    def first_trial_s(self) -> float:
        """Return the same for a trial that is made in any case, which must not use all the time that is left."""
        return self.trial_s() or min(self._most_s(), FIRST_TRIAL_SHARE * self.left_s())

    def _most_s(self) -> float:
        return min(TRIAL_MAX_S, TRIAL_SHARE * (self.total_s - self.prepared_s))
