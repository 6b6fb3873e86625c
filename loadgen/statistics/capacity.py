"""What is known of a server's capacity, the highest rate that keeps the latency limit: a posterior on a grid.

This is threshold estimation as in psychophysics (Watson & Pelli 1983, QUEST; Kontsevich & Tyler 1999, the psi
method): the stimulus is the rate, the threshold is the capacity, and the response is the share of late requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from loadgen.statistics.dependence import ONE_SIDED_95
from loadgen.statistics.probe import ProbeResult
from loadgen.statistics.sequential import bursts_needed

Floats = NDArray[np.float64]

CAUTION = 0.5
"""Reported rates are 0.5 standard errors below the estimate."""


def bounds(rate_per_s: float, error: float) -> tuple[float, float]:
    """Return bounds of a rate that each hold with 95 %; `error` is the standard error of ln(rate)."""
    factor = math.exp(ONE_SIDED_95 * error)
    return rate_per_s / factor, rate_per_s * factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """How the share of late requests depends on the rate, before anything is seen."""

    spread: float = 2.0
    """The capacity is Laplace distributed around the first guess, in ln: if all rates up to one were met, half of
    what is left is above 4 times (e ^ (2 ln 2)) that rate."""

    steepest: float = 128.0
    """The share of late requests grows with the rate to a power between 1 and this."""

    power_spread: float = 1.0
    """ln(power) is normal with this deviation around that of an M/M/1 queue at capacity: the requests that arrive
    within the limit."""

    saturated: float = 0.3
    """An overloaded server shows its throughput. ln(throughput / capacity) is exponential with this mean."""

    answers_all: float = 0.95
    """A server that answers this share of the rate is not saturated."""

    lapse: float = 0.01
    """The probability that a run shows something else: the machine stood still for a moment, a burst was luck."""

    estimate_fails: float = 0.05
    """The probability that an estimate by other means is wrong by more than its error."""

    span: float = 14.0
    step: float = 0.005
    """The grid reaches so far to both sides of the first guess, in ln, in such steps."""

    powers: int = 12


USUAL_RESPONSE = Response()


@dataclass(frozen=True, kw_only=True, eq=False)
class Capacity:
    """A distribution of ln(capacity), and of the power with which the share of late requests grows."""

    ln_rates: Floats  # (rates,)
    powers: Floats  # (powers,)
    log_weights: Floats  # (powers, rates), not normalized
    response: Response = USUAL_RESPONSE

    @classmethod
    def guessed(cls, rate_per_s: float, limit_s: float, response: Response = USUAL_RESPONSE) -> Capacity:
        """Return what is known before any load, from a guess."""
        ln_rates = math.log(rate_per_s) + np.arange(-response.span, response.span, response.step)
        powers = np.geomspace(1.0, response.steepest, response.powers)
        usual = np.clip(ln_rates + math.log(limit_s), 0.0, math.log(response.steepest))
        prior = -np.abs(ln_rates - math.log(rate_per_s)) / response.spread
        prior = prior - ((np.log(powers)[:, None] - usual) / response.power_spread) ** 2 / 2
        return cls(
            ln_rates=ln_rates,
            powers=powers,
            log_weights=prior,
            response=response,
        )

    def updated(self, seen: ProbeResult) -> Capacity:
        """Return what is known after a run.

        The likelihood is that of a binomial number of late requests whose variance is inflated by their bursts
        (quasi-likelihood: divided by the variance inflation, or by the requests of one limit if a run is too short
        to tell). An overload says that the capacity is lower, and its throughput by how much. A run with problems
        says nothing.
        """
        if seen.problems:
            return self
        lapse = self.response.lapse
        log_likelihood = np.logaddexp(self._log_likelihood(seen) + math.log1p(-lapse), math.log(lapse))
        return replace(self, log_weights=self.log_weights + log_likelihood)

    def estimated(self, rate_per_s: float, error: float) -> Capacity:
        """Return what is known after an estimate by other means, with the standard error of its logarithm.

        It is normal or, if the means fails, anywhere within a factor of e ^ 3.
        """
        far = (self.ln_rates - math.log(rate_per_s)) / error
        density = -(far**2) / 2 - math.log(error * math.sqrt(2 * math.pi))
        fails = self.response.estimate_fails
        log_likelihood = np.logaddexp(density + math.log1p(-fails), math.log(fails / 6))
        return replace(self, log_weights=self.log_weights + log_likelihood)

    def bounded(self, rate_per_s: float) -> Capacity:
        """Return what is known if no rate from this one up can be sent in time: it cannot be certified then."""
        below = self.ln_rates < math.log(rate_per_s)
        return replace(self, log_weights=np.where(below, self.log_weights, -math.inf))

    def _log_likelihood(self, seen: ProbeResult) -> Floats:
        """Return ln of the likelihood; that of a number of late requests is 1 where it is highest."""
        verdict, above = seen.verdict, math.log(seen.rate_per_s) - self.ln_rates
        if seen.overloaded:
            likelihood = np.where(above >= 0, 0.0, -math.inf)
            # Streams end when they are stopped; a server that answers all is slow, not saturated.
            streams = verdict.limit.kind == "attainment"
            if not streams and 0 < seen.answered_per_s < self.response.answers_all * seen.rate_per_s:
                below = math.log(seen.answered_per_s) - self.ln_rates
                density = -below / self.response.saturated - math.log(self.response.saturated)
                likelihood = likelihood + np.where(below >= 0, density, -math.inf)
            return np.broadcast_to(likelihood, self.log_weights.shape)
        most = (1 + verdict.limit.allowed) / 2
        log_share = np.minimum(math.log(verdict.limit.allowed) + self.powers[:, None] * above, math.log(most))
        late = min(verdict.violations, most * verdict.n)
        together = max(1.0, seen.rate_per_s * verdict.limit.limit_ms / 1e3)
        inflation = verdict.vif if math.isfinite(verdict.vif) else together
        binomial = np.asarray(late * log_share + (verdict.n - late) * np.log1p(-np.exp(log_share))) / inflation
        return np.asarray(binomial - binomial.max())

    @cached_property
    def weights(self) -> Floats:
        """The probabilities, shape (powers, rates)."""
        weights = np.exp(self.log_weights - self.log_weights.max())
        return np.asarray(weights / weights.sum())

    def quantile(self, share: float) -> float:
        """Return the rate below which the capacity is with this probability."""
        summed = np.cumsum(self.weights.sum(axis=0))
        return float(np.exp(self.ln_rates[min(int(np.searchsorted(summed, share)), len(summed) - 1)]))

    def below(self, rate_per_s: float) -> float:
        """Return the probability that the capacity is below a rate."""
        return float(self.weights.sum(axis=0)[self.ln_rates < math.log(rate_per_s)].sum())

    @property
    def error(self) -> float:
        """The standard error of ln(capacity): half of the range that has 68 % of the probability."""
        return math.log(self.quantile(0.84) / self.quantile(0.16)) / 2

    @cached_property
    def drawn(self) -> tuple[Floats, Floats]:
        """200 equally likely values of ln(capacity) and of the power, each of shape (200,)."""
        picked = np.searchsorted(np.cumsum(self.weights), (np.arange(200) + 0.5) / 200)
        powers, rates = np.unravel_index(np.minimum(picked, self.weights.size - 1), self.weights.shape)
        return self.ln_rates[rates], self.powers[powers]

    def best_test(
        self,
        *,
        left_s: float,
        burst_s: float,
        allowed: float,
        confidence: float,
        held_per_s: float = 0.0,
        most_per_s: float = math.inf,
    ) -> tuple[float, float]:
        """Return the rate that is worth most as the next to be tested, and its worth, in requests per second.

        A test that is met in t of the seconds left is worth what its rate is above the one that is held, times the
        share of the seconds that is left then: one that takes all leaves no second attempt. How long it takes
        follows from the share of late requests, which come in bursts of the requests of `burst_s` on average, at
        least of one. No rate above the median is tested, as it would rather not be met, and none above
        `most_per_s`. Zeros: none is worth it.
        """
        ln_rates, powers = self.drawn
        median = min(float(np.median(ln_rates)), math.log(most_per_s))
        tested = np.linspace(median - 1.5, median, 150)[:, None]
        share = np.exp(np.minimum(powers * (tested - ln_rates), 0.0))
        shares, bursts = _bursts_needed(confidence)
        needed = np.where(share < shares[-1], np.interp(share, shares, bursts), math.inf)
        needed_s = needed * np.maximum(burst_s, np.exp(-tested)) / allowed
        gain = np.exp(tested[:, 0]) - held_per_s
        worth = gain * np.maximum(0.0, 1.0 - needed_s / left_s).mean(axis=1)
        best = int(np.argmax(worth))
        return (float(np.exp(tested[best, 0])), float(worth[best])) if worth[best] > 0 else (0.0, 0.0)


@lru_cache(maxsize=8)
def _bursts_needed(confidence: float) -> tuple[Floats, Floats]:
    """Return shares of what is allowed, and how many bursts would be allowed until such a share is met."""
    shares = np.linspace(0.0, 0.9, 91)
    return shares, np.array([bursts_needed(share, confidence) for share in shares])
