"""What runs an engine on an NVIDIA GPU: copied as it is beside `model.py`, so it imports nothing of ours."""
