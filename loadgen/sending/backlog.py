"""The rule by which a load is stopped because the server falls behind."""

from __future__ import annotations

from collections import deque

_RISE_NS = 1_000_000_000
_BACKLOG_MIN = 8


class BacklogRule:
    """The server is overloaded if over 3 x rate x limit are in flight, and rising for a second.

    A queue that grows without end passes 3 x rate x limit; a burst passes it too, but falls again. "Rising"
    means that each third of the last second saw more in flight, on average, than the third before.
    """

    def __init__(self, *, rate_per_s: float, limit_ms: float) -> None:
        self._threshold = max(_BACKLOG_MIN, 3.0 * rate_per_s * limit_ms / 1e3)
        self._seen: deque[tuple[int, int]] = deque()

    def overloaded(self, now_ns: int, in_flight: int) -> bool:
        """Take the number in flight now. True if the server is overloaded. Call about every 50 ms."""
        seen = self._seen
        seen.append((now_ns, in_flight))
        while seen[0][0] < now_ns - _RISE_NS:
            seen.popleft()
        if in_flight <= self._threshold or now_ns - seen[0][0] < 0.9 * _RISE_NS or len(seen) < 6:
            return False
        if min(count for _, count in seen) <= self._threshold:
            return False
        counts = [count for _, count in seen]
        third = len(counts) // 3
        first, middle, last = counts[:third], counts[third:-third], counts[-third:]
        return _mean(first) < _mean(middle) < _mean(last)


def _mean(counts: list[int]) -> float:
    return sum(counts) / len(counts)
