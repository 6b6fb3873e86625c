"""Run a whole search in virtual time on an unsteady machine, and compare its answer with the truth."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from unsteady_machine import model_space, unsteady_machine
from virtual_search import search_on

from search.space import knobs_of

BUDGET_S = 120.0
ABOVE = 1.01
"""A certified rate is above the long-run capacity if it is above this multiple of it: the truth errs, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsteadySearch:
    """Rates in requests/s. `capacity` and `best` are long-run capacities on this machine, of the chosen
    configuration and of the whole space; None: nothing was certified.

    `twice`: a restarted server met the SLO, too. `unseen_every_s` is set if the certificate does not cover slow
    phases that come less often than once in so many seconds.
    """

    machine: str
    number: int
    certified: float | None
    capacity: float | None
    best: float
    twice: bool
    unseen_every_s: float | None
    load_s: float
    loading_s: float
    knobs: dict[str, int | str] | None

    @property
    def of_capacity(self) -> float | None:
        """Certified rate / long-run capacity of the chosen configuration."""
        return None if self.certified is None or self.capacity is None else self.certified / self.capacity

    @property
    def of_best(self) -> float | None:
        """Long-run capacity of the chosen configuration / that of the best; 1 if nearly the same."""
        return None if self.capacity is None else min(self.capacity / self.best, 1.0)

    @property
    def above(self) -> bool:
        """True if the certified rate is above the long-run capacity."""
        return self.of_capacity is not None and self.of_capacity > ABOVE


def unsteady_search(machine: str, number: int, *, budget_s: float = BUDGET_S) -> UnsteadySearch:
    """Run search `number` on the machine of this name (`unsteady_machine`); the number is its seed."""
    unsteady = unsteady_machine(machine, number)
    bench = unsteady.bench(number)
    with tempfile.TemporaryDirectory() as folder:
        _, found, _ = search_on(bench, model_space(), Path(folder), seed=number, budget_s=budget_s)
    winner = None if found is None else found.winner
    certificate = None if winner is None else winner.certificate
    return UnsteadySearch(
        machine=machine,
        number=number,
        certified=None if certificate is None else certificate.rate_per_s,
        capacity=None if winner is None or certificate is None else unsteady.capacity(winner.served),
        best=unsteady.best_capacity,
        twice=certificate is not None and certificate.confirmed_again,
        unseen_every_s=None if certificate is None else certificate.unseen_every_s,
        load_s=bench.spent.load_s,
        loading_s=bench.spent.loading_s,
        knobs=None if winner is None else knobs_of(winner.served),
    )
