"""The pipeline and its run directory."""
