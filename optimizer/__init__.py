"""From a model to the cheapest way of serving it."""
