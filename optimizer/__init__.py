"""Find the cheapest way to serve a model."""
