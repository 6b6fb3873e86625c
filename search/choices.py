"""Names that options, records and the search choose from; this module is quick to import."""

from __future__ import annotations

from typing import Literal, get_args

ObjectiveName = Literal["cost", "latency", "energy"]
"""The figure that `optimize` optimizes: see `search.trials.objective`."""

Term = Literal["on-demand", "spot", "1-year", "3-year"]
"""How a machine is bought. Prices for a year and longer hold for a machine that is paid around the clock."""

TERMS: tuple[Term, ...] = get_args(Term)
LARGEST_BATCH = 64
"""The largest batch of one execution, in batch items."""
