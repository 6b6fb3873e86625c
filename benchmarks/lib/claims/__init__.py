"""Claims of the README and the docs, computed from raw results."""
