"""The `optimize` command."""
