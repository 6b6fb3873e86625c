"""Runs an engine on an NVIDIA GPU. Copied as it is next to `model.py`, so it imports nothing of ours."""
