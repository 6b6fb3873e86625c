"""Compute the figures of a run from the times of its requests."""
