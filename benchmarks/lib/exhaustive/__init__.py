"""The parts of benchmarks/exhaustive.py."""
