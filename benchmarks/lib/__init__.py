"""Modules that the benchmarks share; the scripts next to this folder import them."""
