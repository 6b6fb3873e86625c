"""Records that a run writes to disk."""
