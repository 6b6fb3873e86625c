"""Send a plan from several machines."""
