"""Triton's batcher in virtual time."""
