"""Send a plan from this machine."""
