"""Send open-loop load and measure the responses."""
