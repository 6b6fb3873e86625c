"""Engines in a Triton model repository, served by a running Triton."""
