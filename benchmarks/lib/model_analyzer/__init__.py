"""Triton Model Analyzer compared with `optimize` on one engine and runtime."""
