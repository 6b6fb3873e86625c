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

KNOB_OPTIONS = {
    "max_batch_size": "--max-batch-size",
    "instance_count": "--instances",
    "intra_op_threads": "--threads",
    "max_queue_delay_us": "--queue-delay",
}
"""The knobs whose values can be given, and the options that give them."""

KNOBS = ("engine", *KNOB_OPTIONS, "cuda_graphs")
"""The knobs of a search space."""
